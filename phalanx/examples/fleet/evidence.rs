//! What the promises are judged by, once the story is over: who knew what when.

use std::time::Duration;

use phalanx::{Phase, Transition};

use crate::faults::Fault;

/// Changes of one epoch belong together if they are no further apart; a Redis that lost everything counts anew.
const TOGETHER: Duration = Duration::from_secs(3);

/// Everything that was seen of a fleet of processes.
#[derive(Debug)]
pub(crate) struct Evidence {
    /// When calls of an admitted kind first reached the upstream.
    pub(crate) admitted: Vec<Duration>,
    /// How the fleet's circuit changed.
    changes: Vec<Change>,
    /// Trial calls at the upstream that the fleet let through: from, to.
    pub(crate) probes: Vec<(Duration, Duration)>,
    /// Outages as each replica saw them.
    pub(crate) outages: Vec<Vec<Away>>,
    /// How often somebody noticed that Redis had lost its state, by replica.
    pub(crate) losses: Vec<u64>,
    /// What was done on purpose.
    pub(crate) faults: Vec<(Duration, Fault)>,
    /// When each replica was last heard of before it was killed.
    pub(crate) gone: Vec<Option<Duration>>,
    /// The longest a call took to be refused.
    pub(crate) slowest_refusal: Duration,
}

/// The fleet's circuit changed its phase: when each replica knew of it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    epoch: u64,
    to: Phase,
    pub(crate) first: Duration,
    pub(crate) heard: Vec<Option<Duration>>,
}

/// The store was away.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Away {
    pub(crate) from: Duration,
    pub(crate) until: Option<Duration>,
    /// Calls decided alone meanwhile, once it is over.
    pub(crate) decided: u64,
}

impl Away {
    pub(crate) fn covers(&self, at: Duration) -> bool {
        self.from <= at && self.until.is_none_or(|until| at < until)
    }
}

impl Evidence {
    pub(crate) fn new(replicas: usize) -> Self {
        Self {
            admitted: Vec::new(),
            changes: Vec::new(),
            probes: Vec::new(),
            outages: vec![Vec::new(); replicas],
            losses: vec![0; replicas],
            faults: Vec::new(),
            gone: vec![None; replicas],
            slowest_refusal: Duration::ZERO,
        }
    }

    /// A replica heard of a change that the fleet made. Whether it is the first.
    pub(crate) fn heard(&mut self, replica: usize, at: Duration, change: &Transition) -> bool {
        let known = self.changes.iter_mut().rev().find(|known| {
            let same = known.epoch == change.epoch && known.to == change.to;
            same && known.heard[replica].is_none() && known.first.abs_diff(at) < TOGETHER
        });
        if let Some(known) = known {
            known.heard[replica] = Some(at);
            known.first = known.first.min(at);
            return false;
        }
        let mut heard = vec![None; self.outages.len()];
        heard[replica] = Some(at);
        self.changes.push(Change { epoch: change.epoch, to: change.to, first: at, heard });
        true
    }

    /// Openings of the fleet's circuit, in order.
    pub(crate) fn openings(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.to == Phase::Open)
    }

    /// A trial call, unless the replica made it by its own lights.
    pub(crate) fn probed(&mut self, replica: usize, from: Duration, to: Duration) {
        if !self.outages[replica].iter().any(|away| away.covers(from)) {
            self.probes.push((from, to));
        }
    }

    pub(crate) fn left_alone(&mut self, replica: usize, at: Duration) {
        self.outages[replica].push(Away { from: at, until: None, decided: 0 });
    }

    pub(crate) fn back(&mut self, replica: usize, at: Duration, decided: u64) {
        if let Some(away) = self.outages[replica].last_mut() {
            (away.until, away.decided) = (Some(at), decided);
        }
    }

    /// How many replicas decide alone at a moment.
    pub(crate) fn alone_at(&self, at: Duration) -> usize {
        self.outages.iter().filter(|outages| outages.iter().any(|away| away.covers(at))).count()
    }

    /// Replicas that were not killed.
    pub(crate) fn survivors(&self) -> impl Iterator<Item = usize> {
        (0..self.gone.len()).filter(|replica| self.gone[*replica].is_none())
    }
}

impl Change {
    /// The time until every replica knew that could: it lived, and Redis was there for it. None if one never did.
    pub(crate) fn spread(&self, evidence: &Evidence) -> Option<Duration> {
        let mut last = self.first;
        for replica in 0..self.heard.len() {
            let gone = evidence.gone[replica].is_some_and(|gone| gone < self.first + TOGETHER);
            let alone = evidence.outages[replica].iter().any(|away| away.covers(self.first));
            match self.heard[replica] {
                Some(at) => last = last.max(at),
                None if gone || alone => {}
                None => return None,
            }
        }
        Some(last - self.first)
    }

    pub(crate) fn first_replica(&self) -> usize {
        self.heard.iter().position(|heard| *heard == Some(self.first)).unwrap_or(0)
    }
}

//! What the promises are judged by, once the story is over: who knew what when.

use std::time::Duration;

use phalanx::describe::{Phase, Transition};

use crate::faults::Fault;

/// Changes of one epoch belong together if they are no further apart; a Redis that lost everything counts anew.
const TOGETHER: Duration = Duration::from_secs(1);
/// How near is about.
const ABOUT: Duration = Duration::from_secs(2);

/// Everything that was seen of a fleet of processes.
#[derive(Debug)]
pub(crate) struct Evidence {
    /// When calls of an admitted kind first reached the upstream.
    pub(crate) admitted: Vec<Duration>,
    /// How the fleet's circuit changed.
    changes: Vec<Change>,
    /// Trial calls at the upstream that Redis let through: from, to.
    pub(crate) probes: Vec<(Duration, Duration)>,
    /// Outages as each replica saw them.
    pub(crate) outages: Vec<Vec<Away>>,
    /// When each replica decided a call alone though no outage was told: one answer of Redis was late.
    pub(crate) late: Vec<Vec<Duration>>,
    /// How often somebody noticed that Redis had lost its state, by replica.
    pub(crate) losses: Vec<u64>,
    /// What was done on purpose.
    pub(crate) faults: Vec<(Duration, Fault)>,
    /// When each replica was last heard of before it was killed.
    pub(crate) gone: Vec<Option<Duration>>,
    /// How long rejections took.
    pub(crate) rejections: Rejections,
}

/// The fleet's circuit changed its phase: when each replica knew of it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    epoch: u64,
    to: Phase,
    /// Who told of it first.
    pub(crate) by: usize,
    pub(crate) first: Duration,
    pub(crate) heard: Vec<Option<Duration>>,
}

/// How long it took to be rejected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rejections {
    pub(crate) slowest: Duration,
    all: Vec<Duration>,
}

impl Rejections {
    /// What 99 of 100 rejections kept under.
    pub(crate) fn p99(&self) -> Duration {
        let mut all = self.all.clone();
        all.sort_unstable();
        all.get(all.len().saturating_sub(1) * 99 / 100).copied().unwrap_or_default()
    }
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
            late: vec![Vec::new(); replicas],
            losses: vec![0; replicas],
            faults: Vec::new(),
            gone: vec![None; replicas],
            rejections: Rejections::default(),
        }
    }

    /// A replica heard of a change that the fleet made. Whether it is the first.
    pub(crate) fn heard(&mut self, replica: usize, at: Duration, change: &Transition) -> bool {
        let known = self.changes.iter_mut().rev().find(|known| {
            let same = known.epoch == change.epoch && known.to == change.to;
            same && known.first.abs_diff(at) < TOGETHER
        });
        if let Some(known) = known {
            let heard = known.heard[replica].get_or_insert(at);
            *heard = at.min(*heard);
            known.first = known.first.min(at);
            return false;
        }
        let mut heard = vec![None; self.outages.len()];
        heard[replica] = Some(at);
        self.changes.push(Change { epoch: change.epoch, to: change.to, by: replica, first: at, heard });
        true
    }

    /// A replica rejected a call because the circuit is open: it knows, whether or not it told.
    pub(crate) fn knows(&mut self, replica: usize, at: Duration) {
        if let Some(change) = self.changes.last_mut().filter(|change| change.to == Phase::Open && change.first <= at) {
            change.heard[replica].get_or_insert(at);
        }
    }

    /// Openings of the fleet's circuit, in order.
    pub(crate) fn openings(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.to == Phase::Open && change.is_the_fleets(self))
    }

    /// A call was decided without Redis. In an outage that is to be expected; else one answer came too late.
    pub(crate) fn decided_alone(&mut self, replica: usize, at: Duration) {
        if !self.outages[replica].iter().any(|away| away.covers(at)) {
            self.late[replica].push(at);
        }
    }

    /// Whether a replica was on its own about that time: what it tells then may be about its own circuit.
    fn alone_about(&self, replica: usize, at: Duration) -> bool {
        let (from, to) = (at.saturating_sub(ABOUT), at + ABOUT);
        let late = self.late[replica].iter().any(|late| (from..to).contains(late));
        let away = |away: &Away| away.from <= at && away.until.is_none_or(|until| from < until);
        late || self.outages[replica].iter().any(away)
    }

    pub(crate) fn rejected(&mut self, took: Duration) {
        self.rejections.slowest = self.rejections.slowest.max(took);
        self.rejections.all.push(took);
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
    /// Whether somebody heard of it who had Redis.
    fn is_the_fleets(&self, evidence: &Evidence) -> bool {
        let heard = self.heard.iter().enumerate().filter_map(|(replica, heard)| Some((replica, (*heard)?)));
        heard.into_iter().any(|(replica, at)| !evidence.alone_about(replica, at))
    }

    /// The time until every replica knew that could: it lived, and had Redis. None if one never did.
    pub(crate) fn spread(&self, evidence: &Evidence) -> Option<Duration> {
        let mut last = self.first;
        for replica in 0..self.heard.len() {
            let gone = evidence.gone[replica].is_some_and(|gone| gone < self.first + TOGETHER);
            match self.heard[replica] {
                _ if evidence.alone_about(replica, self.first) => {}
                Some(at) => last = last.max(at),
                None if gone => {}
                None => return None,
            }
        }
        Some(last - self.first)
    }
}

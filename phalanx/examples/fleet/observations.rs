//! What was observed of a fleet of processes, to check its guarantees: when each replica saw what.

use std::time::Duration;

use phalanx::describe::{Phase, Transition};

use crate::faults::Fault;

/// Reports of one epoch within this time are the same change; after a loss of state Redis starts at epoch 0 again.
const SAME_CHANGE_WINDOW: Duration = Duration::from_secs(1);
/// A degraded decision this close to a report makes the report the replica's own.
const DEGRADED_MARGIN: Duration = Duration::from_secs(2);

/// Everything that was observed.
#[derive(Debug)]
pub(crate) struct Observations {
    /// When the first attempt of each admitted call reached the upstream.
    pub(crate) admitted: Vec<Duration>,
    /// The changes of the shared breaker.
    changes: Vec<Change>,
    /// Probes that Redis admitted: when each started and ended at the upstream.
    pub(crate) probes: Vec<(Duration, Duration)>,
    /// The outages that each replica reported.
    pub(crate) outages: Vec<Vec<Outage>>,
    /// Degraded decisions outside an outage, by replica: a single reply of Redis was late.
    pub(crate) late_replies: Vec<Vec<Duration>>,
    /// How often each replica found that Redis had lost its state.
    pub(crate) state_losses: Vec<u64>,
    /// The faults that were injected.
    pub(crate) faults: Vec<(Duration, Fault)>,
    /// When each replica was killed.
    pub(crate) killed_at: Vec<Option<Duration>>,
    /// How long rejections took.
    pub(crate) rejections: Rejections,
}

/// A change of the shared breaker's phase, and when each replica saw it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    epoch: u64,
    to: Phase,
    /// The first replica that reported it.
    pub(crate) by: usize,
    pub(crate) first: Duration,
    pub(crate) seen_at: Vec<Option<Duration>>,
}

/// How long rejections took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rejections {
    pub(crate) slowest: Duration,
    all: Vec<Duration>,
}

impl Rejections {
    /// The 99th percentile.
    pub(crate) fn p99(&self) -> Duration {
        let mut all = self.all.clone();
        all.sort_unstable();
        all.get(all.len().saturating_sub(1) * 99 / 100).copied().unwrap_or_default()
    }
}

/// A time in which a replica was degraded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) from: Duration,
    pub(crate) until: Option<Duration>,
    /// Decisions in that time, known once it is over.
    pub(crate) degraded_decisions: u64,
}

impl Outage {
    pub(crate) fn covers(&self, at: Duration) -> bool {
        self.from <= at && self.until.is_none_or(|until| at < until)
    }
}

impl Observations {
    pub(crate) fn new(replicas: usize) -> Self {
        Self {
            admitted: Vec::new(),
            changes: Vec::new(),
            probes: Vec::new(),
            outages: vec![Vec::new(); replicas],
            late_replies: vec![Vec::new(); replicas],
            state_losses: vec![0; replicas],
            faults: Vec::new(),
            killed_at: vec![None; replicas],
            rejections: Rejections::default(),
        }
    }

    /// Records that a replica saw a change of the shared breaker. Returns whether it is the first report of that change.
    pub(crate) fn record_change(&mut self, replica: usize, at: Duration, change: &Transition) -> bool {
        let known = self.changes.iter_mut().rev().find(|known| {
            let same = known.epoch == change.epoch && known.to == change.to;
            same && known.first.abs_diff(at) < SAME_CHANGE_WINDOW
        });
        if let Some(known) = known {
            let seen_at = known.seen_at[replica].get_or_insert(at);
            *seen_at = at.min(*seen_at);
            known.first = known.first.min(at);
            return false;
        }
        let mut seen_at = vec![None; self.outages.len()];
        seen_at[replica] = Some(at);
        self.changes.push(Change { epoch: change.epoch, to: change.to, by: replica, first: at, seen_at });
        true
    }

    /// Records that a replica rejected a call because the breaker is open: it has seen the change, even without an event.
    pub(crate) fn record_known_open(&mut self, replica: usize, at: Duration) {
        if let Some(change) = self.changes.last_mut().filter(|change| change.to == Phase::Open && change.first <= at) {
            change.seen_at[replica].get_or_insert(at);
        }
    }

    /// The trips of the shared breaker, in order.
    pub(crate) fn openings(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().filter(|change| change.to == Phase::Open && change.is_fleet_wide(self))
    }

    /// Records a degraded decision. Outside an outage it means that one reply was late.
    pub(crate) fn record_degraded_call(&mut self, replica: usize, at: Duration) {
        if !self.outages[replica].iter().any(|outage| outage.covers(at)) {
            self.late_replies[replica].push(at);
        }
    }

    /// Whether a replica was degraded around that time: what it reports then may be about its own breaker.
    fn degraded_around(&self, replica: usize, at: Duration) -> bool {
        let (from, to) = (at.saturating_sub(DEGRADED_MARGIN), at + DEGRADED_MARGIN);
        let late_reply = self.late_replies[replica].iter().any(|late| (from..to).contains(late));
        let overlaps = |outage: &Outage| outage.from <= at && outage.until.is_none_or(|until| from < until);
        late_reply || self.outages[replica].iter().any(overlaps)
    }

    pub(crate) fn record_rejection(&mut self, took: Duration) {
        self.rejections.slowest = self.rejections.slowest.max(took);
        self.rejections.all.push(took);
    }

    pub(crate) fn record_degraded(&mut self, replica: usize, at: Duration) {
        self.outages[replica].push(Outage { from: at, until: None, degraded_decisions: 0 });
    }

    pub(crate) fn record_recovered(&mut self, replica: usize, at: Duration, degraded_decisions: u64) {
        if let Some(outage) = self.outages[replica].last_mut() {
            (outage.until, outage.degraded_decisions) = (Some(at), degraded_decisions);
        }
    }

    /// The number of replicas that are degraded at this time.
    pub(crate) fn degraded_at(&self, at: Duration) -> usize {
        self.outages.iter().filter(|outages| outages.iter().any(|outage| outage.covers(at))).count()
    }

    /// Replicas that were not killed.
    pub(crate) fn survivors(&self) -> impl Iterator<Item = usize> {
        (0..self.killed_at.len()).filter(|replica| self.killed_at[*replica].is_none())
    }
}

impl Change {
    /// Whether a replica that had Redis saw it.
    fn is_fleet_wide(&self, observations: &Observations) -> bool {
        let seen_at = self.seen_at.iter().enumerate().filter_map(|(replica, seen_at)| Some((replica, (*seen_at)?)));
        seen_at.into_iter().any(|(replica, at)| !observations.degraded_around(replica, at))
    }

    /// The time until every live replica with Redis had seen it. `None` if one never did.
    pub(crate) fn propagation(&self, observations: &Observations) -> Option<Duration> {
        let mut last = self.first;
        for replica in 0..self.seen_at.len() {
            let killed = observations.killed_at[replica].is_some_and(|at| at < self.first + SAME_CHANGE_WINDOW);
            match self.seen_at[replica] {
                _ if observations.degraded_around(replica, self.first) => {}
                Some(at) => last = last.max(at),
                None if killed => {}
                None => return None,
            }
        }
        Some(last - self.first)
    }
}

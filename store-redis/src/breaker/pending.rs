//! What a breaker has not sent to Redis yet: outcomes in order and settled probes.

use std::time::Duration;

use phalanx_core::breaker::Sample;
use phalanx_core::clock::Time;
use phalanx_core::kind::Outcome;

/// Runs in one call of `breaker_sync.lua`; the rest is sent with the next round trip.
const MAX_RUNS_PER_CALL: usize = 128;
/// Ends of probes queued at most; there are at most 100 leases at a time.
const MAX_QUEUED_SETTLED: usize = 1_024;
/// Runs queued at most. Above that, an outcome is added to the last run of the same epoch and kind, whatever its slice.
const MAX_QUEUED_RUNS: usize = 1_024;

/// What has not been sent yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) runs: Runs,
    pub(super) settled: Vec<Settled>,
    /// Poll the state even if there is nothing else to send.
    pub(super) poll: bool,
}

impl Pending {
    pub(super) const fn is_empty(&self) -> bool {
        !self.has_news() && !self.poll
    }

    /// Returns whether anything would be lost if it were not sent.
    pub(super) const fn has_news(&self) -> bool {
        !self.runs.0.is_empty() || !self.settled.is_empty()
    }

    /// Puts back ends of probes whose request may have been lost: a lease is settled once, so they can be sent again.
    /// Those of an earlier epoch, and of a lease that has expired, would change nothing.
    pub(super) fn put_back_settled(&mut self, mut settled: Vec<Settled>, epoch: u64, now: Time) {
        settled.retain(|one| one.epoch >= epoch && now < one.expires);
        settled.append(&mut self.settled);
        settled.truncate(MAX_QUEUED_SETTLED);
        self.settled = settled;
    }
}

/// Consecutive outcomes of one kind, epoch and slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) epoch: u64,
    kind: OutcomeCode,
    pub(super) count: u64,
    /// The slice of the window, on this replica's clock.
    slice: u64,
}

/// The outcome codes of the scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum OutcomeCode {
    Success = 0,
    SlowSuccess = 1,
    Failure = 2,
    SlowFailure = 3,
    QuantileWithin = 4,
    QuantileOver = 5,
    Neutral = 6,
}

impl OutcomeCode {
    const fn of(outcome: Outcome, slow: bool) -> Self {
        match (outcome, slow) {
            (Outcome::Success, false) => Self::Success,
            (Outcome::Success, true) => Self::SlowSuccess,
            (Outcome::Failure, false) => Self::Failure,
            (Outcome::Failure, true) => Self::SlowFailure,
            (Outcome::Neutral | Outcome::Cancelled, _) => Self::Neutral,
        }
    }

    const fn is_urgent(self) -> bool {
        matches!(self, Self::SlowSuccess | Self::Failure | Self::SlowFailure)
    }

    const fn is_slow(self) -> bool {
        matches!(self, Self::SlowSuccess | Self::SlowFailure)
    }

    const fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Success | Self::SlowSuccess => Some(Outcome::Success),
            Self::Failure | Self::SlowFailure => Some(Outcome::Failure),
            Self::QuantileWithin | Self::QuantileOver | Self::Neutral => None,
        }
    }
}

impl Run {
    pub(super) const fn outcome(epoch: u64, outcome: Outcome, slow: bool, slice: u64) -> Option<Self> {
        match OutcomeCode::of(outcome, slow) {
            OutcomeCode::Neutral => None,
            kind => Some(Self { epoch, kind, count: 1, slice }),
        }
    }

    pub(super) const fn successes(epoch: u64, count: u64, slice: u64) -> Self {
        Self { epoch, kind: OutcomeCode::Success, count, slice }
    }

    pub(super) const fn kind(&self) -> u8 {
        self.kind as u8
    }

    pub(super) const fn is_urgent(&self) -> bool {
        self.kind.is_urgent()
    }

    pub(super) const fn quantile(over: bool) -> Self {
        let kind = if over { OutcomeCode::QuantileOver } else { OutcomeCode::QuantileWithin };
        Self { epoch: 0, kind, count: 0, slice: 0 }
    }

    /// Expands the run into single samples with their epoch, at most `max`.
    pub(super) fn samples(&self, slow: Duration, max: u64) -> impl Iterator<Item = (u64, Sample)> {
        let latency = if self.kind.is_slow() { slow } else { Duration::ZERO };
        let (epoch, count) = (self.epoch, self.count.min(max));
        self.kind
            .outcome()
            .into_iter()
            .flat_map(move |outcome| (0..count).map(move |_| (epoch, Sample { outcome, latency })))
    }

    /// Age in microseconds, with the precision of a slice: 0 within the current slice, otherwise since the slice ended.
    pub(super) const fn age(&self, now: Time, slice_micros: u64) -> u64 {
        let end = self.slice.saturating_add(1).saturating_mul(slice_micros);
        (now.as_micros() + 1).saturating_sub(end)
    }
}

/// Runs in the order of their outcomes.
#[derive(Debug, Default)]
pub(super) struct Runs(Vec<Run>);

impl Runs {
    /// Adds a run. Returns whether it must be sent at once.
    pub(super) fn push(&mut self, run: Run) -> bool {
        let full = self.0.len() >= MAX_QUEUED_RUNS;
        let alike = |last: &Run| last.epoch == run.epoch && last.kind == run.kind && (last.slice == run.slice || full);
        let existing = if full { self.0.iter_mut().rev().find(|last| alike(last)) } else { self.0.last_mut() };
        match existing.filter(|last| alike(last)) {
            Some(last) => last.count = last.count.saturating_add(run.count),
            None if full => {}
            None => self.0.push(run),
        }
        run.kind.is_urgent()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn any_urgent(&self) -> bool {
        self.0.iter().any(Run::is_urgent)
    }

    /// Puts back runs that were not sent, before those that came later.
    pub(super) fn put_back(&mut self, runs: Vec<Run>) {
        let later = std::mem::replace(&mut self.0, runs);
        for run in later {
            self.push(run);
        }
    }

    pub(super) fn take(&mut self) -> Vec<Run> {
        let rest = self.0.split_off(self.0.len().min(MAX_RUNS_PER_CALL));
        std::mem::replace(&mut self.0, rest)
    }
}

/// The outcome of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) epoch: u64,
    pub(super) lease: u64,
    kind: OutcomeCode,
    /// When the lease has expired in any case, on this replica's clock.
    expires: Time,
}

impl Settled {
    pub(super) const fn new(epoch: u64, lease: u64, outcome: Outcome, slow: bool, expires: Time) -> Self {
        Self { epoch, lease, kind: OutcomeCode::of(outcome, slow), expires }
    }

    pub(super) const fn kind(&self) -> u8 {
        self.kind as u8
    }

    pub(super) const fn unused(epoch: u64, lease: u64, expires: Time) -> Self {
        Self { epoch, lease, kind: OutcomeCode::Neutral, expires }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(slice: u64, count: usize) -> impl Iterator<Item = Run> {
        (0..count).filter_map(move |_| Run::outcome(1, Outcome::Failure, false, slice))
    }

    #[test]
    fn runs_that_were_not_sent_go_before_those_that_came_later() {
        let mut runs = Runs::default();
        assert!(failures(1, 2).all(|run| runs.push(run)));
        let unsent = runs.take();
        runs.push(Run::successes(1, 3, 1));
        assert!(failures(2, 1).all(|run| runs.push(run)));
        runs.put_back(unsent);
        let sent: Vec<_> = runs.take().iter().map(|run| (run.kind(), run.count)).collect();
        assert_eq!(sent, [(2, 2), (0, 3), (2, 1)]);
    }

    #[test]
    fn the_end_of_a_probe_is_kept_until_its_lease_or_its_epoch_is_over() {
        let time = Time::from_micros;
        let mut pending = Pending::default();
        let ends = [(6, 1, 100), (7, 2, 100), (7, 3, 50), (8, 4, 100)];
        let ends = ends.map(|(epoch, lease, expires)| Settled::unused(epoch, lease, time(expires)));
        pending.settled.push(Settled::unused(8, 5, time(100)));
        pending.put_back_settled(ends.to_vec(), 7, time(50));
        let leases: Vec<_> = pending.settled.iter().map(|one| one.lease).collect();
        assert_eq!(leases, [2, 4, 5]);
    }
}

//! What Redis has not been told yet: outcomes in the order they came, probes, an operator's word.

use std::time::Duration;

use phalanx_core::breaker::{Override, Sample};
use phalanx_core::clock::Time;
use phalanx_core::kind::Outcome;

/// Runs told in one script; more wait for the next flight.
const RUNS: usize = 128;
/// Runs kept at most: beyond that outcomes are no longer told one by one but thrown together.
const MOST_RUNS: usize = 1_024;

/// What Redis has not been told yet.
#[derive(Debug, Default)]
pub(super) struct Owed {
    pub(super) runs: Runs,
    pub(super) settled: Vec<Settled>,
    /// An operator's word that could not be told.
    pub(super) word: Option<Option<Override>>,
    /// How the circuit stands is to be asked, even if there is nothing to tell.
    pub(super) poll: bool,
}

impl Owed {
    pub(super) const fn is_nothing(&self) -> bool {
        self.runs.0.is_empty() && self.settled.is_empty() && self.word.is_none() && !self.poll
    }
}

/// Outcomes in a row that count alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) epoch: u64,
    kind: Told,
    pub(super) count: u64,
    /// The slice of the window they fell into, on this replica's clock.
    slice: u64,
}

/// What the scripts call an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Told {
    Success = 0,
    SlowSuccess = 1,
    Failure = 2,
    SlowFailure = 3,
    QuantileWithin = 4,
    QuantileOver = 5,
    Nothing = 6,
}

impl Told {
    const fn of(outcome: Outcome, slow: bool) -> Self {
        match (outcome, slow) {
            (Outcome::Success, false) => Self::Success,
            (Outcome::Success, true) => Self::SlowSuccess,
            (Outcome::Failure, false) => Self::Failure,
            (Outcome::Failure, true) => Self::SlowFailure,
            (Outcome::Neutral | Outcome::Cancelled, _) => Self::Nothing,
        }
    }

    const fn is_bad_news(self) -> bool {
        matches!(self, Self::SlowSuccess | Self::Failure | Self::SlowFailure)
    }

    const fn is_slow(self) -> bool {
        matches!(self, Self::SlowSuccess | Self::SlowFailure)
    }

    const fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Success | Self::SlowSuccess => Some(Outcome::Success),
            Self::Failure | Self::SlowFailure => Some(Outcome::Failure),
            Self::QuantileWithin | Self::QuantileOver | Self::Nothing => None,
        }
    }
}

impl Run {
    pub(super) const fn outcome(epoch: u64, outcome: Outcome, slow: bool, slice: u64) -> Option<Self> {
        match Told::of(outcome, slow) {
            Told::Nothing => None,
            kind => Some(Self { epoch, kind, count: 1, slice }),
        }
    }

    pub(super) const fn successes(epoch: u64, count: u64, slice: u64) -> Self {
        Self { epoch, kind: Told::Success, count, slice }
    }

    pub(super) const fn kind(&self) -> u8 {
        self.kind as u8
    }

    pub(super) const fn quantile(over: bool) -> Self {
        let kind = if over { Told::QuantileOver } else { Told::QuantileWithin };
        Self { epoch: 0, kind, count: 0, slice: 0 }
    }

    /// The outcomes one by one, as samples of an epoch, at most so many.
    pub(super) fn samples(&self, slow: Duration, most: u64) -> impl Iterator<Item = (u64, Sample)> {
        let latency = if self.kind.is_slow() { slow } else { Duration::ZERO };
        let (epoch, count) = (self.epoch, self.count.min(most));
        self.kind
            .outcome()
            .into_iter()
            .flat_map(move |outcome| (0..count).map(move |_| (epoch, Sample { outcome, latency })))
    }

    /// Microseconds since it happened, as far as that matters: none within the present slice, and in an older one since
    /// that slice ended.
    pub(super) const fn age(&self, now: Time, slice_micros: u64) -> u64 {
        let end = self.slice.saturating_add(1).saturating_mul(slice_micros);
        (now.as_micros() + 1).saturating_sub(end)
    }
}

/// Runs in the order they happened.
#[derive(Debug, Default)]
pub(super) struct Runs(Vec<Run>);

impl Runs {
    /// Adds a run. Whether it is bad news, which cannot wait.
    pub(super) fn push(&mut self, run: Run) -> bool {
        let full = self.0.len() >= MOST_RUNS;
        let alike = |last: &Run| last.epoch == run.epoch && last.kind == run.kind && (last.slice == run.slice || full);
        let place = if full { self.0.iter_mut().rev().find(|last| alike(last)) } else { self.0.last_mut() };
        match place.filter(|last| alike(last)) {
            Some(last) => last.count = last.count.saturating_add(run.count),
            None if full => {}
            None => self.0.push(run),
        }
        run.kind.is_bad_news()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn any_bad_news(&self) -> bool {
        self.0.iter().any(|run| run.kind.is_bad_news())
    }

    pub(super) fn take(&mut self) -> Vec<Run> {
        let rest = self.0.split_off(self.0.len().min(RUNS));
        std::mem::replace(&mut self.0, rest)
    }
}

/// What became of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) epoch: u64,
    pub(super) lease: u64,
    kind: Told,
}

impl Settled {
    pub(super) const fn new(epoch: u64, lease: u64, outcome: Outcome, slow: bool) -> Self {
        Self { epoch, lease, kind: Told::of(outcome, slow) }
    }

    pub(super) const fn kind(&self) -> u8 {
        self.kind as u8
    }

    pub(super) const fn unused(epoch: u64, lease: u64) -> Self {
        Self { epoch, lease, kind: Told::Nothing }
    }
}

//! The figures of one replica, or of all together.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::time::Duration;

use phalanx::RejectionCode;
use phalanx::describe::Outcome;

use crate::report::Call;

/// The stretch over which rates and latencies are taken.
const RECENTLY: Duration = Duration::from_secs(1);

/// Everything that is counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: u64,
    pub(crate) admitted: u64,
    pub(crate) answered: u64,
    /// Ended with the upstream's own error.
    pub(crate) failed: u64,
    pub(crate) retries: u64,
    /// Retries that the budget did not allow.
    pub(crate) withheld: u64,
    pub(crate) probes: u64,
    /// Rejected or cut off, by the policy's reason.
    pub(crate) by_code: BTreeMap<RejectionCode, u64>,
    /// The calls of the last second: when, and the latency if it was an answer.
    recent: VecDeque<(Duration, Option<Duration>)>,
}

impl Tally {
    pub(crate) fn add(&mut self, at: Duration, call: &Call) {
        if call.outcome == Some(Outcome::Cancelled) {
            return; // the example was stopped with Ctrl-C; the upstream has nothing to do with it
        }
        self.calls += 1;
        self.admitted += u64::from(call.admitted);
        match call.reason {
            Some(code) => *self.by_code.entry(code).or_default() += 1,
            None if call.answered => self.answered += 1,
            None => self.failed += 1,
        }
        self.recent.push_back((at, call.answered.then_some(call.elapsed)));
        while self.recent.front().is_some_and(|(then, _)| *then + RECENTLY < at) {
            self.recent.pop_front();
        }
    }

    /// All replicas as one.
    pub(crate) fn sum(tallies: &[Self]) -> Self {
        let mut sum = Self::default();
        for tally in tallies {
            sum.calls += tally.calls;
            sum.admitted += tally.admitted;
            sum.answered += tally.answered;
            sum.failed += tally.failed;
            sum.retries += tally.retries;
            sum.withheld += tally.withheld;
            sum.probes += tally.probes;
            for (code, count) in &tally.by_code {
                *sum.by_code.entry(*code).or_default() += count;
            }
            sum.recent.extend(&tally.recent);
        }
        sum
    }

    pub(crate) fn count(&self, code: RejectionCode) -> u64 {
        self.by_code.get(&code).copied().unwrap_or(0)
    }

    /// The reasons of calls that were rejected or cut off since then.
    pub(crate) fn write_codes_since(&self, before: &Self, out: &mut impl Write) -> io::Result<()> {
        for code in self.by_code.keys() {
            let count = self.count(*code) - before.count(*code);
            if count > 0 {
                write!(out, "  {code} {count}")?;
            }
        }
        Ok(())
    }

    /// Calls a second, lately.
    pub(crate) fn rate(&self, now: Duration) -> f64 {
        let span = now.clamp(Duration::from_millis(50), RECENTLY);
        self.lately(now).count() as f64 / span.as_secs_f64()
    }

    /// The latency that 95 of 100 recent answers kept under.
    pub(crate) fn p95(&self, now: Duration) -> Option<Duration> {
        let mut answers: Vec<_> = self.lately(now).filter_map(|(_, latency)| *latency).collect();
        answers.sort_unstable();
        let last = answers.len().checked_sub(1)?;
        answers.get(last * 95 / 100).copied()
    }

    fn lately(&self, now: Duration) -> impl Iterator<Item = &(Duration, Option<Duration>)> {
        self.recent.iter().filter(move |(then, _)| *then + RECENTLY >= now)
    }
}

//! The call counts of one replica, or of the whole fleet.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::time::Duration;

use phalanx::RejectionCode;
use phalanx::describe::Outcome;

use crate::message::CallResult;

/// The time over which rates and latencies are computed.
const RECENT_WINDOW: Duration = Duration::from_secs(1);

/// Counts of calls by result, and the calls of the last second.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallCounts {
    pub(crate) calls: u64,
    pub(crate) admitted: u64,
    pub(crate) answered: u64,
    /// Calls that ended with the error of the upstream.
    pub(crate) failed: u64,
    pub(crate) retries: u64,
    /// Retries denied by the retry budget.
    pub(crate) retries_denied: u64,
    pub(crate) probes: u64,
    /// Calls rejected or cut off by the policy, by reason.
    pub(crate) by_code: BTreeMap<RejectionCode, u64>,
    /// The calls of the last second: when each ended, and its latency if it was answered.
    recent: VecDeque<(Duration, Option<Duration>)>,
}

impl CallCounts {
    pub(crate) fn add(&mut self, at: Duration, call: &CallResult) {
        if call.outcome == Some(Outcome::Cancelled) {
            return; // Ctrl-C stopped the demo: not an outcome of the upstream
        }
        self.calls += 1;
        self.admitted += u64::from(call.admitted);
        match call.reason {
            Some(code) => *self.by_code.entry(code).or_default() += 1,
            None if call.answered => self.answered += 1,
            None => self.failed += 1,
        }
        self.recent.push_back((at, call.answered.then_some(call.elapsed)));
        while self.recent.front().is_some_and(|(then, _)| *then + RECENT_WINDOW < at) {
            self.recent.pop_front();
        }
    }

    /// Adds up the counts of all replicas.
    pub(crate) fn sum(replica_counts: &[Self]) -> Self {
        let mut sum = Self::default();
        for counts in replica_counts {
            sum.calls += counts.calls;
            sum.admitted += counts.admitted;
            sum.answered += counts.answered;
            sum.failed += counts.failed;
            sum.retries += counts.retries;
            sum.retries_denied += counts.retries_denied;
            sum.probes += counts.probes;
            for (code, count) in &counts.by_code {
                *sum.by_code.entry(*code).or_default() += count;
            }
            sum.recent.extend(&counts.recent);
        }
        sum
    }

    pub(crate) fn count(&self, code: RejectionCode) -> u64 {
        self.by_code.get(&code).copied().unwrap_or(0)
    }

    /// Writes the calls rejected or cut off since `before`, by reason.
    pub(crate) fn write_codes_since(&self, before: &Self, out: &mut impl Write) -> io::Result<()> {
        for code in self.by_code.keys() {
            let count = self.count(*code) - before.count(*code);
            if count > 0 {
                write!(out, "  {code} {count}")?;
            }
        }
        Ok(())
    }

    /// Calls per second over the last second.
    pub(crate) fn rate(&self, now: Duration) -> f64 {
        let span = now.clamp(Duration::from_millis(50), RECENT_WINDOW);
        self.recent_calls(now).count() as f64 / span.as_secs_f64()
    }

    /// The 95th percentile of the latencies of the last second.
    pub(crate) fn p95(&self, now: Duration) -> Option<Duration> {
        let mut answers: Vec<_> = self.recent_calls(now).filter_map(|(_, latency)| *latency).collect();
        answers.sort_unstable();
        let last = answers.len().checked_sub(1)?;
        answers.get(last * 95 / 100).copied()
    }

    fn recent_calls(&self, now: Duration) -> impl Iterator<Item = &(Duration, Option<Duration>)> {
        self.recent.iter().filter(move |(then, _)| *then + RECENT_WINDOW >= now)
    }
}

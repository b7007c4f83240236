//! Sampling of log lines: per kind of line, policy and route, one line in ten seconds. The next one has the number of
//! suppressed lines.
//!
//! Bounded: a thousand pairs of policy and route are sampled separately and all others together, so that invented routes fill
//! neither memory nor the log. Entries that were not used for ten seconds are evicted, and their suppressed lines are added
//! to the shared entry. A suppressed line costs a lookup under a read lock and an addition; nothing is allocated.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use phalanx_core::clock::Time;
use phalanx_core::key::StateKey;

/// The time between two lines of a kind on one policy and route.
const PERIOD: Duration = Duration::from_secs(10);

/// Pairs of policy and route that are sampled separately.
const MAX_KEYS: usize = 1_000;

/// Declares the sampled lines with their names.
macro_rules! lines {
    ($($line:ident = $name:literal),+ $(,)?) => {
        /// A kind of sampled line.
        #[derive(Clone, Copy)]
        pub(super) enum Line {
            $($line),+
        }

        impl Line {
            const COUNT: usize = [$(Self::$line),+].len();

            /// Returns its name in the field `event`.
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$line => $name),+
                }
            }
        }
    };
}

lines!(
    RetryAttempt = "retry_attempt",
    Timeout = "timeout",
    RetryExhausted = "retry_exhausted",
    RetryBudget = "retry_budget_exhausted",
    RetryAbandoned = "retry_abandoned",
    Hedge = "hedge",
    HedgeBudget = "hedge_budget_exhausted",
    FallbackUsed = "fallback_used",
    FaultInjected = "fault_injected",
    CircuitRejected = "circuit_rejected",
    BulkheadRejected = "bulkhead_rejected",
    FleetFull = "fleet_bulkhead_rejected",
    RateLimited = "rate_limited",
    Throttled = "throttled",
    DeadlineExceeded = "deadline_exceeded",
    DrainRejected = "drain_rejected",
    Rejected = "rejected",
    CircuitOpened = "circuit_opened",
    CircuitHalfOpen = "circuit_half_open",
    CircuitClosed = "circuit_closed",
    NearLimit = "near_limit",
    LimitLowered = "limit_lowered",
    StateRepaired = "state_repaired",
    ConfigMismatch = "config_mismatch",
    FleetShareLapsed = "fleet_share_lapsed",
    Retuned = "retuned",
    RoutesExhausted = "routes_exhausted",
    TagsExhausted = "tags_exhausted",
);

/// The sampling state of all lines.
#[derive(Default)]
pub(super) struct Samples {
    by_key: RwLock<HashMap<StateKey, KeySamples>>,
    /// Of all keys beyond the bound.
    overflow: KeySamples,
    /// Until then no entry can be evicted, in microseconds.
    full_until: AtomicU64,
}

/// The lines of one policy and route.
#[derive(Default)]
struct KeySamples([LineSample; Line::COUNT]);

/// One kind of line on one policy and route.
#[derive(Default)]
struct LineSample {
    /// When the next line is due, in microseconds.
    due: AtomicU64,
    suppressed: AtomicU64,
}

impl Samples {
    /// Returns the number of lines suppressed since the last one if this one is to be written, else `None`.
    pub(super) fn admit(&self, line: Line, key: &StateKey, now: Time) -> Option<u64> {
        if let Some(samples) = self.by_key.read().get(key) {
            return samples.0[line as usize].admit(now);
        }
        if now.as_micros() < self.full_until.load(Ordering::Relaxed) {
            return self.overflow.0[line as usize].admit(now);
        }
        let mut by_key = self.by_key.write();
        if by_key.len() >= MAX_KEYS {
            by_key.retain(|_, samples| {
                let in_use = samples.is_in_use(now);
                if !in_use {
                    self.overflow.add(samples);
                }
                in_use
            });
        }
        if by_key.len() >= MAX_KEYS {
            self.full_until.store(now.after(PERIOD).as_micros(), Ordering::Relaxed);
            return self.overflow.0[line as usize].admit(now);
        }
        by_key.entry(key.clone()).or_default().0[line as usize].admit(now)
    }
}

impl KeySamples {
    /// Returns whether a line of any kind was written within the last period.
    fn is_in_use(&self, now: Time) -> bool {
        self.0.iter().any(|sample| sample.due.load(Ordering::Relaxed) > now.as_micros())
    }

    /// Adds the suppressed lines of an evicted entry.
    fn add(&self, evicted: &Self) {
        for (own, evicted) in self.0.iter().zip(&evicted.0) {
            own.suppressed.fetch_add(evicted.suppressed.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl LineSample {
    fn admit(&self, now: Time) -> Option<u64> {
        let due = self.due.load(Ordering::Relaxed);
        let next = now.after(PERIOD).as_micros();
        // A due time more than one period ahead means that the clock was set back.
        let is_due = now.as_micros() >= due || due > next;
        if is_due && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_micros(seconds * 1_000_000)
    }

    fn key(route: usize) -> StateKey {
        StateKey::new("p", format!("r{route}").as_str())
    }

    #[test]
    fn one_line_per_period_and_the_next_counts_the_suppressed_ones() {
        let samples = Samples::default();
        assert_eq!(samples.admit(Line::RateLimited, &key(0), at(1)), Some(0));
        for _ in 0..7 {
            assert_eq!(samples.admit(Line::RateLimited, &key(0), at(10)), None);
        }
        assert_eq!(samples.admit(Line::RateLimited, &key(0), at(11)), Some(7));
        assert_eq!(samples.admit(Line::RateLimited, &key(0), at(30)), Some(0));
    }

    #[test]
    fn kinds_of_lines_and_routes_are_sampled_separately() {
        let samples = Samples::default();
        for line in [Line::RateLimited, Line::Timeout] {
            for route in 0..3 {
                assert_eq!(samples.admit(line, &key(route), at(1)), Some(0));
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_back_suppresses_nothing() {
        let samples = Samples::default();
        assert_eq!(samples.admit(Line::Hedge, &key(0), at(5_000)), Some(0));
        assert_eq!(samples.admit(Line::Hedge, &key(0), at(7)), Some(0));
    }

    #[test]
    fn invented_routes_fill_neither_memory_nor_the_log_and_are_all_counted() {
        let samples = Samples::default();
        let routes = 5_000;
        let written = |now| (0..routes).filter_map(|route| samples.admit(Line::RateLimited, &key(route), now)).count();
        assert_eq!(written(at(1)), MAX_KEYS + 1);
        assert_eq!(samples.by_key.read().len(), MAX_KEYS);
        assert_eq!(written(at(2)), 0);
        let suppressed = 2 * routes - (MAX_KEYS + 1);
        // Later keys replace the evicted ones, and every suppressed line is still counted.
        let others = routes..routes + MAX_KEYS + 1;
        let counts = others.filter_map(|route| samples.admit(Line::RateLimited, &key(route), at(20)));
        assert_eq!(counts.sum::<u64>(), u64::try_from(suppressed).unwrap());
        assert_eq!(samples.by_key.read().len(), MAX_KEYS);
    }
}

//! Which lines are written: of a kind, on one policy and route, one in ten seconds. The next says how many were left out.
//!
//! Bounded: a thousand pairs of policy and route are told apart, and all others share one place, so that whoever invents
//! routes fills neither memory nor the log. Places that nobody used for ten seconds are given away; what they had left out is
//! counted by the shared one. A rejection in a storm costs a lookup and an addition: no lock is held alone, nothing is
//! allocated.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use phalanx_core::clock::Time;
use phalanx_core::key::StateKey;

/// Between two lines of a kind on one policy and route.
const PERIOD: Duration = Duration::from_secs(10);

/// So many pairs of policy and route have places of their own.
const MOST_KEYS: usize = 1_000;

/// The lines that are sampled, by their names.
macro_rules! lines {
    ($($line:ident = $name:literal),+ $(,)?) => {
        /// A kind of line.
        #[derive(Clone, Copy)]
        pub(super) enum Line {
            $($line),+
        }

        impl Line {
            const COUNT: usize = [$(Self::$line),+].len();

            /// Its name in the field `event`.
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
    CircuitRejected = "circuit_rejected",
    BulkheadRejected = "bulkhead_rejected",
    RateLimited = "rate_limited",
    Throttled = "throttled",
    DeadlineExceeded = "deadline_exceeded",
    DrainRejected = "drain_rejected",
    Rejected = "rejected",
    CircuitOpened = "circuit_opened",
    CircuitHalfOpen = "circuit_half_open",
    CircuitClosed = "circuit_closed",
    LimitLowered = "limit_lowered",
    StateRepaired = "state_repaired",
    ConfigMismatch = "config_mismatch",
    Retuned = "retuned",
    RoutesExhausted = "routes_exhausted",
);

/// What was written of everything, and when.
#[derive(Default)]
pub(super) struct Samples {
    known: RwLock<HashMap<StateKey, Place>>,
    rest: Place,
    /// Until then there is no place to give away, in microseconds.
    full_until: AtomicU64,
}

#[derive(Default)]
struct Place([Kept; Line::COUNT]);

/// One kind of line on one policy and route.
#[derive(Default)]
struct Kept {
    /// When the next is due, in microseconds.
    due: AtomicU64,
    left_out: AtomicU64,
}

impl Samples {
    /// How many were left out since the last one, if this one is to be written.
    pub(super) fn admit(&self, line: Line, key: &StateKey, now: Time) -> Option<u64> {
        if let Some(place) = self.known.read().get(key) {
            return place.0[line as usize].admit(now);
        }
        if now.as_micros() < self.full_until.load(Ordering::Relaxed) {
            return self.rest.0[line as usize].admit(now);
        }
        let mut known = self.known.write();
        if known.len() >= MOST_KEYS {
            known.retain(|_, place| place.is_in_use(now) || self.rest.inherit(place));
        }
        if known.len() >= MOST_KEYS {
            self.full_until.store(now.after(PERIOD).as_micros(), Ordering::Relaxed);
            return self.rest.0[line as usize].admit(now);
        }
        known.entry(key.clone()).or_default().0[line as usize].admit(now)
    }
}

impl Place {
    /// Whether a line of any kind was written within the last period.
    fn is_in_use(&self, now: Time) -> bool {
        self.0.iter().any(|kept| kept.due.load(Ordering::Relaxed) > now.as_micros())
    }

    /// Takes over what another has left out; false, because that one is not needed any more.
    fn inherit(&self, other: &Self) -> bool {
        for (own, other) in self.0.iter().zip(&other.0) {
            own.left_out.fetch_add(other.left_out.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        false
    }
}

impl Kept {
    fn admit(&self, now: Time) -> Option<u64> {
        let due = self.due.load(Ordering::Relaxed);
        let next = now.after(PERIOD).as_micros();
        // Further away than a period: the clock was set back.
        let is_due = now.as_micros() >= due || due > next;
        if is_due && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
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
    fn one_line_a_period_and_the_next_counts_those_left_out() {
        let samples = Samples::default();
        assert_eq!(samples.admit(Line::RateLimited, &key(0), at(1)), Some(0));
        for _ in 0..7 {
            assert_eq!(samples.admit(Line::RateLimited, &key(0), at(10)), None);
        }
        assert_eq!(samples.admit(Line::RateLimited, &key(0), at(11)), Some(7));
        assert_eq!(samples.admit(Line::RateLimited, &key(0), at(30)), Some(0));
    }

    #[test]
    fn kinds_of_lines_and_routes_are_sampled_apart() {
        let samples = Samples::default();
        for line in [Line::RateLimited, Line::Timeout] {
            for route in 0..3 {
                assert_eq!(samples.admit(line, &key(route), at(1)), Some(0));
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_silence_anything() {
        let samples = Samples::default();
        assert_eq!(samples.admit(Line::Hedge, &key(0), at(5_000)), Some(0));
        assert_eq!(samples.admit(Line::Hedge, &key(0), at(7)), Some(0));
    }

    #[test]
    fn invented_routes_fill_neither_memory_nor_the_log_and_are_all_counted() {
        let samples = Samples::default();
        let routes = 5_000;
        let written = |now| (0..routes).filter_map(|route| samples.admit(Line::RateLimited, &key(route), now)).count();
        assert_eq!(written(at(1)), MOST_KEYS + 1);
        assert_eq!(samples.known.read().len(), MOST_KEYS);
        assert_eq!(written(at(2)), 0);
        let left_out = 2 * routes - (MOST_KEYS + 1);
        // Later others come, take the places over, and nothing that was left out is forgotten.
        let others = routes..routes + MOST_KEYS + 1;
        let counts = others.filter_map(|route| samples.admit(Line::RateLimited, &key(route), at(20)));
        assert_eq!(counts.sum::<u64>(), u64::try_from(left_out).unwrap());
        assert_eq!(samples.known.read().len(), MOST_KEYS);
    }
}

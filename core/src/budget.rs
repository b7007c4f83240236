//! A cap on extra load: of all calls in the last ten seconds, only so many may be repeated.
//!
//! In any window of ten seconds, extras never exceed `ratio` × calls + `min_per_second` × 10 (the idea is finagle's
//! retry budget). One budget belongs to one pipeline; retries (and, later, hedges) draw from it.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Time;
use crate::estimate::ring::{Counts, Ring};

const WINDOW: Duration = Duration::from_secs(10);

/// How much extra load a policy may cause.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct BudgetSpec {
    /// Extras per call, 0.0 to 1.0. Default 0.2.
    #[cfg_attr(feature = "serde", serde(default = "default_ratio"))]
    pub ratio: f64,
    /// Extras a second that are always allowed, so that a quiet service can repeat at all. Default 1.
    #[cfg_attr(feature = "serde", serde(default = "default_min_per_second"))]
    pub min_per_second: u32,
}

const fn default_ratio() -> f64 {
    0.2
}

const fn default_min_per_second() -> u32 {
    1
}

impl Default for BudgetSpec {
    fn default() -> Self {
        Self { ratio: default_ratio(), min_per_second: default_min_per_second() }
    }
}

impl BudgetSpec {
    /// Extras may be at most this share of the calls.
    pub fn ratio(ratio: f64) -> Self {
        Self { ratio, ..Self::default() }
    }

    /// Extras a second that are always allowed.
    #[must_use]
    pub const fn min_per_second(mut self, extras: u32) -> Self {
        self.min_per_second = extras;
        self
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    calls: u64,
    extras: u64,
}

impl Counts for Spent {
    fn plus(self, other: Self) -> Self {
        Self { calls: self.calls + other.calls, extras: self.extras + other.extras }
    }
}

/// The running account.
#[derive(Debug)]
pub struct Budget(Mutex<Ring<Spent>>);

impl Default for Budget {
    fn default() -> Self {
        Self(Mutex::new(Ring::new(WINDOW)))
    }
}

impl Budget {
    /// Counts a call.
    pub fn call(&self, now: Time) {
        self.0.lock().at(now).calls += 1;
    }

    /// Takes one extra if the budget has it.
    pub fn withdraw(&self, now: Time, spec: &BudgetSpec) -> bool {
        let mut ring = self.0.lock();
        let spent = ring.sum(now);
        let floor = f64::from(spec.min_per_second) * WINDOW.as_secs_f64();
        let allowed = spec.ratio * spent.calls as f64 + floor;
        let granted = (spent.extras + 1) as f64 <= allowed;
        if granted {
            ring.at(now).extras += 1;
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(budget: &Budget, spec: &BudgetSpec, now: Time) -> usize {
        (0..1_000).filter(|_| budget.withdraw(now, spec)).count()
    }

    #[test]
    fn extras_never_exceed_their_share_of_the_calls() {
        let (budget, spec) = (Budget::default(), BudgetSpec::ratio(0.1).min_per_second(0));
        for _ in 0..200 {
            budget.call(Time::ZERO);
        }
        assert_eq!(granted(&budget, &spec, Time::ZERO), 20);
    }

    #[test]
    fn a_quiet_service_still_has_its_minimum() {
        let (budget, spec) = (Budget::default(), BudgetSpec::ratio(0.0).min_per_second(2));
        assert_eq!(granted(&budget, &spec, Time::ZERO), 20);
        let later = Time::ZERO.after(WINDOW);
        assert_eq!(granted(&budget, &spec, later), 20);
    }
}

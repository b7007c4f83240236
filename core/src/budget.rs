//! A cap on extra load: of all calls in the last ten seconds, only so many may be repeated.
//!
//! In any window of ten seconds, extras never exceed `ratio` × calls + `min_per_second` × 10 (the idea is finagle's
//! retry budget). A pipeline has one for its retries and one for its hedges.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Time;
use crate::estimate::ring::{Counts, Ring, SLICES};

const WINDOW: Duration = Duration::from_secs(10);

/// How much extra load a policy may cause.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct BudgetSpec {
    /// Extras per call, 0.0 to 1.0. Default 0.2.
    #[cfg_attr(feature = "serde", serde(default = "default_ratio"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::ShareOrZero"))]
    pub ratio: f64,
    /// Extras a second that are always allowed, so that a quiet service can repeat at all. Default 1.
    #[cfg_attr(feature = "serde", serde(default = "default_min_per_second"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::CountOrZero"))]
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

/// The running account. Counting a call is one atomic addition; the window is only summed when somebody wants an extra.
#[derive(Debug)]
pub struct Budget {
    /// Calls that the ring has not been told of: the second they were made in, and how many, in 32 bits each.
    fresh: AtomicU64,
    ring: Mutex<Ring<Spent>>,
}

const COUNT_BITS: u32 = 32;
const SLICE_MICROS: u64 = WINDOW.as_micros() as u64 / SLICES as u64;

impl Default for Budget {
    fn default() -> Self {
        Self { fresh: AtomicU64::new(0), ring: Mutex::new(Ring::new(WINDOW)) }
    }
}

impl Budget {
    /// Counts a call.
    #[inline]
    pub fn call(&self, now: Time) {
        if slice_of(now) > self.fresh.load(Ordering::Relaxed) >> COUNT_BITS {
            self.turn_to(now);
        }
        // A thread that is late counts into a newer slice than its own, by a moment.
        self.fresh.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes one extra if the budget has it.
    pub fn withdraw(&self, now: Time, spec: &BudgetSpec) -> bool {
        let mut ring = self.ring.lock();
        self.tell(&mut ring, now);
        let spent = ring.sum(now);
        let floor = f64::from(spec.min_per_second) * WINDOW.as_secs_f64();
        let allowed = spec.ratio * spent.calls as f64 + floor;
        let granted = (spent.extras + 1) as f64 <= allowed;
        if granted {
            ring.at(now).extras += 1;
        }
        granted
    }

    #[cold]
    fn turn_to(&self, now: Time) {
        self.tell(&mut self.ring.lock(), now);
    }

    /// Tells the ring what it does not know, and starts counting in the slice of `now`.
    fn tell(&self, ring: &mut Ring<Spent>, now: Time) {
        let slice = slice_of(now).max(self.fresh.load(Ordering::Relaxed) >> COUNT_BITS);
        let word = self.fresh.swap(slice << COUNT_BITS, Ordering::Relaxed);
        if let Some(spent) = ring.slice(word >> COUNT_BITS) {
            spent.calls += word & u64::from(u32::MAX);
        }
    }
}

/// The slice of the ring that a moment belongs to; it fits 32 bits for 136 years.
const fn slice_of(now: Time) -> u64 {
    (now.as_micros() / SLICE_MICROS) & u32::MAX as u64
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
    fn calls_are_counted_for_as_long_as_the_window() {
        let (budget, spec) = (Budget::default(), BudgetSpec::ratio(1.0).min_per_second(0));
        let at = |millis: u64| Time::from_micros(millis * 1_000);
        for second in 0..30 {
            (0..5).for_each(|i| budget.call(at(second * 1_000 + i)));
        }
        budget.call(at(28_999)); // a thread that is late
        assert_eq!(granted(&budget, &spec, at(29_999)), 51, "five a second for ten seconds, and the late one");
        assert_eq!(granted(&budget, &spec, at(40_000)), 0, "all is forgotten");
    }

    #[test]
    fn threads_that_count_lose_nothing() {
        let (budget, spec) = (Budget::default(), BudgetSpec::ratio(1.0).min_per_second(0));
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| (0..9_000).for_each(|i| budget.call(Time::from_micros(i * 1_000))));
            }
        });
        let now = Time::from_micros(9_000_000);
        assert_eq!((0..40_000).filter(|_| budget.withdraw(now, &spec)).count(), 36_000);
    }

    #[test]
    fn a_quiet_service_still_has_its_minimum() {
        let (budget, spec) = (Budget::default(), BudgetSpec::ratio(0.0).min_per_second(2));
        assert_eq!(granted(&budget, &spec, Time::ZERO), 20);
        let later = Time::ZERO.after(WINDOW);
        assert_eq!(granted(&budget, &spec, later), 20);
    }
}

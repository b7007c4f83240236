//! The budget of retries and hedges: a cap on the load that a policy adds.
//!
//! In any window of ten seconds, extra attempts never exceed `ratio` × calls + `min_per_second` × 10, as in finagle's retry
//! budget. A pipeline has one budget for retries and one for hedges, or shares them with the pipelines of the other replicas
//! (`scope = "fleet"`, [`crate::tally`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Time;
use crate::estimate::ring::{Counts, Ring, SLICES};
use crate::store::StateScope;
use crate::tally::Allowance;

/// The window of every budget.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

/// Configures how many extra attempts (retries or hedges) a policy may make.
///
/// # Examples
/// ```
/// use std::cell::Cell;
///
/// use phalanx::policy::BudgetSpec;
/// use phalanx::{Policy, ResilienceModule, RetrySpec};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let retry = RetrySpec::attempts(2).budget(BudgetSpec::ratio(0.1).min_per_second(0));
/// let module = ResilienceModule::in_memory().policy(Policy::named("vendor").retry(retry)).build()?;
/// let attempts = Cell::new(0);
/// for _ in 0..100 {
///     let call = || async {
///         attempts.set(attempts.get() + 1);
///         Err::<(), _>(std::io::Error::other("down"))
///     };
///     let _ = module.run("vendor", (), call).await;
/// }
/// assert!((101..=110).contains(&attempts.get()), "100 calls and at most a tenth more: {attempts:?}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct BudgetSpec {
    /// Extra attempts per call, 0.0 to 1.0. Default 0.2.
    #[cfg_attr(feature = "serde", serde(default = "default_ratio"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::ShareOrZero"))]
    pub ratio: f64,
    /// Extra attempts a second that are always allowed, so that a quiet service can retry at all. Default 1.
    #[cfg_attr(feature = "serde", serde(default = "default_min_per_second"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::CountOrZero"))]
    pub min_per_second: u32,
    /// Whether all replicas draw from one budget, or each has its own. A shared budget counts the calls of every replica that
    /// asks for an extra attempt; while Redis is away, each replica has its share. Default `process`.
    #[cfg_attr(feature = "serde", serde(default = "StateScope::process"))]
    pub scope: StateScope,
}

const fn default_ratio() -> f64 {
    0.2
}

const fn default_min_per_second() -> u32 {
    1
}

impl Default for BudgetSpec {
    fn default() -> Self {
        Self { ratio: default_ratio(), min_per_second: default_min_per_second(), scope: StateScope::Process }
    }
}

impl BudgetSpec {
    /// Allows extra attempts up to this share of the calls.
    pub fn ratio(ratio: f64) -> Self {
        Self { ratio, ..Self::default() }
    }

    /// Sets the extra attempts a second that are always allowed.
    #[must_use]
    pub const fn min_per_second(mut self, extras: u32) -> Self {
        self.min_per_second = extras;
        self
    }

    /// Sets whether all replicas draw from one budget.
    #[must_use]
    pub const fn scope(mut self, scope: StateScope) -> Self {
        self.scope = scope;
        self
    }

    /// Returns how many extra attempts a window may hold.
    pub(crate) fn allowance(&self) -> Allowance {
        Allowance { per_call: self.ratio, floor: f64::from(self.min_per_second) * WINDOW.as_secs_f64() }
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

/// The counts of a budget. Counting a call is one atomic addition; the window is summed only for an extra attempt.
#[derive(Debug)]
pub struct Budget {
    /// Calls that are not in the ring yet: their slice and their number, in 32 bits each.
    pending: AtomicU64,
    ring: Mutex<Ring<Spent>>,
}

const COUNT_BITS: u32 = 32;
const SLICE_MICROS: u64 = WINDOW.as_micros() as u64 / SLICES as u64;

impl Default for Budget {
    fn default() -> Self {
        Self { pending: AtomicU64::new(0), ring: Mutex::new(Ring::new(WINDOW)) }
    }
}

impl Budget {
    /// Counts a call.
    #[inline]
    pub fn call(&self, now: Time) {
        if slice_of(now) > self.pending.load(Ordering::Relaxed) >> COUNT_BITS {
            self.start_slice(now);
        }
        // A thread with an old reading of the clock counts into the newer slice.
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes one extra attempt, if the budget allows it.
    pub fn withdraw(&self, now: Time, spec: &BudgetSpec) -> bool {
        let mut ring = self.ring.lock();
        self.flush(&mut ring, now);
        let spent = ring.sum(now);
        let floor = f64::from(spec.min_per_second) * WINDOW.as_secs_f64();
        let allowed = spec.ratio * spent.calls as f64 + floor;
        let granted = (spent.extras + 1) as f64 <= allowed;
        if granted {
            ring.at(now).extras += 1;
        }
        granted
    }

    /// Takes the calls of the window out of the budget, slice by slice with the time at which the slice began: they are
    /// counted in the tally of the fleet from then on.
    pub(crate) fn hand_over(&self, now: Time, mut to: impl FnMut(Time, u64)) {
        let mut ring = self.ring.lock();
        self.flush(&mut ring, now);
        ring.at(now);
        let (newest, oldest) = (ring.newest(), (ring.newest() + 1).saturating_sub(SLICES as u64));
        for slice in oldest..=newest {
            let calls = ring.slice(slice).map_or(0, |spent| std::mem::take(&mut spent.calls));
            if calls > 0 {
                to(Time::from_micros(slice.saturating_mul(SLICE_MICROS)), calls);
            }
        }
    }

    #[cold]
    fn start_slice(&self, now: Time) {
        self.flush(&mut self.ring.lock(), now);
    }

    /// Moves pending calls into the ring and starts counting in the slice of `now`.
    fn flush(&self, ring: &mut Ring<Spent>, now: Time) {
        let slice = slice_of(now).max(self.pending.load(Ordering::Relaxed) >> COUNT_BITS);
        let word = self.pending.swap(slice << COUNT_BITS, Ordering::Relaxed);
        if let Some(spent) = ring.slice(word >> COUNT_BITS) {
            spent.calls += word & u64::from(u32::MAX);
        }
    }
}

/// Returns the slice of the ring; it fits into 32 bits for 136 years.
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
    fn extra_attempts_never_exceed_their_share_of_the_calls() {
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
        budget.call(at(28_999)); // a thread with an old reading
        assert_eq!(granted(&budget, &spec, at(29_999)), 51, "five a second for ten seconds, and the late call");
        assert_eq!(granted(&budget, &spec, at(40_000)), 0, "the window has moved on");
    }

    #[test]
    fn threads_that_count_at_once_lose_nothing() {
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
    fn calls_are_handed_over_once_with_the_time_of_their_slice() {
        let budget = Budget::default();
        let at = |millis: u64| Time::from_micros(millis * 1_000);
        for millis in [0, 1_000, 3_500, 3_999, 11_000] {
            budget.call(at(millis));
        }
        let handed_over = |now| {
            let mut all = Vec::new();
            budget.hand_over(now, |at, calls| all.push((at, calls)));
            all
        };
        assert_eq!(handed_over(at(11_500)), [(at(3_000), 2), (at(11_000), 1)], "the others have left the window");
        assert_eq!(handed_over(at(11_500)), []);
        budget.call(at(11_600));
        assert_eq!(handed_over(at(12_000)), [(at(11_000), 1)]);
    }

    #[test]
    fn a_quiet_service_has_its_minimum() {
        let (budget, spec) = (Budget::default(), BudgetSpec::ratio(0.0).min_per_second(2));
        assert_eq!(granted(&budget, &spec, Time::ZERO), 20);
        let later = Time::ZERO.after(WINDOW);
        assert_eq!(granted(&budget, &spec, later), 20);
    }
}

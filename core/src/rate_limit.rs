//! Token bucket in exact integers.
//!
//! The rate `permits / per` is reduced to lowest terms: every microsecond adds `gain` units, one permit costs `price`
//! units, the bucket holds at most `capacity`. No division on the way in, no rounding anywhere, so nothing drifts and
//! the same arithmetic in Lua's doubles gives the same answers (all numbers stay below 2^53).
//!
//! A caller that may wait takes its permit at once and sleeps until it would have been there: the level goes below
//! zero, which is the queue. Order is therefore fair by construction. Who gives up gives back, unless others wait behind.
//!
//! A clock that steps back mints nothing: refill is frozen for at most [`MAX_BACKSTEP`], then starts again from the
//! new reading. A clock that leaps forward fills the bucket once.

use std::time::Duration;

use crate::clock::{Time, micros};

/// How far a clock may step back before the bucket takes the new reading for the truth.
pub const MAX_BACKSTEP: Duration = Duration::from_secs(1);

/// The largest number of units: what a double still counts exactly.
pub(crate) const MAX_UNITS: u64 = 1 << 53;

/// How many calls may start, and how fast.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct RateLimitSpec {
    /// Permits that are added every `per`; at least 1.
    pub permits: u64,
    /// The time in which `permits` are added; more than zero.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub per: Duration,
    /// How many permits can be saved up. Default: `permits`.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub burst: Option<u64>,
    /// How long a call may wait for its permit. Default: not at all.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    pub max_wait: Option<Duration>,
}

impl RateLimitSpec {
    /// `permits` every `per`.
    pub const fn new(permits: u64, per: Duration) -> Self {
        Self { permits, per, burst: None, max_wait: None }
    }

    /// `permits` a second.
    pub const fn per_second(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(1))
    }

    /// `permits` a minute.
    pub const fn per_minute(permits: u64) -> Self {
        Self::new(permits, Duration::from_secs(60))
    }

    /// How many permits can be saved up.
    #[must_use]
    pub const fn burst(mut self, permits: u64) -> Self {
        self.burst = Some(permits);
        self
    }

    /// How long a call may wait for its permit.
    #[must_use]
    pub const fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }

    /// How many permits the bucket holds.
    pub fn capacity(&self) -> u64 {
        self.burst.unwrap_or(self.permits)
    }
}

/// A rate in lowest terms: what the arithmetic runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units added each microsecond.
    pub gain: u64,
    /// Units of one permit.
    pub price: u64,
    /// Units the bucket holds.
    pub capacity: u64,
}

impl Rate {
    /// The rate of a valid spec. Nonsense that a validated policy cannot contain becomes the nearest sense.
    pub fn of(spec: &RateLimitSpec) -> Self {
        let (permits, per) = (spec.permits.max(1), micros(spec.per).max(1));
        let divisor = greatest_common_divisor(permits, per);
        let price = per / divisor;
        Self { gain: permits / divisor, price, capacity: spec.capacity().max(1).saturating_mul(price).min(MAX_UNITS) }
    }

    /// Whole microseconds in which `units` are added, rounded up.
    const fn time_for(self, units: u64) -> Duration {
        Duration::from_micros(units.div_ceil(self.gain))
    }
}

const fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// The answer to a call that wants permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// It has them: now, or reserved for after `wait`.
    Granted {
        /// How long to wait before using them.
        wait: Duration,
    },
    /// It has not, and nothing was taken.
    Refused {
        /// When they would be there; never, if the bucket cannot hold so many.
        until: Time,
    },
}

/// What is in a bucket, undivided: most callers never look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Units saved up; below zero, units promised to waiters.
    pub units: i64,
    /// Units of one permit.
    pub price: u64,
}

impl Level {
    /// Whole permits.
    pub fn permits(self) -> u64 {
        u64::try_from(self.units).unwrap_or(0) / self.price.max(1)
    }
}

/// The machine: a level and the moment it was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Units saved up; below zero, units promised to waiters.
    level: i64,
    at: Time,
}

impl Bucket {
    /// A full bucket.
    pub const fn full(now: Time, rate: Rate) -> Self {
        Self { level: rate.capacity as i64, at: now }
    }

    /// Takes `cost` permits, or reserves them if they will be there within `max_wait`.
    #[inline]
    pub fn take(&mut self, now: Time, rate: Rate, cost: u32, max_wait: Duration) -> Take {
        self.refill(now, rate);
        let need = u64::from(cost).saturating_mul(rate.price);
        if need > rate.capacity {
            return Take::Refused { until: Time::NEVER };
        }
        let level = self.level - need as i64;
        if level >= 0 || need == 0 {
            self.level = level;
            return Take::Granted { wait: Duration::ZERO };
        }
        let wait = rate.time_for(level.unsigned_abs());
        if wait <= max_wait {
            self.level = level;
            return Take::Granted { wait };
        }
        Take::Refused { until: now.after(wait) }
    }

    /// Gives permits back that were taken for `due` and not used. A reservation in the middle of the queue lapses instead:
    /// who waits behind it keeps his time, and giving it to a newcomer would let him overtake and start two at once.
    pub fn refund(&mut self, now: Time, rate: Rate, cost: u32, due: Time) {
        self.refill(now, rate);
        let queue = u64::try_from(-self.level).unwrap_or(0);
        if queue > 0 && due < self.at.after(rate.time_for(queue)) {
            return;
        }
        let units = u64::from(cost).saturating_mul(rate.price).min(MAX_UNITS);
        self.level = (self.level + units as i64).min(rate.capacity as i64);
    }

    /// Whole permits that could be taken now.
    pub fn available(&mut self, now: Time, rate: Rate) -> u64 {
        self.refill(now, rate);
        self.level(rate).permits()
    }

    /// What it held when it was last looked at.
    pub const fn level(&self, rate: Rate) -> Level {
        Level { units: self.level, price: rate.price }
    }

    /// Whether it holds all it can: as good as one that was never used.
    pub fn is_full(&mut self, now: Time, rate: Rate) -> bool {
        self.refill(now, rate);
        self.level == rate.capacity as i64
    }

    /// Keeps the permits there are when the rate changes; what no longer fits is lost.
    pub fn retune(&mut self, now: Time, old: Rate, new: Rate) {
        self.refill(now, old);
        // Rounded down: a fraction of a unit is lost, never minted.
        let level = (i128::from(self.level) * i128::from(new.price)).div_euclid(i128::from(old.price));
        let floor = -(MAX_UNITS as i128);
        self.level = level.clamp(floor, i128::from(new.capacity)) as i64;
    }

    #[inline]
    fn refill(&mut self, now: Time, rate: Rate) {
        if now < self.at {
            if self.at.since(now) > MAX_BACKSTEP {
                self.at = now;
            }
            return;
        }
        let gained = micros(now.since(self.at)).saturating_mul(rate.gain);
        let room = (rate.capacity as i64 - self.level).unsigned_abs();
        self.level += gained.min(room) as i64;
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Take = Take::Granted { wait: Duration::ZERO };

    fn at(micros: u64) -> Time {
        Time::from_micros(micros)
    }

    fn take(bucket: &mut Bucket, now: Time, rate: Rate) -> bool {
        bucket.take(now, rate, 1, Duration::ZERO) == NOW
    }

    #[test]
    fn it_starts_full_and_then_gives_the_rate() {
        let rate = Rate::of(&RateLimitSpec::per_second(100).burst(3));
        let mut bucket = Bucket::full(at(0), rate);
        assert_eq!((0..9).filter(|_| take(&mut bucket, at(0), rate)).count(), 3);
        assert!(!take(&mut bucket, at(9_999), rate));
        assert!(take(&mut bucket, at(10_000), rate));
    }

    #[test]
    fn a_refusal_says_when_to_come_back_and_is_right() {
        let rate = Rate::of(&RateLimitSpec::new(3, Duration::from_secs(1)).burst(1));
        let mut bucket = Bucket::full(at(0), rate);
        assert!(take(&mut bucket, at(0), rate));
        let refused = bucket.take(at(0), rate, 1, Duration::ZERO);
        assert_eq!(refused, Take::Refused { until: at(333_334) });
        assert!(!take(&mut bucket, at(333_333), rate));
        assert!(take(&mut bucket, at(333_334), rate));
    }

    #[test]
    fn a_third_of_a_permit_is_never_lost() {
        // 3 a second does not divide a second into whole microseconds; after an hour it must still be exact.
        let rate = Rate::of(&RateLimitSpec::per_second(3).burst(2));
        let mut bucket = Bucket::full(at(0), rate);
        let looks = (0..=3_600_000_000_u64).step_by(1_000);
        let taken = looks.filter(|t| take(&mut bucket, at(*t), rate)).count();
        assert_eq!(taken, 2 + 3 * 3_600);
    }

    #[test]
    fn waiting_calls_are_served_in_order_one_gap_apart() {
        let rate = Rate::of(&RateLimitSpec::per_second(10).burst(1));
        let mut bucket = Bucket::full(at(0), rate);
        let patience = Duration::from_millis(250);
        let waits = [(); 4].map(|()| bucket.take(at(0), rate, 1, patience));
        let after = |millis| Take::Granted { wait: Duration::from_millis(millis) };
        let refused = Take::Refused { until: at(300_000) };
        assert_eq!(waits, [after(0), after(100), after(200), refused]);
    }

    #[test]
    fn a_cost_above_the_burst_is_refused_for_good() {
        let rate = Rate::of(&RateLimitSpec::per_second(10));
        let never = Bucket::full(at(0), rate).take(at(0), rate, 11, Duration::from_secs(60));
        assert_eq!(never, Take::Refused { until: Time::NEVER });
    }

    #[test]
    fn a_call_that_costs_nothing_passes_even_behind_waiters() {
        let rate = Rate::of(&RateLimitSpec::per_second(10).burst(1));
        let mut bucket = Bucket::full(at(0), rate);
        for _ in 0..3 {
            bucket.take(at(0), rate, 1, Duration::from_secs(1));
        }
        assert_eq!(bucket.take(at(0), rate, 0, Duration::ZERO), NOW);
    }

    #[test]
    fn a_reservation_lapses_if_others_wait_behind_it_and_comes_back_if_not() {
        let rate = Rate::of(&RateLimitSpec::per_second(1).burst(1));
        let mut bucket = Bucket::full(at(0), rate);
        let patience = Duration::from_secs(9);
        let due = [0, 1, 2, 3].map(|second| at(second * 1_000_000));
        for _ in 0..4 {
            bucket.take(at(0), rate, 1, patience);
        }
        let next = |bucket: &mut Bucket| bucket.clone().take(at(0), rate, 1, patience);
        bucket.refund(at(0), rate, 1, due[1]);
        assert_eq!(next(&mut bucket), Take::Granted { wait: Duration::from_secs(4) });
        bucket.refund(at(0), rate, 1, due[3]);
        assert_eq!(next(&mut bucket), Take::Granted { wait: Duration::from_secs(3) });
    }

    #[test]
    fn a_refund_never_overfills() {
        let rate = Rate::of(&RateLimitSpec::per_second(10));
        let mut bucket = Bucket::full(at(0), rate);
        bucket.refund(at(0), rate, u32::MAX, at(0));
        assert_eq!(bucket.available(at(0), rate), 10);
    }

    #[test]
    fn a_changed_rate_keeps_the_permits_that_fit() {
        let (old, new) = (RateLimitSpec::per_second(100), RateLimitSpec::per_minute(30));
        let (old, new) = (Rate::of(&old), Rate::of(&new));
        let mut bucket = Bucket::full(at(0), old);
        bucket.retune(at(0), old, new);
        assert_eq!(bucket.available(at(0), new), 30);
        assert!(take(&mut bucket, at(0), new));
        bucket.retune(at(0), new, old);
        assert_eq!(bucket.available(at(0), old), 29);
    }

    #[test]
    fn a_small_step_back_freezes_the_refill_and_a_large_one_restarts_it() {
        let rate = Rate::of(&RateLimitSpec::per_second(10).burst(1));
        let mut bucket = Bucket::full(at(5_000_000), rate);
        assert!(take(&mut bucket, at(5_000_000), rate));
        assert!(!take(&mut bucket, at(4_500_000), rate), "nothing minted");
        assert!(take(&mut bucket, at(5_100_000), rate), "the old anchor holds");
        assert!(!take(&mut bucket, at(1_000_000), rate), "nothing minted");
        assert!(take(&mut bucket, at(1_100_000), rate), "anchored anew");
    }

    proptest! {
        /// FAULTS I-1 and I-2: whatever the clock does, no more is admitted than burst + rate × the distance it
        /// moved forward; and a quiet bucket is full again.
        #[test]
        fn never_more_than_burst_plus_rate_times_time(
            permits in 1_u64..2_000, per in 1_u64..5_000_000, burst in 1_u64..500,
            steps in proptest::collection::vec((-3_000_000_i64..3_000_000, 1_u32..4), 1..300),
        ) {
            let spec = RateLimitSpec::new(permits, Duration::from_micros(per)).burst(burst);
            let rate = Rate::of(&spec);
            let mut now = 10_000_000_000_u64;
            let mut bucket = Bucket::full(at(now), rate);
            let (mut forward, mut admitted) = (0_u128, 0_u128);
            for (step, cost) in steps {
                now = now.saturating_add_signed(step);
                forward += u128::from(step.max(0) as u64);
                if bucket.take(at(now), rate, cost, Duration::ZERO) == NOW {
                    admitted += u128::from(cost);
                }
                prop_assert!(admitted * u128::from(per) <= u128::from(burst * per) + u128::from(permits) * forward);
            }
            let quiet = rate.time_for(2 * rate.capacity) + MAX_BACKSTEP;
            prop_assert!(bucket.is_full(at(now).after(quiet), rate));
        }
    }
}

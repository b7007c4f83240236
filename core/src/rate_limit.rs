//! Token bucket in exact integers.
//!
//! The rate `permits / per` is reduced to lowest terms: every microsecond adds `gain` units, one permit costs `price`
//! units, the bucket holds at most `capacity`. No division on the way in, no rounding anywhere, so nothing drifts and
//! the same arithmetic in Lua's doubles gives the same answers (no number leaves ±2^53).
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

/// The largest number of units a bucket holds or owes: the distance between the two is still exact in a double.
pub const MAX_UNITS: u64 = 1 << 52;

/// How many calls may start, and how fast.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct RateLimitSpec {
    /// Permits that are added every `per`; at least 1.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Calls"))]
    pub permits: u64,
    /// The time in which `permits` are added; more than zero.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub per: Duration,
    /// How many permits can be saved up. Default: `permits`.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Calls"))]
    pub burst: Option<u64>,
    /// How long a call may wait for its permit. Default: not at all.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
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

    /// Half of the time that one permit takes: how far apart two moments may lie and still mean the same permit. A moment
    /// that was translated from one clock to another is off by some microseconds.
    pub const fn slack(self) -> Duration {
        Duration::from_micros(self.price / self.gain.saturating_mul(2))
    }

    /// What `level` units of this rate are by the `new` one. Whole permits stay exactly, as far as they fit; of the
    /// fraction something is lost and nothing minted. In doubles and in this order, as the Lua port does it.
    pub fn convert(self, level: i64, new: Self) -> i64 {
        let (level, old_price, price) = (level as f64, self.price as f64, new.price as f64);
        let whole = (level / old_price).floor();
        let part = level - whole * old_price;
        let level = whole * price + ((part / old_price * price).floor() - 1.0).max(0.0);
        level.min(new.capacity as f64).max(-(MAX_UNITS as f64)) as i64
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
    Rejected {
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
            return Take::Rejected { until: Time::NEVER };
        }
        let level = self.level - need as i64;
        if level >= 0 || need == 0 {
            self.level = level;
            return Take::Granted { wait: Duration::ZERO };
        }
        let wait = rate.time_for(level.unsigned_abs());
        if wait <= max_wait && level.unsigned_abs() <= MAX_UNITS {
            self.level = level;
            return Take::Granted { wait };
        }
        Take::Rejected { until: now.after(wait) }
    }

    /// Gives permits back that were taken for `due` and not used. A reservation in the middle of the queue lapses instead:
    /// who waits behind it keeps his time, and giving it to a newcomer would let him overtake and start two at once. It
    /// is the last of the queue if the queue ends less than [`Rate::slack`] after `due`.
    pub fn refund(&mut self, now: Time, rate: Rate, cost: u32, due: Time) {
        self.refill(now, rate);
        let queue = u64::try_from(-self.level).unwrap_or(0);
        if queue > 0 && due.after(rate.slack()) < self.at.after(rate.time_for(queue)) {
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
        self.level = old.convert(self.level, new);
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
mod tests;

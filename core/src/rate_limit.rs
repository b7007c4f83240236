//! The rate limit: a token bucket in exact integers.
//!
//! The rate `permits / per` is reduced to lowest terms: every microsecond adds `gain` units, one permit costs `price`
//! units, and the bucket holds at most `capacity` units. Nothing is rounded, so nothing drifts, and the same arithmetic in
//! Lua's doubles gives the same results (no number leaves ±2^53).
//!
//! A caller that may wait takes its permit at once and sleeps until the permit is due. The level then goes below zero: that
//! is the queue, and callers pass in the order in which they came. A caller that stops waiting gives its place back: at
//! once if it is the last of the queue, otherwise as soon as all callers behind it have left too. Permits that are refunded
//! later lose what time has refilled since (`refund.rs`).
//!
//! Work that is done is charged whether its permits are there or not: what is missing is a debt, a part of the queue for
//! which no caller waits. Callers that come later wait behind it, or are rejected; refunds pay it off.
//!
//! A policy may have several limits, of which a call needs all (`limits.rs`, `limit_set.rs`).
//!
//! A replica may lease a block of permits and grant them by itself (`holder.rs`); the bucket leaves room for them until the
//! lease ends (`leases.rs`).
//!
//! A clock that steps back adds no permits: the refill stops for at most [`MAX_BACKSTEP`] and then starts again from the
//! new time. A clock that leaps forward fills the bucket once.

mod by_hand;
mod holder;
#[cfg(all(test, phalanx_model))]
mod lease_models;
#[cfg(all(test, not(phalanx_model)))]
mod lease_tests;
mod leases;
mod limit_set;
mod limits;
mod refund;
mod spec;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(crate) use self::by_hand::ChargedByHand;
pub use self::holder::{BlockCell, ClosedBlock, LeaseHolder, LeaseTally, Spent};
pub use self::leases::{Drawn, MIN_BLOCK};
pub use self::limit_set::{BucketPart, Dues, SetGrant, SetLimit, SetVerdict};
pub use self::limits::{
    LimitCost, LimitKey, LimitSpec, Limits, MAX_LIMIT_NAME_BYTES, MAX_LIMITS, MissingTag, RateOverride, RateResolver,
    SHORT_FORM,
};
pub use self::refund::{Abandoned, Line};
pub use self::spec::{Consistency, RateLimitSpec};

use self::leases::Leases;

use crate::clock::{Time, micros};

/// How far a clock may step back before the bucket continues from the new time.
pub const MAX_BACKSTEP: Duration = Duration::from_secs(1);

/// The most units that a bucket holds, or that are reserved beyond its level: both together are exact in a double.
pub const MAX_UNITS: u64 = 1 << 52;

/// A rate in lowest terms, as the arithmetic uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units added every microsecond.
    pub gain: u64,
    /// Units of one permit.
    pub price: u64,
    /// The most units that the bucket holds.
    pub capacity: u64,
}

impl Rate {
    /// Computes the rate of a spec. Values that validation rejects are replaced by the nearest valid ones.
    pub fn of(spec: &RateLimitSpec) -> Self {
        let (permits, per) = (spec.permits.max(1), micros(spec.per).max(1));
        let divisor = greatest_common_divisor(permits, per);
        let price = per / divisor;
        Self { gain: permits / divisor, price, capacity: spec.capacity().max(1).saturating_mul(price).min(MAX_UNITS) }
    }

    /// Returns the most permits that the bucket holds: nothing can cost more.
    pub const fn max_cost(self) -> u64 {
        self.capacity / self.price
    }

    /// Returns the time in which `units` are added, rounded up to whole microseconds.
    pub const fn time_for(self, units: u64) -> Duration {
        Duration::from_micros(units.div_ceil(self.gain))
    }

    /// Returns half of the time that one permit takes. Two times less than this apart mean the same permit: a time that was
    /// converted from one clock to another is off by some microseconds.
    pub const fn slack(self) -> Duration {
        Duration::from_micros(self.price / self.gain.saturating_mul(2))
    }

    /// Converts a level of this rate to the `new` one. Whole permits are kept exactly, as far as they fit; a fraction is
    /// rounded down. In doubles and in this order, as in the Lua port.
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

/// The result of taking permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// The permits are granted: now, or reserved for after `wait`.
    Granted {
        /// The time to wait before using them.
        wait: Duration,
    },
    /// The permits are not granted, and nothing was taken.
    Rejected {
        /// When they would be available; [`Time::NEVER`] if the bucket cannot hold as many.
        until: Time,
    },
}

/// The level of a bucket, in units: the division is left to callers that need permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Units available; below zero, units reserved by waiters.
    pub units: i64,
    /// Units of one permit.
    pub price: u64,
}

impl Level {
    /// Returns the whole permits.
    pub fn permits(self) -> u64 {
        u64::try_from(self.units).unwrap_or(0) / self.price.max(1)
    }
}

/// A token bucket: a level, and the time of that level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Units available; below zero, units reserved by waiters.
    level: i64,
    at: Time,
    abandoned: Abandoned,
    /// Units at the end of the queue for which no caller waits.
    debt: u64,
    leases: Leases,
}

impl Bucket {
    /// Creates a full bucket.
    pub fn full(now: Time, rate: Rate) -> Self {
        let (abandoned, leases) = (Abandoned::default(), Leases::default());
        Self { level: rate.capacity as i64, at: now, abandoned, debt: 0, leases }
    }

    /// Takes `cost` permits, or reserves them if they will be available within `max_wait`.
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
            self.leases.resume_after(need, rate);
            return Take::Granted { wait: Duration::ZERO };
        }
        let wait = rate.time_for(level.unsigned_abs());
        if wait <= max_wait && level.unsigned_abs() <= MAX_UNITS {
            self.level = level;
            self.debt = 0; // the caller waits behind it
            self.leases.resume_after(need, rate);
            return Take::Granted { wait };
        }
        self.leases.pause_for(need, self.at.as_micros(), rate);
        Take::Rejected { until: now.after(wait) }
    }

    /// Leases up to `want` permits to a replica, which may spend them until nine tenths of [`Drawn::lasts`] have passed since
    /// it sent its request. A level below zero, or draws that are paused for a large cost, lease nothing.
    pub fn draw(&mut self, now: Time, rate: Rate, want: u64) -> Drawn {
        self.refill(now, rate);
        let at = self.at.as_micros();
        let level = if self.leases.is_paused(at) { 0 } else { u64::try_from(self.level).unwrap_or(0) };
        let permits = want.min(level / rate.price);
        self.level -= (permits * rate.price) as i64;
        self.leases.add(permits, at, rate)
    }

    /// Takes back a block of `size` permits of which `unspent` were not spent, and will not be. After the end of the lease
    /// there is nothing to take back: its room is refilled.
    pub fn close(&mut self, now: Time, rate: Rate, ends: Time, size: u64, unspent: u64) {
        self.refill(now, rate);
        let size = self.leases.close(ends, size, self.at.as_micros());
        let credit = unspent.min(size).saturating_mul(rate.price).min(MAX_UNITS);
        let most = rate.capacity as i64 - self.leases.units(rate);
        self.level = (self.level + credit as i64).min(most).max(self.level);
        self.debt = self.debt.min(self.queue());
    }

    /// Takes permits for work that is done. What is not there is a debt.
    pub fn charge(&mut self, now: Time, rate: Rate, permits: u64) {
        self.refill(now, rate);
        let units = permits.saturating_mul(rate.price).min(2 * MAX_UNITS);
        self.level = (self.level - units as i64).max(-(MAX_UNITS as i64));
        self.debt = (self.debt + units).min(self.queue());
    }

    /// Gives back permits that were due at `due` and not used: what has not been refilled since, or the place in the
    /// queue. A place is the last of the queue if the queue of waiters ends less than [`Rate::slack`] after `due`; one in the
    /// middle is given back when all behind it have been, because the waiters there keep their times. Permits that were due
    /// earlier pay off debt, as far as no caller waits behind it.
    pub fn refund(&mut self, now: Time, rate: Rate, cost: u32, due: Time) {
        self.refill(now, rate);
        let line = Line { units: self.queue(), debt: self.debt, abandoned: self.abandoned };
        let (credit, line) = rate.refund(line, self.at, cost, due);
        let most = rate.capacity as i64 - self.leases.units(rate);
        self.level = (self.level + credit as i64).min(most).max(self.level);
        (self.debt, self.abandoned) = (line.debt, line.abandoned);
        if self.level >= 0 {
            (self.debt, self.abandoned) = (0, Abandoned::default());
        }
    }

    /// Returns the units below zero: of waiters, and of debt.
    fn queue(&self) -> u64 {
        u64::try_from(-self.level).unwrap_or(0)
    }

    /// Returns the whole permits that could be taken now.
    pub fn available(&mut self, now: Time, rate: Rate) -> u64 {
        self.refill(now, rate);
        self.level(rate).permits()
    }

    /// Returns the level at the time of the last operation.
    pub const fn level(&self, rate: Rate) -> Level {
        Level { units: self.level, price: rate.price }
    }

    /// Returns whether the bucket is full, and therefore as good as new.
    pub fn is_full(&self, now: Time, rate: Rate) -> bool {
        let mut refilled = *self;
        refilled.refill(now, rate);
        refilled.level == rate.capacity as i64
    }

    /// Converts the level to another rate; permits that no longer fit are lost, and so are abandoned places. Leased permits
    /// have to fit too, so that the level may fall below zero.
    pub fn retune(&mut self, now: Time, old: Rate, new: Rate) {
        self.refill(now, old);
        let only_debt = self.debt > 0 && self.debt == self.queue();
        let most = new.capacity as i64 - self.leases.units(new);
        self.level = old.convert(self.level, new).min(most).max(-(MAX_UNITS as i64));
        self.abandoned = Abandoned::default();
        self.debt = if only_debt { self.queue() } else { 0 };
    }

    #[inline]
    fn refill(&mut self, now: Time, rate: Rate) {
        if now < self.at {
            if self.at.since(now) > MAX_BACKSTEP {
                self.at = now;
                self.leases.anchor(now.as_micros());
            }
            return;
        }
        let before = self.level;
        if self.leases.is_empty() {
            let gained = micros(now.since(self.at)).saturating_mul(rate.gain);
            let room = (rate.capacity as i64 - self.level).unsigned_abs();
            self.level += gained.min(room) as i64;
        } else {
            self.level = self.leases.refill(self.level, self.at.as_micros(), now.as_micros(), rate);
        }
        self.at = now;
        if self.abandoned.units > 0 {
            let gained = (self.level - before).unsigned_abs();
            self.abandoned = if self.level < 0 { self.abandoned.advance(gained) } else { Abandoned::default() };
        }
        if self.debt > 0 {
            self.debt = self.debt.min(self.queue());
        }
    }
}

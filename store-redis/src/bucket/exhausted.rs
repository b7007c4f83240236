//! What is known of an exhausted bucket: until a permit can be there, calls that do not wait are rejected without a round
//! trip.
//!
//! The reply that rejects a call contains the level, and with it the time at which the permits of any cost are there. Calls
//! of the same or a higher cost are rejected until then; one of them asks Redis afterwards. In a crowd each replica waits a
//! random part of one permit's time longer: otherwise the replica that is nearest to Redis asks first every time, and the
//! others never get a permit. Only a refund by another replica can be missed, for at most [`MAX_TIME`].
//!
//! A leased bucket is not asked for a random time after it had fewer permits than a replica wanted (`lease.rs`).

use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::rate_limit::{Level, Rate, Take};
use phalanx_core::rejection::Source;
use phalanx_core::rng::Rng;
use phalanx_core::store::Grant;

/// The longest time without asking.
const MAX_TIME: Duration = Duration::from_secs(1);
/// The longest time that a crowd waits beyond the time of the next permit.
const MAX_SPREAD: Duration = Duration::from_millis(50);
/// So many calls rejected without a round trip are a crowd. A single caller that comes back when it was told to asks Redis.
const CROWD: u32 = 8;

/// A bucket that did not hold the permits of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exhausted {
    /// The lowest cost that was rejected.
    cost: u32,
    /// The level, and the time of the reply that contained it.
    level: i64,
    at: Time,
    /// When the lowest cost is worth asking for again, and when a crowd may.
    until: Time,
    until_spread: Time,
    /// Calls rejected since.
    rejected: u32,
}

impl Exhausted {
    pub(super) fn new(cost: u32, level: i64, at: Time, rate: Rate, rng: &Rng) -> Self {
        let latest = at.after(MAX_TIME);
        let until = available(cost, level, at, rate);
        let spread = rng.between(Duration::ZERO, rate.time_for(rate.price).min(MAX_SPREAD));
        let until_spread = until.after(spread).min(latest);
        Self { cost, level, at, until: until.min(latest), until_spread, rejected: 0 }
    }

    /// A bucket that had fewer permits than this replica wanted to lease: every call is rejected until then.
    pub(super) fn paused(level: i64, at: Time, until: Time) -> Self {
        let until = until.min(at.after(MAX_TIME));
        Self { cost: 1, level, at, until, until_spread: until, rejected: 0 }
    }

    /// Returns when Redis is asked again at the latest.
    pub(super) const fn ends(&self) -> Time {
        self.until_spread
    }

    /// Whether a level shows that the bucket is not exhausted any more.
    pub(super) fn ended_by(&self, level: i64, rate: Rate) -> bool {
        level >= need(self.cost, rate)
    }

    /// Rejects a call that does not wait, if it is known that its permits are not there.
    pub(super) fn reject(&mut self, now: Time, cost: u32, rate: Rate) -> Option<Grant> {
        let ends = if self.rejected < CROWD { self.until } else { self.until_spread };
        if cost < self.cost || now >= ends {
            return None;
        }
        self.rejected = self.rejected.saturating_add(1);
        let until = if need(cost, rate) > rate.capacity as i64 {
            Time::NEVER
        } else {
            match available(cost, self.level, self.at, rate) {
                // Only the spread is left.
                past if past <= now => ends,
                until => until,
            }
        };
        let refilled = (now.since(self.at).as_micros() as u64).saturating_mul(rate.gain).min(i64::MAX as u64) as i64;
        let most = need(self.cost, rate).saturating_sub(1).max(self.level);
        let left = Level { units: self.level.saturating_add(refilled).min(most), price: rate.price };
        Some(Grant { take: Take::Rejected { until }, left, source: Source::Fleet, due: now })
    }
}

fn need(cost: u32, rate: Rate) -> i64 {
    u64::from(cost).saturating_mul(rate.price).min(1 << 62) as i64
}

/// Returns when permits will be there, if no other caller takes them.
fn available(cost: u32, level: i64, at: Time, rate: Rate) -> Time {
    let missing = need(cost, rate).saturating_sub(level);
    at.after(rate.time_for(u64::try_from(missing).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use phalanx_core::rate_limit::RateLimitSpec;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    /// Ten permits a second.
    fn rate() -> Rate {
        Rate::of(&RateLimitSpec::per_second(10))
    }

    fn until(grant: Option<Grant>) -> Option<Time> {
        grant.map(|grant| match grant.take {
            Take::Rejected { until } => until,
            Take::Granted { .. } => panic!("granted"),
        })
    }

    #[test]
    fn a_call_is_rejected_until_its_permits_are_there_and_asks_then() {
        let mut exhausted = Exhausted::new(2, 0, at(0), rate(), &Rng::seeded(1));
        assert_eq!(until(exhausted.reject(at(0), 2, rate())), Some(at(200)));
        assert_eq!(until(exhausted.reject(at(199), 3, rate())), Some(at(300)), "a higher cost takes longer");
        assert_eq!(until(exhausted.reject(at(0), 11, rate())), Some(Time::NEVER), "above the burst");
        assert_eq!(until(exhausted.reject(at(0), 1, rate())), None, "a lower cost may be there");
        assert_eq!(until(exhausted.reject(at(200), 2, rate())), None, "a single caller asks at once");
    }

    #[test]
    fn a_crowd_is_spread_over_one_permit_and_at_most_50_ms() {
        let mut latest = Duration::ZERO;
        for seed in 0..200 {
            let mut exhausted = Exhausted::new(1, 0, at(0), rate(), &Rng::seeded(seed));
            assert!((0..CROWD).all(|_| exhausted.reject(at(0), 1, rate()).is_some()));
            let ends = exhausted.ends();
            assert!(ends >= at(100) && ends <= at(150), "{ends:?}");
            assert!(exhausted.reject(ends, 1, rate()).is_none());
            let just_before = Time::from_micros(ends.as_micros() - 1);
            assert!(exhausted.reject(just_before, 1, rate()).is_some());
            latest = latest.max(ends.since(at(100)));
        }
        assert!(latest > 45 * MS, "{latest:?}");
    }

    #[test]
    fn nothing_is_rejected_for_longer_than_a_second_without_asking() {
        let slow = Rate::of(&RateLimitSpec::new(1, Duration::from_secs(3_600)));
        let mut exhausted = Exhausted::new(1, 0, at(0), slow, &Rng::seeded(1));
        assert_eq!(until(exhausted.reject(at(999), 1, slow)), Some(at(3_600_000)), "the true time is named");
        assert_eq!(until(exhausted.reject(at(1_000), 1, slow)), None);
        assert!(exhausted.ended_by(slow.price as i64, slow) && !exhausted.ended_by(slow.price as i64 - 1, slow));
    }
}

//! What a process has charged by hand: the most that it may refund by hand.
//!
//! Such a refund names no time at which its permits were charged. So the process keeps what it has charged, less what time
//! has refilled since, and a refund is limited by it: like a refund of a known age, it adds no permit that is there already.

use crate::clock::{Time, micros};

use super::{MAX_UNITS, Rate};

/// Charges of which something may be refunded.
#[derive(Debug, Default)]
pub(crate) struct ChargedByHand {
    /// In units of `rate`, as of `at`.
    units: u64,
    rate: Option<Rate>,
    at: Time,
}

impl ChargedByHand {
    /// Adds a charge.
    pub(crate) fn add(&mut self, now: Time, rate: Rate, permits: u32) {
        self.advance(now, rate);
        self.units = self.units.saturating_add(u64::from(permits).saturating_mul(rate.price)).min(MAX_UNITS);
    }

    /// Takes up to this many permits to refund. Returns how many.
    pub(crate) fn take(&mut self, now: Time, rate: Rate, permits: u32) -> u32 {
        self.advance(now, rate);
        let most = u32::try_from(self.units / rate.price).unwrap_or(u32::MAX).min(permits);
        self.units -= u64::from(most) * rate.price;
        most
    }

    fn advance(&mut self, now: Time, rate: Rate) {
        let former = self.rate.replace(rate).unwrap_or(rate);
        let refilled = micros(now.since(self.at)).saturating_mul(former.gain);
        self.units = self.units.saturating_sub(refilled);
        if former != rate {
            self.units = (self.units / former.price).saturating_mul(rate.price);
        }
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rate_limit::RateLimitSpec;

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    #[test]
    fn no_more_is_refunded_than_was_charged_and_has_not_been_refilled_since() {
        let rate = Rate::of(&RateLimitSpec::per_second(10).burst(100));
        let mut charged = ChargedByHand::default();
        assert_eq!(charged.take(at(1_000), rate, 5), 0, "nothing was charged");
        charged.add(at(1_000), rate, 50);
        assert_eq!(charged.take(at(2_000), rate, 20), 20);
        assert_eq!(charged.take(at(2_000), rate, u32::MAX), 20, "ten were refilled");
        charged.add(at(3_000), rate, 5);
        assert_eq!(charged.take(at(60_000), rate, 5), 0, "all were");
    }

    #[test]
    fn another_rate_keeps_whole_permits() {
        let old = Rate::of(&RateLimitSpec::per_second(10).burst(100));
        let new = Rate::of(&RateLimitSpec::new(7, Duration::from_secs(60)).burst(30));
        let mut charged = ChargedByHand::default();
        charged.add(at(0), old, 12);
        assert_eq!(charged.take(at(100), new, 100), 11);
        charged.add(at(100), new, u32::MAX);
        assert_eq!(charged.take(at(100), new, 1), 1, "as many as can be counted");
    }
}

//! The twin of a bucket: this replica's share of the rate, for decisions without Redis, and what those decisions owe.
//!
//! The twin starts from its share of the level last seen, never from a full bucket, and empty if nothing of the fleet was
//! ever seen. It belongs to one outage and one divisor; a retune converts it. What it grants is counted as [`Uncharged`] and
//! taken from the bucket by the next `rate_limit_acquire`, so that neither single late replies nor the end of an outage add
//! to the fleet's limit.

use phalanx_core::clock::{Clock, Time};
use phalanx_core::rate_limit::{Level, MAX_UNITS, Rate, RateLimitSpec, Take};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, Grant};
use phalanx_core::table::{Entry, Retention};
use phalanx_store_memory::BucketCell;

/// What a reply of Redis contained.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// In units of the bucket's present rate.
    pub(super) level: i64,
    pub(super) at: Time,
}

impl Seen {
    /// Returns when the bucket is full, if no other replica takes from it.
    fn full_at(self, rate: Rate) -> Time {
        let missing = (rate.capacity as i64).saturating_sub(self.level);
        self.at.after(rate.time_for(u64::try_from(missing).unwrap_or(0)))
    }
}

/// Returns the units that time has added to this replica's share of a bucket between two times, since the bucket must have been
/// full.
pub(super) fn refilled(from: Time, now: Time, seen: Option<Seen>, rate: Rate, divisor: u32) -> u64 {
    let full_at = seen.map_or(Time::ZERO, |seen| seen.full_at(rate));
    (now.since(from.max(full_at)).as_micros() as u64).saturating_mul(rate.gain) / u64::from(divisor.max(1))
}

/// What a twin is made for: another outage or another share makes another twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reason {
    /// How often the latch had tripped.
    pub(super) outage: u64,
    /// Among how many replicas the rate is divided.
    pub(super) divisor: u32,
}

/// The bucket that decides without Redis.
#[derive(Debug)]
pub(super) struct Twin {
    pub(super) reason: Reason,
    cell: BucketCell,
    /// The latest time for which this twin or an earlier one has granted permits. What an earlier twin granted is not
    /// refunded to this one.
    latest_due: Time,
    /// `latest_due` of the earlier ones.
    earlier_due: Time,
}

impl Twin {
    /// Creates a twin that held `permits` at the time `at`, after an earlier one. Below zero they are a debt.
    pub(super) fn new(
        clock: &Clock,
        spec: &RateLimitSpec,
        reason: Reason,
        permits: i64,
        at: Time,
        earlier_due: Time,
    ) -> Self {
        let held = u64::try_from(permits).unwrap_or(0);
        let cell = BucketCell::holding(clock.clone(), &share_of(spec, reason.divisor), held, at);
        if permits < 0 {
            cell.charge(u32::try_from(permits.unsigned_abs()).unwrap_or(u32::MAX));
        }
        Self { reason, cell, latest_due: earlier_due, earlier_due }
    }

    /// Takes permits. A cost above the share's burst is granted when the share is full, and paid back before the next one.
    pub(super) fn acquire(&mut self, now: Time, request: AcquireRequest, fleet: Rate) -> Grant {
        let need = u64::from(request.cost).saturating_mul(fleet.price);
        let grant = if need > fleet.capacity {
            self.cell.acquire(now, request) // rejected for good
        } else {
            self.cell.acquire_with_debt(now, request)
        };
        if matches!(grant.take, Take::Granted { .. }) {
            self.latest_due = self.latest_due.max(grant.due);
        }
        Grant { source: Source::Degraded, ..grant }
    }

    /// Returns what [`acquire`](Self::acquire) would do, and takes nothing.
    pub(super) fn check(&self, now: Time, request: AcquireRequest, fleet: Rate) -> Grant {
        let need = u64::from(request.cost).saturating_mul(fleet.price);
        let debt = if need > fleet.capacity { 0 } else { MAX_UNITS };
        Grant { source: Source::Degraded, ..self.cell.check(now, request, debt) }
    }

    /// Takes permits of this twin back; returns whether it has granted them.
    pub(super) fn refund(&self, cost: u32, due: Time) -> bool {
        let own = due > self.earlier_due;
        if own {
            self.cell.refund(cost, due);
        }
        own
    }

    /// Takes permits for work that is done.
    pub(super) fn charge(&self, permits: u32) {
        self.cell.charge(permits);
    }

    /// Gives back permits that were charged a moment ago.
    pub(super) fn discharge(&self, permits: u32, now: Time) {
        self.cell.refund(permits, now);
    }

    pub(super) fn retune(&self, spec: &RateLimitSpec) {
        self.cell.retune(&share_of(spec, self.reason.divisor));
    }

    pub(super) fn peek(&self, now: Time) -> Level {
        self.cell.peek(now)
    }

    pub(super) const fn latest_due(&self) -> Time {
        self.latest_due
    }

    pub(super) fn retention(&self) -> Retention {
        self.cell.retention()
    }
}

/// One part of a rate: `1 / divisor` of the permits, and of the burst, but at least one permit of that.
fn share_of(spec: &RateLimitSpec, divisor: u32) -> RateLimitSpec {
    let burst = (spec.capacity() / u64::from(divisor.max(1))).max(1);
    RateLimitSpec { per: spec.per.saturating_mul(divisor.max(1)), burst: Some(burst), ..spec.clone() }
}

/// Permits that were granted without Redis and are not yet taken from the bucket.
///
/// They are what the bucket lacks compared with one in which nothing was granted: as long as that is not full, all of them;
/// afterwards time makes up for them at this replica's share of the rate. So an outage longer than the bucket takes to fill
/// leaves the permits of its last part, as the bucket would.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uncharged {
    /// In units of the bucket's present rate, as of `at`.
    units: u64,
    at: Time,
    /// Units of these in calls that have not been answered.
    sent: u64,
}

impl Uncharged {
    /// Lets time make up for permits since the bucket must have been full.
    fn advance(&mut self, now: Time, seen: Option<Seen>, rate: Rate, divisor: u32) {
        self.units = self.units.saturating_sub(refilled(self.at, now, seen, rate, divisor));
        self.at = self.at.max(now);
    }

    /// Counts permits that were granted.
    pub(super) fn add(&mut self, cost: u32, now: Time, seen: Option<Seen>, rate: Rate, divisor: u32) {
        self.advance(now, seen, rate, divisor);
        self.units = self.units.saturating_add(u64::from(cost).saturating_mul(rate.price)).min(rate.capacity);
    }

    /// Takes back permits that were not used.
    pub(super) fn remove(&mut self, cost: u32, rate: Rate) {
        self.units = self.units.saturating_sub(u64::from(cost).saturating_mul(rate.price));
    }

    /// Returns the permits, rounded up.
    pub(super) const fn permits(&self, rate: Rate) -> u64 {
        self.units.div_ceil(rate.price)
    }

    /// Returns the permits to charge with a call, besides those that other calls are charging.
    pub(super) fn send(&mut self, now: Time, seen: Option<Seen>, rate: Rate, divisor: u32) -> u64 {
        if self.units == 0 {
            return 0;
        }
        self.advance(now, seen, rate, divisor);
        let permits = self.units.saturating_sub(self.sent).div_ceil(rate.price);
        self.sent = self.sent.saturating_add(permits.saturating_mul(rate.price));
        permits
    }

    /// Ends a call that charged this many permits. Without a reply it is not known whether they were taken, so they are
    /// charged again: at worst the fleet grants less.
    pub(super) fn sent(&mut self, permits: u64, charged: bool, rate: Rate) {
        let units = permits.saturating_mul(rate.price);
        self.sent = self.sent.saturating_sub(units);
        if charged {
            self.units = self.units.saturating_sub(units);
        }
    }

    /// Converts to another rate, rounded up to whole permits.
    pub(super) fn retune(&mut self, old: Rate, new: Rate) {
        let convert = |units: u64| units.div_ceil(old.price).saturating_mul(new.price);
        (self.units, self.sent) = (convert(self.units).min(new.capacity), convert(self.sent));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    fn ask(cost: u32) -> AcquireRequest {
        AcquireRequest { cost, max_wait: Duration::ZERO }
    }

    /// A hundred permits a second, and a hundred at once.
    fn spec() -> RateLimitSpec {
        RateLimitSpec::per_second(100)
    }

    fn twin(clock: &Clock, divisor: u32, permits: i64) -> Twin {
        Twin::new(clock, &spec(), Reason { outage: 1, divisor }, permits, clock.now(), Time::ZERO)
    }

    fn is_granted(grant: &Grant) -> bool {
        matches!(grant.take, Take::Granted { .. })
    }

    #[test]
    fn a_cost_above_the_share_is_granted_when_the_share_is_full_and_paid_back() {
        let clock = Clock::manual();
        let (rate, mut twin) = (Rate::of(&spec()), twin(&clock, 50, 2));
        assert!(is_granted(&twin.acquire(clock.now(), ask(5), rate)));
        // Two permits a second: three of debt, and two until the share is full again.
        clock.advance(Duration::from_millis(2_499));
        let rejected = twin.acquire(clock.now(), ask(5), rate);
        assert_eq!(rejected.take, Take::Rejected { until: at(2_500) });
        assert!(!is_granted(&twin.acquire(at(1_999), ask(1), rate)), "the debt comes first");
        clock.advance(Duration::from_millis(1));
        assert!(is_granted(&twin.acquire(clock.now(), ask(100), rate)));
        let too_much = twin.acquire(clock.now(), ask(101), rate);
        assert_eq!(too_much.take, Take::Rejected { until: Time::NEVER }, "the fleet's bucket never holds as many");
    }

    #[test]
    fn what_an_earlier_twin_has_granted_is_not_refunded_to_this_one() {
        let clock = Clock::manual();
        clock.advance(Duration::from_secs(1));
        let rate = Rate::of(&spec());
        let mut first = twin(&clock, 1, 1);
        let waits = first.acquire(clock.now(), AcquireRequest { cost: 2, max_wait: Duration::from_secs(1) }, rate);
        assert!(waits.due > clock.now() && first.refund(0, waits.due));
        let reason = Reason { outage: 2, divisor: 1 };
        let mut second = Twin::new(&clock, &spec(), reason, 1, clock.now(), first.latest_due());
        assert!(!second.refund(2, waits.due) && second.peek(clock.now()).permits() == 1);
        clock.advance(Duration::from_secs(1));
        let own = second.acquire(clock.now(), ask(1), rate);
        assert!(second.refund(1, own.due));
    }

    #[test]
    fn permits_are_charged_once_if_every_reply_arrives_and_again_if_one_is_lost() {
        let rate = Rate::of(&spec());
        let seen = Some(Seen { level: 0, at: at(0) });
        let mut uncharged = Uncharged::default();
        uncharged.add(7, at(0), seen, rate, 2);
        assert_eq!(uncharged.send(at(1), seen, rate, 2), 7);
        uncharged.add(2, at(1), seen, rate, 2);
        assert_eq!(uncharged.send(at(2), seen, rate, 2), 2, "seven are on their way");
        uncharged.sent(7, false, rate);
        assert_eq!(uncharged.send(at(3), seen, rate, 2), 7);
        uncharged.sent(7, true, rate);
        uncharged.sent(2, true, rate);
        assert_eq!((uncharged.permits(rate), uncharged.send(at(4), seen, rate, 2)), (0, 0));
    }

    #[test]
    fn time_makes_up_for_permits_only_once_the_bucket_must_have_been_full() {
        let rate = Rate::of(&spec());
        let seen = Some(Seen { level: 50 * rate.price as i64, at: at(0) });
        let mut uncharged = Uncharged::default();
        uncharged.add(20, at(100), seen, rate, 2);
        uncharged.add(0, at(500), seen, rate, 2);
        assert_eq!(uncharged.permits(rate), 20, "full after half a second at the earliest");
        uncharged.add(0, at(600), seen, rate, 2);
        assert_eq!(uncharged.permits(rate), 15, "this replica's half of ten");
        uncharged.add(1_000, at(600), seen, rate, 2);
        assert_eq!(uncharged.permits(rate), 100, "never more than the bucket holds");
    }

    #[test]
    fn another_rate_changes_no_permits() {
        let (old, new) = (Rate::of(&spec()), Rate::of(&RateLimitSpec::new(7, Duration::from_secs(60)).burst(30)));
        let mut uncharged = Uncharged::default();
        uncharged.add(20, at(0), Some(Seen { level: 0, at: at(0) }), old, 1);
        uncharged.retune(old, new);
        assert_eq!(uncharged.permits(new), 20);
    }
}

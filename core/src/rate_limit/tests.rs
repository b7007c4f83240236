//! The guarantees of the bucket, one by one.

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
fn it_starts_full_and_then_admits_at_the_rate() {
    let rate = Rate::of(&RateLimitSpec::per_second(100).burst(3));
    let mut bucket = Bucket::full(at(0), rate);
    assert_eq!((0..9).filter(|_| take(&mut bucket, at(0), rate)).count(), 3);
    assert!(!take(&mut bucket, at(9_999), rate));
    assert!(take(&mut bucket, at(10_000), rate));
}

#[test]
fn a_rejection_names_the_time_at_which_a_retry_succeeds() {
    let rate = Rate::of(&RateLimitSpec::new(3, Duration::from_secs(1)).burst(1));
    let mut bucket = Bucket::full(at(0), rate);
    assert!(take(&mut bucket, at(0), rate));
    let rejected = bucket.take(at(0), rate, 1, Duration::ZERO);
    assert_eq!(rejected, Take::Rejected { until: at(333_334) });
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
    let rejected = Take::Rejected { until: at(300_000) };
    assert_eq!(waits, [after(0), after(100), after(200), rejected]);
}

#[test]
fn a_cost_above_the_burst_is_rejected_for_good() {
    let rate = Rate::of(&RateLimitSpec::per_second(10));
    let never = Bucket::full(at(0), rate).take(at(0), rate, 11, Duration::from_secs(60));
    assert_eq!(never, Take::Rejected { until: Time::NEVER });
}

#[test]
fn a_call_without_a_cost_passes_even_behind_waiters() {
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
fn a_reservation_is_found_at_the_end_of_the_queue_by_a_clock_that_is_slightly_off() {
    let rate = Rate::of(&RateLimitSpec::per_second(1).burst(1));
    let patience = Duration::from_secs(9);
    let queue = |due| {
        let mut bucket = Bucket::full(at(0), rate);
        for _ in 0..3 {
            bucket.take(at(0), rate, 1, patience);
        }
        bucket.refund(at(0), rate, 1, at(due));
        bucket.take(at(0), rate, 1, patience)
    };
    assert_eq!(queue(1_500_000), Take::Granted { wait: Duration::from_secs(2) }, "within half a permit of the end");
    assert_eq!(queue(1_499_999), Take::Granted { wait: Duration::from_secs(3) }, "a later reservation is behind it");
}

#[test]
fn no_reservation_exceeds_the_largest_number_of_units() {
    let rate = Rate::of(&RateLimitSpec::new(1, Duration::from_secs(3_600)).burst(1_000_000));
    let mut bucket = Bucket::full(at(0), rate);
    let forever = Duration::MAX;
    assert!(matches!(bucket.take(at(0), rate, 1_000_000, forever), Take::Granted { .. }));
    assert!(matches!(bucket.take(at(0), rate, 1_000_000, forever), Take::Granted { .. }));
    let level = bucket.level(rate);
    let rejected = bucket.take(at(0), rate, 1_000_000, forever);
    assert_eq!(rejected, Take::Rejected { until: at(2_000_000 * 3_600_000_000) });
    assert_eq!(bucket.level(rate), level);
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
    assert!(!take(&mut bucket, at(4_500_000), rate), "no permits are added");
    assert!(take(&mut bucket, at(5_100_000), rate), "counted from the old time");
    assert!(!take(&mut bucket, at(1_000_000), rate), "no permits are added");
    assert!(take(&mut bucket, at(1_100_000), rate), "counted from the new time");
}

proptest! {
    #[test]
    fn another_rate_keeps_whole_permits_and_creates_none(
        level in -(1_i64 << 52)..1 << 52, old_price in 1_u64..1 << 40, price in 1_u64..1 << 40,
    ) {
        let rate = |price| Rate { gain: 1, price, capacity: MAX_UNITS };
        let converted = i128::from(rate(old_price).convert(level, rate(price)));
        let exact = (i128::from(level) * i128::from(price)).div_euclid(i128::from(old_price));
        let bound = i128::from(MAX_UNITS);
        prop_assert!(converted <= exact.clamp(-bound, bound));
        let whole = i128::from(level).div_euclid(i128::from(old_price)) * i128::from(price);
        prop_assert!(converted >= whole.clamp(-bound, bound));
        prop_assert!(converted >= (exact - 3).clamp(-bound, bound));
    }

    /// Guarantees I-1 and I-2 (docs/guarantees.md): whatever the clock does, no more is admitted than burst + rate × the
    /// time by which it moved forward; and an idle bucket becomes full again.
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

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
fn a_place_comes_back_if_none_waits_behind_it() {
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
    bucket.refund(at(0), rate, 1, due[2]);
    assert_eq!(
        next(&mut bucket),
        Take::Granted { wait: Duration::from_secs(1) },
        "the one in the middle comes back too"
    );
}

#[test]
fn permits_that_were_refilled_meanwhile_do_not_come_back() {
    let rate = Rate::of(&RateLimitSpec::per_second(100));
    let mut bucket = Bucket::full(at(0), rate);
    assert_eq!(bucket.take(at(0), rate, 100, Duration::ZERO), NOW);
    assert_eq!(bucket.take(at(1_000_000), rate, 100, Duration::ZERO), NOW);
    bucket.refund(at(1_000_000), rate, 100, at(0));
    assert_eq!(bucket.available(at(1_000_000), rate), 0, "a hundred were refilled in that second");
    bucket.refund(at(1_250_000), rate, 100, at(1_000_000));
    assert_eq!(bucket.available(at(1_250_000), rate), 100, "25 were refilled, 75 come back");
}

#[test]
fn a_refund_of_a_time_that_the_bucket_has_not_reached_mints_nothing() {
    let rate = Rate::of(&RateLimitSpec::per_second(100));
    let mut bucket = Bucket::full(at(10_000_000), rate);
    assert_eq!(bucket.take(at(10_000_000), rate, 60, Duration::ZERO), NOW);
    bucket.refund(at(1_000_000), rate, 60, at(10_000_000));
    assert_eq!(bucket.available(at(1_000_000), rate), 40, "the clock was set back");
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
    /// A crowd that leaves, in any order, leaves an empty queue; nobody who stays is overtaken.
    #[test]
    fn a_crowd_of_waiters_that_leaves_gives_its_places_back(
        permits in 1_u64..1_000, burst in 1_u64..20, crowd in 1_usize..40, stays in 0_usize..40,
        order in Just((0..40_usize).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let rate = Rate::of(&RateLimitSpec::per_second(permits).burst(burst));
        let mut bucket = Bucket::full(at(0), rate);
        while take(&mut bucket, at(0), rate) {}
        let forever = Duration::MAX;
        let due = |take| if let Take::Granted { wait } = take { at(0).after(wait) } else { Time::NEVER };
        let dues: Vec<_> = (0..crowd).map(|_| due(bucket.take(at(0), rate, 1, forever))).collect();
        for place in order.into_iter().filter(|place| *place < crowd && *place >= stays) {
            bucket.refund(at(0), rate, 1, dues[place]);
        }
        let places = stays.min(crowd) as i64;
        prop_assert_eq!(bucket.level(rate).units, -places * rate.price as i64);
    }

    /// Guarantee I-41 (docs/guarantees.md): with cancels, settles and charges of any age, no window holds more than burst +
    /// rate × its length of what calls have truly cost, at the times that their permits were for.
    #[test]
    fn refunds_of_any_age_mint_nothing(
        permits in 1_u64..200, per in 1_u64..3_000_000, burst in 1_u64..30,
        steps in proptest::collection::vec(
            (0_u64..400_000, 1_u32..6, 0_u64..2_000_000, 0_usize..3, any::<usize>(), prop_oneof![3 => Just(0_u64), 1 => 0_u64..20]),
            1..80,
        ),
    ) {
        let spec = RateLimitSpec::new(permits, Duration::from_micros(per)).burst(burst);
        let rate = Rate::of(&spec);
        let mut now = 10_000_000_u64;
        let mut bucket = Bucket::full(at(now), rate);
        let mut granted: Vec<(u64, u32)> = Vec::new();
        let mut settled = Vec::new();
        for (step, cost, max_wait, cancels, which, charge) in steps {
            now += step;
            bucket.charge(at(now), rate, charge);
            if let Take::Granted { wait } = bucket.take(at(now), rate, cost, Duration::from_micros(max_wait)) {
                granted.push((now + micros(wait), cost));
            }
            for cancel in 0..cancels {
                if !granted.is_empty() {
                    let (due, cost) = granted.remove(which % granted.len());
                    // A call that has begun may have cost something.
                    let actual = if due <= now { cost.min((which / 7 + cancel) as u32 % 6) } else { 0 };
                    bucket.refund(at(now), rate, cost - actual, at(due));
                    settled.push((due, actual));
                }
            }
        }
        granted.append(&mut settled);
        granted.sort_unstable();
        for (first, (start, _)) in granted.iter().enumerate() {
            let mut admitted = 0_u128;
            for (end, cost) in &granted[first..] {
                admitted += u128::from(*cost);
                // The time of a permit is rounded up to a microsecond.
                let most = u128::from(burst * per) + u128::from(permits) * u128::from(end - start + 1);
                prop_assert!(admitted * u128::from(per) <= most, "{} from {} to {}", admitted, start, end);
            }
        }
    }

    /// Guarantee I-33 (docs/guarantees.md): grants, charges, settles and refunds sum to the level, below zero too.
    #[test]
    fn the_level_accounts_for_every_unit_that_was_granted_charged_and_refunded(
        permits in 1_u64..200, per in 1_u64..3_000_000, burst in 1_u64..30,
        steps in proptest::collection::vec((0_u64..400_000, 0_u32..40, 0_u64..3_000_000, 0_u8..4), 1..80),
    ) {
        let mut spec = RateLimitSpec::new(permits, Duration::from_micros(per)).burst(burst);
        let mut rate = Rate::of(&spec);
        let mut now = 10_000_000_u64;
        let mut bucket = Bucket::full(at(now), rate);
        let mut level = i128::from(rate.capacity);
        for (step, cost, age, what) in steps {
            now += step;
            level = (level + i128::from(step * rate.gain)).min(rate.capacity.into());
            let units = i128::from(u64::from(cost) * rate.price);
            match what {
                0 => {
                    let granted = bucket.take(at(now), rate, cost, Duration::ZERO) == NOW;
                    prop_assert_eq!(granted, cost == 0 || units <= level);
                    level -= if granted { units } else { 0 };
                }
                1 => {
                    bucket.charge(at(now), rate, cost.into());
                    level -= units;
                }
                2 => {
                    bucket.refund(at(now), rate, cost, at(now - age));
                    level = (level + (units - i128::from(age * rate.gain)).max(0)).min(rate.capacity.into());
                }
                _ => {
                    // Another burst: whole permits of debt are kept.
                    spec = spec.clone().burst(u64::from(cost) + 1);
                    let new = Rate::of(&spec);
                    bucket.retune(at(now), rate, new);
                    level = i128::from(rate.convert(level as i64, new));
                    rate = new;
                }
            }
            prop_assert_eq!(i128::from(bucket.level(rate).units), level);
        }
    }
}

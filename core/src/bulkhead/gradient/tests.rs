//! The guarantees of the Gradient2 limit, one by one. `sim/gradient.rs` tests it on a simulated queue.

use proptest::prelude::*;

use super::*;
use crate::clock::Time;

const QUICK: Duration = Duration::from_millis(10);

/// A limit with its spec.
struct Rig {
    gradient: Gradient,
    spec: GradientSpec,
    max: u32,
}

impl Rig {
    fn new(max: u32) -> Self {
        Self::with(GradientSpec::default(), max)
    }

    fn with(spec: GradientSpec, max: u32) -> Self {
        Self { gradient: Gradient::new(&spec, max), spec, max }
    }

    fn end(&mut self, outcome: Outcome, latency: Duration, in_use: u32) {
        let done = Completion { now: Time::ZERO, latency, outcome, in_use };
        self.gradient.observe(&done, &self.spec, self.max);
    }

    /// Completes `times` successes with one slot in use.
    fn lightly(&mut self, latency: Duration, times: u32) {
        (0..times).for_each(|_| self.end(Outcome::Success, latency, 1));
    }

    /// Completes `times` successes with every slot in use.
    fn full(&mut self, latency: Duration, times: u32) {
        (0..times).for_each(|_| self.end(Outcome::Success, latency, self.limit()));
    }

    /// Completes one more such success, unless the limit has reached `goal`.
    fn full_until(&mut self, latency: Duration, goal: u32) -> bool {
        let above = self.limit() > goal;
        self.full(latency, u32::from(above));
        above
    }

    /// Completes such successes until the limit changes. Returns how many, and the new limit.
    fn full_until_it_changes(&mut self, latency: Duration) -> (u32, u32) {
        let before = self.limit();
        let times = (1..100_000).find(|_| {
            self.full(latency, 1);
            self.limit() != before
        });
        (times.unwrap(), self.limit())
    }

    fn limit(&self) -> u32 {
        self.gradient.limit()
    }

    fn baseline(&self) -> f64 {
        self.gradient.baseline().unwrap().as_secs_f64() / QUICK.as_secs_f64()
    }
}

#[test]
fn it_starts_at_max_and_stays_there_while_little_is_in_use() {
    let mut rig = Rig::new(40);
    rig.lightly(QUICK, 1_000);
    rig.lightly(QUICK * 20, 100);
    assert_eq!(rig.limit(), 40, "a slow dependency is no reason to lower a limit that is not used");
}

#[test]
fn a_lightly_loaded_service_does_not_grow_its_limit() {
    let mut rig = Rig::new(10);
    rig.lightly(QUICK, 100);
    rig.max = 100;
    rig.lightly(QUICK, 10_000);
    assert_eq!(rig.limit(), 10);
    (0..1_000).for_each(|_| rig.end(Outcome::Success, QUICK, 9));
    assert!((15..=20).contains(&rig.limit()), "it stops when half of it is not in use: {}", rig.limit());
}

#[test]
fn limits_of_4_and_of_400_shrink_alike() {
    for max in [4, 40, 400] {
        let mut rig = Rig::new(max);
        rig.lightly(QUICK, 100);
        // Seven rounds at 0.9 each.
        let taken = (0..).take_while(|_| rig.full_until(QUICK * 4, max / 2)).count();
        assert!(taken as u32 <= 7 * max.max(10), "{taken} samples for {max}");
    }
}

#[test]
fn it_shrinks_to_its_minimum() {
    let mut rig = Rig::with(GradientSpec::default().min_concurrency(2), 4);
    rig.lightly(QUICK, 100);
    // Nine rounds.
    (0..90).for_each(|_| rig.end(Outcome::Success, QUICK * 10, 4));
    assert_eq!(rig.limit(), 2);
}

#[test]
fn one_spike_lowers_it_by_a_tenth_and_at_most_by_half() {
    for (smoothing, left) in [(0.2, 90), (1.0, 50)] {
        let mut rig = Rig::with(GradientSpec::default().smoothing(smoothing), 100);
        rig.lightly(QUICK, 1_000);
        rig.full(Duration::from_secs(3_600), 1);
        rig.full(QUICK, 99);
        assert_eq!(rig.limit(), left);
    }
}

#[test]
fn it_grows_by_the_headroom_while_the_latency_is_within_the_tolerance() {
    for (headroom, grown) in [(None, 52), (Some(20.0), 58)] {
        let mut rig = Rig::with(GradientSpec { headroom, ..GradientSpec::default() }, 50);
        rig.lightly(QUICK, 100);
        rig.max = 100;
        (0..80).for_each(|_| rig.end(Outcome::Success, QUICK * 14 / 10, 40));
        assert_eq!(rig.limit(), grown, "two rounds");
    }
}

#[test]
fn only_successes_count() {
    let mut rig = Rig::new(10);
    rig.lightly(QUICK, 100);
    for outcome in [Outcome::Failure, Outcome::Neutral, Outcome::Cancelled] {
        (0..1_000).for_each(|_| rig.end(outcome, QUICK * 100, 10));
        (0..1_000).for_each(|_| rig.end(outcome, QUICK * 100, 1));
    }
    assert_eq!((rig.limit(), rig.baseline()), (10, 1.0));
}

#[test]
fn load_does_not_raise_the_baseline() {
    let mut rig = Rig::new(40);
    rig.lightly(QUICK, 100);
    (0..10_000).for_each(|_| rig.end(Outcome::Success, QUICK * 14 / 10, 30));
    assert_eq!((rig.limit(), rig.baseline()), (40, 1.0));
}

#[test]
fn the_baseline_falls_again_after_a_long_time_of_high_latency() {
    let mut rig = Rig::new(40);
    rig.lightly(QUICK, 600);
    rig.lightly(QUICK * 10, 6_000);
    assert!(rig.baseline() > 9.0);
    rig.lightly(QUICK, 600);
    assert!(rig.baseline() < 1.5, "{}", rig.baseline());
    // Under load it falls too: by decay while it is over twice the latency, and by dips.
    rig.lightly(QUICK * 10, 6_000);
    rig.full(QUICK, 6_000);
    assert!(rig.baseline() < 1.5, "{}", rig.baseline());
}

#[test]
fn a_full_limit_dips_to_half_at_intervals_and_returns() {
    let mut rig = Rig::new(40);
    rig.lightly(QUICK, 100);
    let limits: Vec<u32> = (0..6_000)
        .map(|_| {
            rig.full(QUICK, 1);
            rig.limit()
        })
        .collect();
    assert!(limits.iter().all(|limit| [20, 40].contains(limit)));
    let dipped = limits.iter().filter(|limit| **limit == 20).count();
    assert!((200..600).contains(&dipped), "{dipped} of 6,000");
}

#[test]
fn a_dip_comes_after_48_rounds_and_ends_after_two_calls_a_slot_and_twenty_samples() {
    let mut rig = Rig::new(40);
    rig.lightly(QUICK, 100);
    for _ in 0..3 {
        assert_eq!(rig.full_until_it_changes(QUICK), (48 * 40, 20));
        assert_eq!(rig.full_until_it_changes(QUICK), (2 * 40 + 20, 40));
    }
}

#[test]
fn a_dip_of_a_large_tolerance_goes_down_in_two_steps() {
    let mut rig = Rig::with(GradientSpec { rtt_tolerance: 3.0, ..GradientSpec::default() }, 40);
    rig.lightly(QUICK, 100);
    assert_eq!(rig.full_until_it_changes(QUICK), (48 * 40, 20));
    assert_eq!(rig.full_until_it_changes(QUICK), (2 * 40 + 20, 10), "a quarter: three quarters of a third");
    assert_eq!(rig.full_until_it_changes(QUICK), (2 * 20 + 20, 40));
}

#[test]
fn a_dip_that_finds_the_baseline_far_off_is_repeated_after_three_rounds() {
    for (tenths, rounds, baseline) in [(12, 48, 1.1), (13, 3, 1.15), (8, 48, 0.9), (7, 3, 0.85)] {
        let mut rig = Rig::new(40);
        rig.lightly(QUICK, 100);
        rig.full_until_it_changes(QUICK);
        rig.full_until_it_changes(QUICK * tenths / 10);
        assert!((rig.baseline() - baseline).abs() < 1e-6, "half way: {}", rig.baseline());
        assert_eq!(rig.full_until_it_changes(QUICK), (rounds * 40, 20), "{tenths} tenths of the baseline");
    }
}

#[test]
fn a_limit_that_has_fallen_by_two_fifths_dips_at_once() {
    let mut rig = Rig::new(40);
    rig.lightly(QUICK, 100);
    let falls: Vec<_> = (0..6).map(|_| rig.full_until_it_changes(QUICK * 4)).collect();
    // Each round takes a tenth off; 23.6 is less than three fifths of 40.
    assert_eq!(falls, [(40, 36), (36, 32), (32, 29), (29, 26), (26, 23), (23, 11)]);
}

#[test]
fn slots_that_only_queue_are_given_up_after_the_second_dip() {
    let mut rig = Rig::new(40);
    rig.lightly(QUICK * 2, 100);
    assert_eq!(rig.full_until_it_changes(QUICK * 2), (48 * 40, 20));
    assert_eq!(rig.full_until_it_changes(QUICK), (100, 40), "half of the slots, half of the latency: once is no proof");
    assert!((rig.baseline() - 1.0).abs() < 1e-6, "the latency without the queue");
    let falls: Vec<_> = (0..3).map(|_| rig.full_until_it_changes(QUICK * 2)).collect();
    assert_eq!(falls, [(40, 38), (38, 36), (36, 18)], "the third round dips");
    rig.full(QUICK, 2 * 36 + 20);
    assert_eq!((rig.limit(), rig.gradient.dip.is_none()), (18, true), "the dip has become the limit");
}

#[test]
fn a_limit_that_is_not_full_has_no_dips_while_calls_are_fast() {
    let mut rig = Rig::new(40);
    for _ in 0..10_000 {
        rig.end(Outcome::Success, QUICK, 39);
        assert_eq!(rig.limit(), 40);
    }
}

#[test]
fn a_dip_never_goes_below_the_minimum() {
    let mut rig = Rig::with(GradientSpec::default().min_concurrency(30), 40);
    for _ in 0..6_000 {
        rig.full(QUICK, 1);
        assert!((30..=40).contains(&rig.limit()));
    }
}

#[test]
fn a_retune_takes_over_bounds_and_window_and_keeps_limit_and_baseline() {
    let mut rig = Rig::new(40);
    rig.lightly(QUICK, 100);
    rig.max = 8;
    rig.spec.long_window = 10;
    rig.gradient.retune(&rig.spec, rig.max);
    assert_eq!((rig.limit(), rig.baseline()), (8, 1.0));
    rig.spec.min_concurrency = 20;
    rig.max = 30;
    rig.lightly(QUICK * 3, 30);
    assert_eq!(rig.limit(), 20);
    assert!(rig.baseline() > 2.5, "a window of ten follows quickly");
}

fn latencies() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        (0..200_u64).prop_map(Duration::from_millis),
        Just(Duration::from_secs(3_600)),
        Just(Duration::MAX),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_limit_stays_in_bounds_and_never_more_than_halves_at_once(
        stretches in prop::collection::vec((latencies(), 0.0..1.2_f64, 1..200_u32), 1..40),
        smoothing in prop_oneof![Just(0.2), Just(1.0)],
        rtt_tolerance in 1.0..3.0_f64,
        headroom in prop::option::of(0.0..1e9_f64),
        (least, max) in (0..50_u32, 0..500_u32),
    ) {
        let spec = GradientSpec { min_concurrency: least, rtt_tolerance, smoothing, long_window: 60, headroom };
        let mut rig = Rig::with(spec, max);
        for (latency, load, times) in stretches {
            for _ in 0..times {
                let before = rig.limit();
                rig.end(Outcome::Success, latency, (f64::from(before) * load) as u32);
                let after = rig.limit();
                prop_assert!(rig.gradient.limit.is_finite());
                prop_assert!((least.clamp(1, max.max(1))..=max.max(1)).contains(&after), "{}", after);
                prop_assert!(after >= before / 2, "{} to {}", before, after);
                // Except after a dip, which for a large tolerance goes below half.
                prop_assert!(after <= 2 * before + 1 || rtt_tolerance > 1.5, "{} to {}", before, after);
                prop_assert!(rig.gradient.baseline.value().is_none_or(f64::is_finite));
            }
        }
    }
}

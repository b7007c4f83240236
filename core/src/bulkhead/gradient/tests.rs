//! The machine's promises, one by one. What it finds on a real queue is in `sim/gradient.rs`.

use proptest::prelude::*;

use super::*;
use crate::clock::Time;

const QUICK: Duration = Duration::from_millis(10);

/// A machine with its spec.
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

    /// So many successes with nobody else around.
    fn alone(&mut self, latency: Duration, times: u32) {
        (0..times).for_each(|_| self.end(Outcome::Success, latency, 1));
    }

    /// So many successes with every slot in use.
    fn full(&mut self, latency: Duration, times: u32) {
        (0..times).for_each(|_| self.end(Outcome::Success, latency, self.limit()));
    }

    /// One more such success, unless the limit is down at `goal`.
    fn full_until(&mut self, latency: Duration, goal: u32) -> bool {
        let above = self.limit() > goal;
        self.full(latency, u32::from(above));
        above
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
    rig.alone(QUICK, 1_000);
    rig.alone(QUICK * 20, 100);
    assert_eq!(rig.limit(), 40, "a slow dependency is not made quicker by slots that nobody uses");
}

#[test]
fn a_lightly_loaded_service_does_not_grow_its_limit() {
    let mut rig = Rig::new(10);
    rig.alone(QUICK, 100);
    rig.max = 100;
    rig.alone(QUICK, 10_000);
    assert_eq!(rig.limit(), 10);
    (0..1_000).for_each(|_| rig.end(Outcome::Success, QUICK, 9));
    assert!((15..=20).contains(&rig.limit()), "until half of it is not in use: {}", rig.limit());
}

#[test]
fn pools_of_4_and_of_400_contract_alike() {
    for max in [4, 40, 400] {
        let mut rig = Rig::new(max);
        rig.alone(QUICK, 100);
        // Seven rounds at 0.9 each.
        let taken = (0..).take_while(|_| rig.full_until(QUICK * 4, max / 2)).count();
        assert!(taken as u32 <= 7 * max.max(10), "{taken} samples for {max}");
    }
}

#[test]
fn it_contracts_down_to_its_least() {
    let mut rig = Rig::with(GradientSpec::default().min_concurrency(2), 4);
    rig.alone(QUICK, 100);
    // Nine rounds.
    (0..90).for_each(|_| rig.end(Outcome::Success, QUICK * 10, 4));
    assert_eq!(rig.limit(), 2);
}

#[test]
fn one_spike_takes_a_tenth_and_at_most_a_half() {
    for (smoothing, left) in [(0.2, 90), (1.0, 50)] {
        let mut rig = Rig::with(GradientSpec::default().smoothing(smoothing), 100);
        rig.alone(QUICK, 1_000);
        rig.full(Duration::from_secs(3_600), 1);
        rig.full(QUICK, 99);
        assert_eq!(rig.limit(), left);
    }
}

#[test]
fn latency_within_the_tolerance_lets_it_grow_by_the_headroom() {
    for (headroom, grown) in [(None, 52), (Some(20.0), 58)] {
        let mut rig = Rig::with(GradientSpec { headroom, ..GradientSpec::default() }, 50);
        rig.alone(QUICK, 100);
        rig.max = 100;
        (0..80).for_each(|_| rig.end(Outcome::Success, QUICK * 14 / 10, 40));
        assert_eq!(rig.limit(), grown, "two rounds");
    }
}

#[test]
fn only_successes_teach() {
    let mut rig = Rig::new(10);
    rig.alone(QUICK, 100);
    for outcome in [Outcome::Failure, Outcome::Neutral, Outcome::Cancelled] {
        (0..1_000).for_each(|_| rig.end(outcome, QUICK * 100, 10));
        (0..1_000).for_each(|_| rig.end(outcome, QUICK * 100, 1));
    }
    assert_eq!((rig.limit(), rig.baseline()), (10, 1.0));
}

#[test]
fn load_does_not_teach_the_baseline_its_own_queue() {
    let mut rig = Rig::new(40);
    rig.alone(QUICK, 100);
    (0..10_000).for_each(|_| rig.end(Outcome::Success, QUICK * 14 / 10, 30));
    assert_eq!((rig.limit(), rig.baseline()), (40, 1.0));
}

#[test]
fn a_baseline_recovers_after_sustained_inflation() {
    let mut rig = Rig::new(40);
    rig.alone(QUICK, 600);
    rig.alone(QUICK * 10, 6_000);
    assert!(rig.baseline() > 9.0);
    rig.alone(QUICK, 600);
    assert!(rig.baseline() < 1.5, "{}", rig.baseline());
    // And under load, where little teaches it: at half of the present value, and by dips.
    rig.alone(QUICK * 10, 6_000);
    rig.full(QUICK, 6_000);
    assert!(rig.baseline() < 1.5, "{}", rig.baseline());
}

#[test]
fn a_full_limit_dips_to_half_now_and_then_and_comes_back() {
    let mut rig = Rig::new(40);
    rig.alone(QUICK, 100);
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
fn a_limit_that_is_not_full_is_not_dipped_while_calls_are_quick() {
    let mut rig = Rig::new(40);
    for _ in 0..10_000 {
        rig.end(Outcome::Success, QUICK, 39);
        assert_eq!(rig.limit(), 40);
    }
}

#[test]
fn a_dip_never_goes_below_the_least() {
    let mut rig = Rig::with(GradientSpec::default().min_concurrency(30), 40);
    for _ in 0..6_000 {
        rig.full(QUICK, 1);
        assert!((30..=40).contains(&rig.limit()));
    }
}

#[test]
fn a_retune_moves_bounds_and_window_and_keeps_what_was_learned() {
    let mut rig = Rig::new(40);
    rig.alone(QUICK, 100);
    rig.max = 8;
    rig.spec.long_window = 10;
    rig.gradient.retune(&rig.spec, rig.max);
    assert_eq!((rig.limit(), rig.baseline()), (8, 1.0));
    rig.spec.min_concurrency = 20;
    rig.max = 30;
    rig.alone(QUICK * 3, 30);
    assert_eq!(rig.limit(), 20);
    assert!(rig.baseline() > 2.5, "a window of ten forgets soon");
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
                // Coming back from a dip aside, which for a large tolerance is deeper than a half.
                prop_assert!(after <= 2 * before + 1 || rtt_tolerance > 1.5, "{} to {}", before, after);
                prop_assert!(rig.gradient.baseline.value().is_none_or(f64::is_finite));
            }
        }
    }
}

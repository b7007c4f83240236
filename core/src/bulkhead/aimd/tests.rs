//! The guarantees of the AIMD limit, one by one. `sim/aimd.rs` tests a fleet of them.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
const QUICK: Duration = Duration::from_millis(10);
const SLOW: Duration = Duration::from_millis(101);

/// A limit with its spec and a manual clock.
struct Rig {
    aimd: Aimd,
    spec: AdaptiveSpec,
    max: u32,
    now: Time,
}

impl Rig {
    fn new(max: u32) -> Self {
        Self::with(AdaptiveSpec::threshold(Duration::from_millis(100)), max)
    }

    fn with(spec: AdaptiveSpec, max: u32) -> Self {
        Self { aimd: Aimd::new(&spec, max), spec, max, now: Time::from_micros(1_000_000_000) }
    }

    fn end(&mut self, outcome: Outcome, latency: Duration) -> Option<LimitChange> {
        self.aimd.observe(&Completion { now: self.now, latency, outcome, in_use: 1 }, &self.spec, self.max)
    }

    fn succeed(&mut self, times: u32) {
        (0..times).for_each(|_| assert_eq!(self.end(Outcome::Success, QUICK), None));
    }

    fn judge(&mut self, quantile: Duration) -> Option<LimitChange> {
        self.aimd.judge(self.now, Some(quantile), &self.spec, self.max)
    }

    fn wait(&mut self, by: Duration) {
        self.now = self.now.after(by);
    }
}

#[test]
fn it_starts_at_max_and_stays_there_while_calls_are_fast() {
    let mut rig = Rig::new(16);
    rig.succeed(1_000);
    assert_eq!(rig.aimd.limit(), 16);
}

#[test]
fn a_slow_completion_lowers_the_limit_by_a_tenth_and_reports_it() {
    let mut rig = Rig::new(20);
    assert_eq!(rig.end(Outcome::Success, SLOW), Some(LimitChange { from: 20, to: 18 }));
    assert_eq!(rig.aimd.limit(), 18);
}

#[test]
fn a_completion_at_the_threshold_is_no_breach() {
    let mut rig = Rig::new(20);
    assert_eq!(rig.end(Outcome::Success, Duration::from_millis(100)), None);
}

#[test]
fn a_burst_of_slow_completions_lowers_the_limit_once_per_cooldown() {
    let mut rig = Rig::new(100);
    let lowered = |rig: &mut Rig| (0..50).filter(|_| rig.end(Outcome::Success, SLOW).is_some()).count();
    assert_eq!(lowered(&mut rig), 1);
    rig.wait(SECOND - MILLI);
    assert_eq!(lowered(&mut rig), 0);
    rig.wait(MILLI);
    assert_eq!(lowered(&mut rig), 1);
    assert_eq!(rig.aimd.limit(), 81);
}

#[test]
fn as_many_fast_successes_as_the_limit_add_about_a_slot() {
    let mut rig = Rig::new(100);
    rig.end(Outcome::Success, SLOW);
    rig.succeed(91);
    assert_eq!(rig.aimd.limit(), 91);
    rig.succeed(900);
    assert_eq!(rig.aimd.limit(), 100);
}

#[test]
fn steps_become_smaller_below_the_threshold_but_never_zero() {
    let grown = |latency: u64| {
        let mut rig = Rig::new(100);
        rig.end(Outcome::Success, SLOW);
        (0..90).for_each(|_| assert_eq!(rig.end(Outcome::Success, Duration::from_millis(latency)), None));
        rig.aimd.limit - 90.0
    };
    assert_eq!(grown(1), grown(75));
    assert!((0.45..0.55).contains(&grown(87).midpoint(grown(88))), "{} {}", grown(87), grown(88));
    assert!((0.09..0.11).contains(&grown(100)), "{}", grown(100));
}

#[test]
fn a_slow_completion_lowers_it_whatever_its_outcome() {
    for outcome in [Outcome::Success, Outcome::Failure, Outcome::Neutral, Outcome::Cancelled] {
        assert!(Rig::new(20).end(outcome, SLOW).is_some(), "{outcome:?}");
    }
}

#[test]
fn a_fast_completion_that_is_not_a_success_changes_nothing() {
    for outcome in [Outcome::Failure, Outcome::Neutral, Outcome::Cancelled] {
        let mut rig = Rig::new(20);
        rig.end(Outcome::Success, SLOW);
        (0..1_000).for_each(|_| assert_eq!(rig.end(outcome, QUICK), None));
        assert_eq!(rig.aimd.limit(), 18, "{outcome:?}");
    }
}

#[test]
fn it_never_falls_below_its_minimum_and_reports_no_change_there() {
    let mut rig = Rig::with(AdaptiveSpec::threshold(QUICK).min_concurrency(3), 4);
    let mut changes = 0;
    for _ in 0..100 {
        changes += u32::from(rig.end(Outcome::Success, SLOW).is_some());
        rig.wait(SECOND);
    }
    assert_eq!((rig.aimd.limit(), changes), (3, 1));
}

#[test]
fn a_minimum_above_the_maximum_is_the_maximum() {
    let mut rig = Rig::with(AdaptiveSpec::threshold(QUICK).min_concurrency(10), 4);
    rig.end(Outcome::Success, SLOW);
    assert_eq!(rig.aimd.limit(), 4);
    assert_eq!(Rig::with(AdaptiveSpec::threshold(QUICK).min_concurrency(0), 0).aimd.limit(), 1);
}

#[test]
fn a_retune_moves_the_limit_into_its_new_bounds() {
    let mut rig = Rig::new(100);
    rig.max = 10;
    rig.succeed(1);
    assert_eq!(rig.aimd.limit(), 10);
    rig.max = 20;
    rig.succeed(1);
    assert_eq!(rig.aimd.limit(), 10, "a higher maximum is grown into");
    rig.spec.min_concurrency = 15;
    rig.aimd.retune(&rig.spec, rig.max);
    assert_eq!(rig.aimd.limit(), 15);
}

#[test]
fn with_a_quantile_outliers_do_not_move_it() {
    let mut rig = Rig::with(Rig::new(1).spec.quantile(0.95), 20);
    for _ in 0..100 {
        assert_eq!(rig.end(Outcome::Success, SLOW), None);
        assert_eq!(rig.judge(QUICK), None);
        rig.wait(SECOND);
    }
    assert_eq!(rig.aimd.limit(), 20);
}

#[test]
fn a_quantile_over_the_threshold_lowers_the_limit_and_starts_an_epoch() {
    let mut rig = Rig::with(Rig::new(1).spec.quantile(0.95), 20);
    assert_eq!(rig.judge(SLOW), Some(LimitChange { from: 20, to: 18 }));
    let epoch = rig.aimd.measured_since();
    assert_eq!(epoch, rig.now.after(SLOW), "calls that started under the old limit are left out");
    rig.wait(SECOND / 2);
    assert_eq!(rig.judge(SLOW), None);
    assert_eq!(rig.aimd.measured_since(), epoch, "only a decrease starts an epoch");
    rig.wait(SECOND / 2);
    assert!(rig.judge(Duration::MAX).is_some());
    assert_eq!(
        rig.aimd.measured_since(),
        rig.now.after(SECOND),
        "for a dependency that hangs, the epoch starts after a cooldown"
    );
}

#[test]
fn after_a_breach_the_limit_grows_again_only_after_a_cooldown() {
    let mut rig = Rig::with(Rig::new(1).spec.quantile(0.95), 20);
    rig.judge(SLOW);
    rig.wait(SECOND / 2);
    rig.judge(QUICK);
    rig.succeed(100);
    assert_eq!(rig.aimd.limit(), 18);
    // Without another quantile: a replica with few calls may never have enough samples, and must still grow.
    rig.wait(SECOND / 2);
    assert_eq!(rig.aimd.judge(rig.now, None, &rig.spec, rig.max), None);
    rig.succeed(100);
    assert_eq!(rig.aimd.limit(), 20);
}

#[test]
fn a_clock_that_steps_back_delays_a_decrease_by_at_most_a_cooldown() {
    let mut rig = Rig::with(Rig::new(1).spec.quantile(0.95), 20);
    rig.judge(SLOW);
    rig.now = Time::from_micros(5);
    assert_eq!(rig.judge(SLOW), None);
    assert!(rig.aimd.measured_since() <= rig.now.after(SECOND));
    rig.wait(SECOND);
    assert!(rig.judge(SLOW).is_some());
    let mut plain = Rig::new(20);
    plain.end(Outcome::Success, SLOW);
    plain.now = Time::ZERO;
    assert_eq!(plain.end(Outcome::Success, SLOW), None);
    plain.wait(SECOND);
    assert!(plain.end(Outcome::Success, SLOW).is_some());
}

fn latencies() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        (0..200_u64).prop_map(Duration::from_millis),
        Just(Duration::from_secs(3_600)),
        Just(Duration::MAX),
    ]
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Success),
        1 => Just(Outcome::Failure),
        1 => Just(Outcome::Neutral),
        1 => Just(Outcome::Cancelled),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_limit_stays_in_bounds_and_falls_once_per_cooldown(
        steps in prop::collection::vec((0..400_u64, latencies(), outcomes(), any::<bool>()), 1..300),
        threshold in prop_oneof![Just(Duration::ZERO), Just(MILLI * 100), Just(Duration::MAX)],
        (least, max) in (0..50_u32, 0..500_u32),
        quantile in any::<bool>(),
    ) {
        let mut spec = AdaptiveSpec::threshold(threshold).min_concurrency(least);
        spec.latency_quantile = quantile.then_some(0.95);
        let mut rig = Rig::with(spec, max);
        let mut last: Option<Time> = None;
        for (millis, latency, outcome, judged) in steps {
            rig.wait(Duration::from_millis(millis));
            let before = rig.aimd.limit();
            let change = if quantile && judged { rig.judge(latency) } else { rig.end(outcome, latency) };
            let after = rig.aimd.limit();
            prop_assert!(rig.aimd.limit.is_finite());
            prop_assert!((least.clamp(1, max.max(1))..=max.max(1)).contains(&after), "{after}");
            prop_assert_eq!(change.is_some(), after < before);
            if let Some(lowered) = change {
                prop_assert_eq!(lowered, LimitChange { from: before, to: after });
                prop_assert!(last.is_none_or(|at| rig.now.since(at) >= SECOND));
                last = Some(rig.now);
            }
        }
    }
}

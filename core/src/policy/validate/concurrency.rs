//! Validation of the stages that limit or add concurrency: bulkheads and hedges.

use super::budget;
use super::check::{Check, MAX_COUNT};
use crate::bulkhead::spec::default_interval;
use crate::bulkhead::{AdaptiveSpec, BulkheadSpec, GradientSpec};
use crate::hedge::HedgeSpec;

pub(super) fn bulkhead(check: &mut Check, spec: &BulkheadSpec) {
    check.count("max_concurrency", spec.max_concurrency.into());
    if let Some(slots) = spec.fleet_max_concurrency {
        check.count("fleet_max_concurrency", slots.into());
        if slots > 0 && slots < spec.max_concurrency {
            check.add(
                "fleet_max_concurrency",
                "must not be below max_concurrency: one process could never use all of that",
            );
        }
    }
    if u64::from(spec.max_queue) > MAX_COUNT {
        check.add("max_queue", &format!("must be at most {MAX_COUNT}"));
    }
    check.optional_duration("queue_timeout", spec.queue_timeout);
    check.optional_duration("queue_target", spec.queue_target);
    check.duration("queue_interval", spec.queue_interval);
    if spec.queue_target.is_some_and(|target| target >= spec.queue_interval) {
        check.add("queue_target", "must be shorter than queue_interval");
    }
    let options = [
        ("queue_timeout", spec.queue_timeout.is_some()),
        ("queue_target", spec.queue_target.is_some()),
        ("queue_interval", spec.queue_interval != default_interval()),
        ("queue_adaptive_lifo", spec.queue_adaptive_lifo),
        ("prioritized", spec.prioritized),
    ];
    for (option, _) in options.into_iter().filter(|(_, set)| *set && spec.max_queue == 0) {
        check.add(option, "is about a queue, and max_queue is 0");
    }
    if spec.adaptive.is_some() && spec.gradient.is_some() {
        check.add("gradient", "adaptive and gradient move the same limit: choose one");
    }
    check.within("adaptive", spec.adaptive.as_ref(), adaptive);
    check.within("gradient", spec.gradient.as_ref(), gradient);
    let least = [spec.adaptive.map(|it| it.min_concurrency), spec.gradient.map(|it| it.min_concurrency)];
    if least.into_iter().flatten().any(|least| least > spec.max_concurrency) {
        check.add("max_concurrency", "must not be below min_concurrency");
    }
}

fn adaptive(check: &mut Check, spec: &AdaptiveSpec) {
    check.duration("latency_threshold", spec.latency_threshold);
    check.count("min_concurrency", spec.min_concurrency.into());
    if !(spec.backoff_ratio > 0.0 && spec.backoff_ratio < 1.0) {
        check.add("backoff_ratio", "must lie between 0 and 1, both excluded");
    }
    check.positive("increase_step", spec.increase_step);
    check.bounded("cooldown", spec.cooldown);
    check.optional_quantile("latency_quantile", spec.latency_quantile);
}

fn gradient(check: &mut Check, spec: &GradientSpec) {
    check.count("min_concurrency", spec.min_concurrency.into());
    check.at_least_one("rtt_tolerance", spec.rtt_tolerance);
    check.optional_share("smoothing", Some(spec.smoothing));
    check.count("long_window", spec.long_window.into());
    if let Some(headroom) = spec.headroom {
        check.positive("headroom", headroom);
    }
}

pub(super) fn hedge(check: &mut Check, spec: &HedgeSpec) {
    check.duration("delay", spec.delay);
    if !(2..=MAX_COUNT).contains(&spec.max_attempts.into()) {
        check.add("max_attempts", &format!("must be between 2 and {MAX_COUNT}: the first counts"));
    }
    check.optional_quantile("adaptive_delay_quantile", spec.adaptive_delay_quantile);
    for (field, bound) in [("delay_min", spec.delay_min), ("delay_max", spec.delay_max)] {
        check.optional_duration(field, bound);
        if bound.is_some() && spec.adaptive_delay_quantile.is_none() {
            check.add(field, "bounds an adaptive delay, and there is no adaptive_delay_quantile");
        }
    }
    if let (Some(least), Some(most)) = (spec.delay_min, spec.delay_max)
        && most < least
    {
        check.add("delay_max", "must not be shorter than delay_min");
    }
    check.within("budget", Some(&spec.budget), budget);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::policy::Policy;

    const MS: Duration = Duration::from_millis(1);

    fn paths(policy: &Policy) -> Vec<String> {
        let strip = |path: String| path.trim_start_matches("policies.p.").to_owned();
        policy.mistakes().into_iter().map(|mistake| strip(mistake.path)).collect()
    }

    fn of_bulkhead(spec: BulkheadSpec) -> Vec<String> {
        paths(&Policy::named("p").bulkhead(spec))
    }

    #[test]
    fn an_option_of_a_queue_needs_a_queue() {
        let spec = BulkheadSpec::fixed(8)
            .queue_timeout(MS)
            .queue_target(MS)
            .queue_interval(50 * MS)
            .adaptive_lifo()
            .prioritized();
        let expected = ["queue_timeout", "queue_target", "queue_interval", "queue_adaptive_lifo", "prioritized"];
        assert_eq!(of_bulkhead(spec), expected.map(|option| format!("bulkhead.{option}")));
        assert!(of_bulkhead(spec.queue(1)).is_empty());
    }

    #[test]
    fn a_cap_of_the_fleet_is_not_below_that_of_one_process() {
        let spec = BulkheadSpec::fixed(8);
        for wrong in [0, 7, u32::MAX] {
            assert_eq!(of_bulkhead(spec.fleet_max_concurrency(wrong)), ["bulkhead.fleet_max_concurrency"], "{wrong}");
        }
        assert!(of_bulkhead(spec.fleet_max_concurrency(8)).is_empty());
    }

    #[test]
    fn a_target_must_be_shorter_than_the_interval() {
        let spec = BulkheadSpec::fixed(8).queue(8);
        assert_eq!(of_bulkhead(spec.queue_target(100 * MS)), ["bulkhead.queue_target"]);
        assert!(of_bulkhead(spec.queue_target(99 * MS)).is_empty());
    }

    #[test]
    fn adaptive_and_gradient_exclude_each_other() {
        let mut spec = BulkheadSpec::adaptive(8, AdaptiveSpec::threshold(MS));
        spec.gradient = Some(GradientSpec::default());
        assert_eq!(of_bulkhead(spec), ["bulkhead.gradient"]);
    }

    #[test]
    fn invalid_numbers_of_an_adaptive_limit_are_rejected() {
        let adaptive = AdaptiveSpec::threshold(Duration::ZERO)
            .min_concurrency(9)
            .backoff_ratio(1.0)
            .increase_step(f64::NAN)
            .quantile(1.0);
        let expected = ["latency_threshold", "backoff_ratio", "increase_step", "latency_quantile"];
        let mut expected = expected.map(|field| format!("bulkhead.adaptive.{field}")).to_vec();
        expected.push("bulkhead.max_concurrency".to_owned());
        assert_eq!(of_bulkhead(BulkheadSpec::adaptive(8, adaptive)), expected);

        let gradient = GradientSpec::default().rtt_tolerance(0.5).smoothing(0.0).long_window(0).headroom(-1.0);
        let expected = ["rtt_tolerance", "smoothing", "long_window", "headroom"];
        let expected = expected.map(|field| format!("bulkhead.gradient.{field}"));
        assert_eq!(of_bulkhead(BulkheadSpec::gradient(8, gradient)), expected);
    }

    #[test]
    fn a_hedge_needs_an_idempotent_operation() {
        let policy = Policy::named("p").hedge(HedgeSpec::after(MS));
        assert_eq!(paths(&policy), ["idempotent"]);
        assert!(paths(&policy.idempotent()).is_empty());
    }

    #[test]
    fn a_hedge_needs_two_attempts_and_bounds_need_an_adaptive_delay() {
        let spec = HedgeSpec::after(MS).max_attempts(1).between(2 * MS, MS);
        let policy = Policy::named("p").hedge(spec).idempotent();
        let expected = ["max_attempts", "delay_min", "delay_max", "delay_max"];
        assert_eq!(paths(&policy), expected.map(|field| format!("hedge.{field}")));
    }
}

//! Three policies that together use every stage.
//!
//! A production policy has a window of ten seconds and a break of thirty. Here both are scaled to the phases of the demo.

use std::time::Duration;

use phalanx::policy::{BudgetSpec, DeadlineSpec};
use phalanx::{Backoff, BreakerSpec, BulkheadSpec, HedgeSpec, Policy, RateLimitSpec, RetrySpec, ThrottleSpec};

use crate::scenario::Scenario;

pub(crate) const CATALOG: &str = "catalog";
pub(crate) const CHECKOUT: &str = "checkout";
pub(crate) const REVIEWS: &str = "reviews";

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn all(scenario: &Scenario) -> [Policy; 3] {
    [catalog(scenario), checkout(scenario), reviews(scenario)]
}

/// Reads: idempotent, with retries and hedges.
fn catalog(scenario: &Scenario) -> Policy {
    let bulkhead = BulkheadSpec::fixed(6).queue(12).queue_target(ms(15)).queue_interval(ms(60));
    let breaker = BreakerSpec::failure_ratio(0.5)
        .window(scenario.fraction(1, 3))
        .min_throughput(10)
        .break_for(scenario.fraction(1, 5))
        .probes(1, 3);
    let backoff = Backoff::exponential(ms(10)).max(ms(40));
    // Small enough to be used up when more than the tail is slow.
    let hedge_budget = BudgetSpec::ratio(0.03).min_per_second(0);
    Policy::named(CATALOG)
        .deadline(DeadlineSpec::total(ms(300)).safety_margin(ms(10)))
        .rate_limit(RateLimitSpec::per_second(120).burst(40))
        .bulkhead(bulkhead)
        .breaker(breaker)
        .retry(RetrySpec::attempts(3).backoff(backoff).budget(BudgetSpec::ratio(0.1)))
        .hedge(HedgeSpec::after(ms(60)).at_quantile(0.95).between(ms(30), ms(90)).budget(hedge_budget))
        .timeout(ms(160))
        .idempotent()
}

/// Writes: one attempt each.
fn checkout(scenario: &Scenario) -> Policy {
    Policy::named(CHECKOUT)
        .rate_limit(RateLimitSpec::per_second(30).burst(10))
        .bulkhead(BulkheadSpec::fixed(2).queue(2).queue_timeout(ms(30)))
        .breaker(BreakerSpec::consecutive_failures(5).break_for(scenario.fraction(1, 6)))
        .timeout(ms(400))
}

/// An optional part of a page: the more calls fail, the fewer are sent.
fn reviews(scenario: &Scenario) -> Policy {
    let throttle = ThrottleSpec::default().window(scenario.fraction(1, 3)).min_throughput(10);
    Policy::named(REVIEWS).throttle(throttle).timeout(ms(120))
}

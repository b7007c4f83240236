//! The policy under test: rate limit, breaker, retry with a budget, timeout.
//!
//! A production policy has a window of ten seconds and a break of thirty. Here both are scaled to the length of the
//! scenario, so that the breaker reacts in every state of the upstream.

use std::time::Duration;

use phalanx::policy::BudgetSpec;
use phalanx::{Backoff, BreakerSpec, Policy, RateLimitSpec, RetrySpec};

use crate::scenario::Scenario;

/// Probes at a time and how many must succeed: over one store in memory, and over Redis, where the demo checks that all
/// processes together send one at a time.
pub(crate) const TWO_PROBES: (u32, u32) = (2, 6);
pub(crate) const ONE_PROBE: (u32, u32) = (1, 3);

/// The name of the policy, and the route.
pub(crate) const NAME: &str = "payments";
pub(crate) const ROUTE: &str = "stripe";

/// Calls per second of each replica: a little more than its share of the limit, so that the limit rejects some.
pub(crate) const DEMAND: f64 = 60.0;
const LIMIT_PER_REPLICA: u64 = 50;

const TIMEOUT: Duration = Duration::from_millis(250);
const SLOW: Duration = Duration::from_millis(150);

pub(crate) fn of(scenario: &Scenario, replicas: usize, probes: (u32, u32)) -> Policy {
    let limit = LIMIT_PER_REPLICA * replicas as u64;
    let window = scenario.fraction(1, 16).clamp(Duration::from_millis(400), Duration::from_secs(2));
    let breaker = BreakerSpec::failure_ratio(0.5)
        .or_slow_call_ratio(0.9, SLOW)
        .window(window)
        .min_throughput(15)
        .break_for(scenario.fraction(2, 25))
        .probes(probes.0, probes.1)
        .ramp(scenario.fraction(1, 16), 4)
        // With attempts counted, an open breaker rejects retries of running calls too: only probes reach the upstream.
        .count_attempts();
    let backoff = Backoff::exponential(Duration::from_millis(20)).max(Duration::from_millis(100));
    Policy::named(NAME)
        .rate_limit(RateLimitSpec::per_second(limit).burst(limit / 10))
        .breaker(breaker)
        .retry(RetrySpec::attempts(3).backoff(backoff).budget(BudgetSpec::ratio(0.05)))
        .timeout(TIMEOUT)
}

//! What stands between the replicas and their upstream: rate limit, breaker, retry with a budget, timeout.
//!
//! A production policy has a window of ten seconds and a break of thirty. These are that, in the time of the story:
//! every act must see the circuit react.

use std::time::Duration;

use phalanx::policy::BudgetSpec;
use phalanx::{Backoff, BreakerSpec, Policy, RateLimitSpec, RetrySpec};

use crate::story::Story;

/// Trial calls at a time and how many must succeed: over one store in memory, and over Redis, where it is to be seen
/// that there is one at a time in all processes together.
pub(crate) const TWO_PROBES: (u32, u32) = (2, 6);
pub(crate) const ONE_PROBE: (u32, u32) = (1, 3);

/// The policy's name, and the route it is applied to.
pub(crate) const NAME: &str = "payments";
pub(crate) const ROUTE: &str = "stripe";

/// Calls a second that each replica wants to make: a little more than its part of the limit, so that the limit shows.
pub(crate) const DEMAND: f64 = 60.0;
const LIMIT_PER_REPLICA: u64 = 50;

const TIMEOUT: Duration = Duration::from_millis(250);
const SLOW: Duration = Duration::from_millis(150);

pub(crate) fn of(story: &Story, replicas: usize, probes: (u32, u32)) -> Policy {
    let limit = LIMIT_PER_REPLICA * replicas as u64;
    let window = story.share(1, 16).clamp(Duration::from_millis(400), Duration::from_secs(2));
    let breaker = BreakerSpec::failure_ratio(0.5)
        .or_slow_call_ratio(0.9, SLOW)
        .window(window)
        .min_throughput(15)
        .break_for(story.share(2, 25))
        .probes(probes.0, probes.1)
        .ramp(story.share(1, 16), 4)
        // An open circuit ends retries that are under way too: once it is open, nothing but probes gets through.
        .count_attempts();
    let backoff = Backoff::exponential(Duration::from_millis(20)).max(Duration::from_millis(100));
    Policy::named(NAME)
        .rate_limit(RateLimitSpec::per_second(limit).burst(limit / 10))
        .breaker(breaker)
        .retry(RetrySpec::attempts(3).backoff(backoff).budget(BudgetSpec::ratio(0.05)))
        .timeout(TIMEOUT)
}

//! `tower-resilience`: the peer of the whole stack, with the same layers.
//!
//! Its defaults are also its fastest settings and are kept: a breaker that counts calls (one with a time window keeps a
//! record of each call and iterates over all of them on every call) and a limiter with fixed windows. The layers keep their
//! names too: each layer copies its name into an event on every call, with or without listeners. An empty name would save
//! 6 to 8 % of the stack, but is not realistic.

use std::error::Error;
use std::time::Duration;

use tower::{Layer, ServiceBuilder};
use tower_resilience::bulkhead::BulkheadLayer;
use tower_resilience::circuitbreaker::CircuitBreakerLayer;
use tower_resilience::hedge::HedgeLayer;
use tower_resilience::ratelimiter::RateLimiterLayer;
use tower_resilience::retry::{ExponentialBackoff, RetryLayer};
use tower_resilience::timelimiter::TimeLimiterLayer;

use super::service::{ServiceCaller, serve};
use crate::contender::{Caller, poll_until_ready};
use crate::operation::Operation;
use crate::settings::{
    ATTEMPTS, FAILURE_RATIO, FIRST_BACKOFF, HEDGE_DELAY, LONG_BREAK, LONGEST_BACKOFF, MIN_CALLS, SLOTS, TIMEOUT,
    UNREACHABLE_RATE,
};

/// The full stack, outermost first. Clones share their state, as the cases with 64 tasks need it.
pub(crate) fn stack(operation: impl Operation) -> Result<impl Caller + Clone, Box<dyn Error>> {
    Ok(ServiceCaller(
        ServiceBuilder::new()
            .layer(retry_layer())
            .layer(breaker_layer()?)
            .layer(bulkhead_layer()?)
            .layer(rate_limit_layer()?)
            .layer(timeout_layer())
            .service(serve(operation)),
    ))
}

/// The same stack with a hedge, innermost as its documentation recommends, so that the timeout also bounds hedges.
pub(crate) fn hedged_stack(operation: impl Operation) -> Result<impl Caller, Box<dyn Error>> {
    Ok(ServiceCaller(
        ServiceBuilder::new()
            .layer(retry_layer())
            .layer(breaker_layer()?)
            .layer(bulkhead_layer()?)
            .layer(rate_limit_layer()?)
            .layer(timeout_layer())
            .layer(HedgeLayer::new(HEDGE_DELAY))
            .service(serve(operation)),
    ))
}

pub(crate) fn retry(operation: impl Operation) -> impl Caller {
    ServiceCaller(retry_layer().layer(serve(operation)))
}

pub(crate) fn breaker(operation: impl Operation) -> Result<impl Caller, Box<dyn Error>> {
    Ok(ServiceCaller(breaker_layer()?.layer(serve(operation))))
}

pub(crate) fn rate_limit(operation: impl Operation) -> Result<impl Caller, Box<dyn Error>> {
    Ok(ServiceCaller(rate_limit_layer()?.layer(serve(operation))))
}

pub(crate) fn bulkhead(operation: impl Operation) -> Result<impl Caller, Box<dyn Error>> {
    Ok(ServiceCaller(bulkhead_layer()?.layer(serve(operation))))
}

pub(crate) fn timeout(operation: impl Operation) -> impl Caller {
    ServiceCaller(timeout_layer().layer(serve(operation)))
}

/// Only a breaker, open for longer than any run.
pub(crate) fn open_breaker(operation: impl Operation) -> Result<impl Caller, Box<dyn Error>> {
    let breaker = breaker_layer()?.layer(serve(operation));
    poll_until_ready(breaker.force_open());
    Ok(ServiceCaller(breaker))
}

fn retry_layer<E>() -> RetryLayer<(), u32, E> {
    RetryLayer::builder()
        .max_attempts(ATTEMPTS)
        .backoff(ExponentialBackoff::new(FIRST_BACKOFF).max_interval(LONGEST_BACKOFF))
        .build()
}

fn breaker_layer() -> Result<CircuitBreakerLayer, Box<dyn Error>> {
    Ok(CircuitBreakerLayer::builder()
        .failure_rate_threshold(FAILURE_RATIO)
        .minimum_number_of_calls(MIN_CALLS as usize)
        .wait_duration_in_open(LONG_BREAK)
        .build()?)
}

fn bulkhead_layer() -> Result<BulkheadLayer, Box<dyn Error>> {
    Ok(BulkheadLayer::builder().max_concurrent_calls(SLOTS as usize).build()?)
}

fn rate_limit_layer() -> Result<RateLimiterLayer, Box<dyn Error>> {
    Ok(RateLimiterLayer::builder()
        .limit_for_period(UNREACHABLE_RATE as usize)
        .refresh_period(Duration::from_secs(1))
        .build()?)
}

fn timeout_layer() -> TimeLimiterLayer {
    TimeLimiterLayer::builder().timeout_duration(TIMEOUT).build()
}

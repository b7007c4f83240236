//! The contenders that use the `phalanx` crate.

mod by_name;
pub(crate) mod layer;
pub(crate) mod observed;
pub(crate) mod queue;

use std::error::Error;
use std::time::Duration;

use phalanx::standalone::{Bulkhead, CircuitBreaker, RateLimiter};
use phalanx::{
    Backoff, BreakerSpec, BulkheadSpec, Class, Classify, HedgeSpec, Kind, Pipeline, Policy, RateLimitSpec,
    ResilienceModule, RetrySpec,
};

pub(crate) use self::by_name::{by_attribute, by_hand};
use crate::contender::{Caller, poll_until_ready};
use crate::operation::{Operation, OperationError};
use crate::settings::{
    ATTEMPTS, FAILURE_RATIO, FIRST_BACKOFF, HEDGE_DELAY, LONG_BREAK, LONGEST_BACKOFF, MIN_CALLS, SLOTS, TIMEOUT,
    UNREACHABLE_RATE,
};

/// Calls through a kept pipeline, like the hot path of a service; clones share one key.
#[derive(Clone)]
struct PipelineCaller<O> {
    pipeline: Pipeline,
    operation: O,
}

impl<O: Operation> Caller for PipelineCaller<O> {
    async fn call(&mut self) -> bool {
        self.pipeline.run(self.operation).await.is_ok()
    }
}

impl Classify for OperationError {
    fn classify(&self) -> Class {
        Kind::Infrastructure.into()
    }
}

/// The same stages as `peers::tower_resilience::stack`.
pub(crate) fn stack<O: Operation>(operation: O) -> Result<impl Caller + Clone, Box<dyn Error>> {
    through(operation, five_stages())
}

/// The same stages and a hedge, as in `peers::tower_resilience::hedged_stack`.
pub(crate) fn hedged_stack<O: Operation>(operation: O) -> Result<impl Caller, Box<dyn Error>> {
    through(operation, five_stages().hedge(HedgeSpec::after(HEDGE_DELAY)).idempotent())
}

/// A policy without stages.
pub(crate) fn pass_through<O: Operation>(operation: O) -> Result<impl Caller, Box<dyn Error>> {
    through(operation, policy())
}

/// A stand-alone rate limiter.
pub(crate) fn rate_limiter() -> Result<impl FnMut() -> bool, Box<dyn Error>> {
    let limiter = RateLimiter::new(&rate_limit_spec())?;
    Ok(move || limiter.try_acquire().is_ok())
}

/// A stand-alone circuit breaker around a call that succeeds.
pub(crate) fn circuit_breaker() -> Result<impl FnMut() -> bool, Box<dyn Error>> {
    let breaker = CircuitBreaker::new(&breaker_spec())?;
    Ok(move || breaker.enter().map(|entered| entered.succeeded()).is_ok())
}

/// A stand-alone bulkhead: acquires and releases a slot.
pub(crate) fn bulkhead_standalone() -> Result<impl FnMut() -> bool, Box<dyn Error>> {
    let bulkhead = Bulkhead::new(&bulkhead_spec())?;
    Ok(move || bulkhead.try_enter().map(drop).is_ok())
}

pub(crate) fn retry<O: Operation>(operation: O) -> Result<impl Caller, Box<dyn Error>> {
    through(operation, policy().retry(retry_spec()))
}

pub(crate) fn breaker<O: Operation>(operation: O) -> Result<impl Caller, Box<dyn Error>> {
    through(operation, policy().breaker(breaker_spec()))
}

pub(crate) fn rate_limit<O: Operation>(operation: O) -> Result<impl Caller, Box<dyn Error>> {
    through(operation, policy().rate_limit(rate_limit_spec()))
}

pub(crate) fn bulkhead<O: Operation>(operation: O) -> Result<impl Caller, Box<dyn Error>> {
    through(operation, policy().bulkhead(bulkhead_spec()))
}

pub(crate) fn timeout<O: Operation>(operation: O) -> Result<impl Caller, Box<dyn Error>> {
    through(operation, policy().timeout(TIMEOUT))
}

/// A policy with only a breaker, which is open for longer than any run.
pub(crate) fn open_breaker<O: Operation>(operation: O) -> Result<impl Caller, Box<dyn Error>> {
    let breaker = BreakerSpec::consecutive_failures(1).break_for(LONG_BREAK).escalate(1.0, LONG_BREAK);
    let breaker = through(operation, policy().breaker(breaker))?;
    let _failed = poll_until_ready(breaker.pipeline.run(|| async { Err::<u32, _>(OperationError) }));
    Ok(breaker)
}

fn five_stages() -> Policy {
    policy()
        .retry(retry_spec())
        .breaker(breaker_spec())
        .bulkhead(bulkhead_spec())
        .rate_limit(rate_limit_spec())
        .timeout(TIMEOUT)
}

fn policy() -> Policy {
    Policy::named("bench")
}

fn through<O: Operation>(operation: O, policy: Policy) -> Result<PipelineCaller<O>, Box<dyn Error>> {
    let module = ResilienceModule::in_memory().policy(policy).build()?;
    Ok(PipelineCaller { pipeline: module.pipeline("bench", "peer")?, operation })
}

fn retry_spec() -> RetrySpec {
    RetrySpec::attempts(ATTEMPTS as u32)
        .on([Kind::Infrastructure])
        .backoff(Backoff::exponential(FIRST_BACKOFF).max(LONGEST_BACKOFF))
}

fn breaker_spec() -> BreakerSpec {
    BreakerSpec::failure_ratio(FAILURE_RATIO)
        .window(Duration::from_secs(10))
        .min_throughput(MIN_CALLS)
        .break_for(Duration::from_secs(30))
}

fn bulkhead_spec() -> BulkheadSpec {
    BulkheadSpec::fixed(SLOTS)
}

fn rate_limit_spec() -> RateLimitSpec {
    RateLimitSpec::per_second(UNREACHABLE_RATE.into())
}

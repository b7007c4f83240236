//! Allocations of a call through the attribute: none, the same as of a call written by hand.

#![allow(clippy::unwrap_used, clippy::panic)] // test helpers may panic

mod support;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use allocation_counter::measure;
use phalanx::{
    Backoff, BreakerSpec, BulkheadSpec, Kind, Policy, RateLimitSpec, ResilienceModule, Resilient, RetrySpec, resilient,
};
use support::Failure;

struct Adapter {
    module: ResilienceModule,
    region: String,
}

impl Resilient for Adapter {
    fn resilience(&self) -> &ResilienceModule {
        &self.module
    }
}

impl Adapter {
    fn new() -> Self {
        let policy = Policy::named("p")
            .rate_limit(RateLimitSpec::per_second(1_000_000))
            .bulkhead(BulkheadSpec::fixed(100))
            .breaker(BreakerSpec::failure_ratio(0.5).min_throughput(1_000_000))
            .retry(
                RetrySpec::attempts(3).on([Kind::Concurrency]).backoff(Backoff::exponential(Duration::from_millis(1))),
            )
            .timeout(Duration::from_secs(1));
        let module = ResilienceModule::in_memory().policy(policy).build().unwrap();
        Self { module, region: "eu".to_owned() }
    }

    #[resilient(policy = "p", route = &self.region)]
    async fn by_name(&self, amount: &u32) -> Result<u32, Failure> {
        Ok(*amount)
    }
}

#[resilient(policy = "p", route = &self.region)]
impl Adapter {
    async fn with_block(&self, amount: &u32) -> Result<u32, Failure> {
        Ok(*amount)
    }
}

fn at_once<T>(call: impl Future<Output = T>) -> T {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the call is not ready"),
    }
}

/// Counts the allocations of a hundred calls, after a hundred warm-up calls.
fn allocations(call: impl Fn()) -> u64 {
    let calls = || (0..100).for_each(|_| call());
    calls();
    measure(calls).count_total
}

#[test]
fn a_call_through_the_attribute_allocates_nothing() {
    let adapter = Adapter::new();
    assert_eq!(allocations(|| drop(Box::new(adapter.region.len()))), 100, "the counter counts");
    assert_eq!(allocations(|| assert_eq!(at_once(adapter.by_name(&7)), Ok(7))), 0);
    assert_eq!(allocations(|| assert_eq!(at_once(adapter.with_block(&7)), Ok(7))), 0);
}

#[test]
fn its_future_is_at_most_64_bytes_larger_than_that_of_a_call_by_hand() {
    let adapter = Adapter::new();
    let by_hand = async |amount: &u32| {
        let answer = adapter.module.run("p", &adapter.region, || async { Ok::<u32, Failure>(*amount) }).await;
        answer.map_err(|error| error.into_inner())
    };
    let (by_hand, by_name) = (size_of_val(&by_hand(&7)), size_of_val(&adapter.by_name(&7)));
    assert!(by_name <= by_hand + 64, "{by_name} bytes for {by_hand}");
}

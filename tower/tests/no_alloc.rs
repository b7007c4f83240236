//! A call through the layer allocates its future and nothing else.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use allocation_counter::measure;
use http::{Request, Response};
use http_body_util::Empty;
use phalanx::*;
use phalanx_tower::ResilienceLayer;
use tower::{Layer, Service, service_fn};

const CALLS: u64 = 100;
const SECOND: Duration = Duration::from_secs(1);

/// The measured policy: rate limit, bulkhead, breaker, retry, timeout.
fn stack() -> Policy {
    Policy::named("p")
        .rate_limit(RateLimitSpec::per_second(1_000_000))
        .bulkhead(BulkheadSpec::fixed(10))
        .breaker(BreakerSpec::failure_ratio(0.5).window(10 * SECOND))
        .retry(RetrySpec::attempts(3))
        .timeout(SECOND)
}

fn module(policy: Policy) -> ResilienceModule {
    ResilienceModule::in_memory().policy(policy).build().unwrap()
}

/// Returns the allocations of a hundred calls that complete at once, after a hundred calls for warm-up.
fn allocations<R, S: Service<R>>(mut service: S, mut request: impl FnMut() -> R) -> u64 {
    let mut rounds = || {
        for _ in 0..CALLS {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
            let answer = pin!(service.call(request())).poll(&mut cx);
            assert!(matches!(black_box(answer), Poll::Ready(Ok(_))));
        }
    };
    rounds();
    measure(rounds).count_total
}

fn answer(_: u32) -> Ready<Result<u32, Infallible>> {
    ready(Ok(1))
}

#[test]
fn a_call_through_five_stages_allocates_its_future_and_nothing_else() {
    let layer = ResilienceLayer::new(&module(stack()), "p").unwrap().route("eu").unwrap().any_service();
    assert_eq!(allocations(layer.layer(service_fn(answer)), || 7), CALLS);
}

#[test]
fn a_route_computed_from_the_request_adds_no_allocation_once_it_exists() {
    let layer = ResilienceLayer::new(&module(stack()), "p").unwrap().any_service();
    let layer = layer.route_by(|number: &u32| if *number == 7 { "seven".into() } else { "other".into() });
    assert_eq!(allocations(layer.layer(service_fn(answer)), || 7), CALLS);
}

#[test]
fn an_http_request_that_is_not_repeated_is_not_copied() {
    type Body = Empty<&'static [u8]>;
    let policy = Policy { retry: None, ..stack() };
    let service = service_fn(|_: Request<Body>| ready(Ok::<_, Infallible>(Response::new(Body::new()))));
    let layer = ResilienceLayer::new(&module(policy), "p").unwrap().send_once().answer_rejections();
    assert_eq!(allocations(layer.layer(service), || Request::new(Body::new())), CALLS);
}

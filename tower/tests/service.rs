//! The layer on services of any kind: readiness, repetition, classification, errors, and release on drop.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

mod support;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context as TaskContext, Poll, Waker};

use phalanx::*;
use phalanx_tower::{BoxError, ResilienceLayer};
use support::*;
use tokio::sync::oneshot;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

/// A service that panics if it is called without `poll_ready`, as the contract of `tower::Service` allows. A clone is not
/// ready.
#[derive(Debug, Default)]
struct Strict {
    ready: bool,
    calls: Arc<AtomicUsize>,
    clones: Arc<AtomicUsize>,
    failures: usize,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        self.clones.fetch_add(1, Relaxed);
        Self { ready: false, calls: self.calls.clone(), clones: self.clones.clone(), failures: self.failures }
    }
}

impl<R> Service<R> for Strict {
    type Response = usize;
    type Error = io::Error;
    type Future = std::future::Ready<io::Result<usize>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: R) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without poll_ready");
        let call = self.calls.fetch_add(1, Relaxed) + 1;
        std::future::ready(if call <= self.failures { Err(io::Error::other("broken")) } else { Ok(call) })
    }
}

fn failing(failures: usize) -> Strict {
    Strict { failures, ..Strict::default() }
}

/// A request that cannot be cloned.
struct NotClone;

#[tokio::test]
async fn an_unknown_policy_is_an_error_when_the_layer_is_made() {
    let module = module(Policy::named("p"));
    let misspelt = ResilienceLayer::new(&module, "typo").unwrap_err();
    assert_eq!(misspelt.code(), RejectionCode::UnknownPolicy);
    let long = "x".repeat(1025);
    assert_eq!(
        ResilienceLayer::new(&module, "p").unwrap().route(&long).unwrap_err().code(),
        RejectionCode::RouteTooLong
    );

    let layer = ResilienceLayer::by_request(&module, |module, _: &()| module.pipeline("typo", ())).any_service();
    let rejected = layer.layer(Strict::default()).oneshot(()).await.unwrap_err();
    assert_eq!(
        rejected.rejection().unwrap().code(),
        RejectionCode::UnknownPolicy,
        "selected by a function, when the request is sent"
    );
}

#[tokio::test]
async fn every_attempt_polls_the_clone_it_calls_for_readiness() {
    let module = module(Policy::named("p").retry(retry()));
    let service = failing(2);
    let mut layered = ResilienceLayer::new(&module, "p").unwrap().any_service().layer(service.clone());
    assert_eq!(ServiceExt::<()>::ready(&mut layered).await.unwrap().call(()).await.unwrap(), 3);
    assert_eq!(layered.call(()).await.unwrap(), 4, "always ready");
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_readiness_counts_towards_the_policys_timeout() {
    let module = module(Policy::named("p").timeout(100 * MS).breaker(open_on_first_failure()));
    let hang = service_fn(|()| std::future::pending::<Result<(), Infallible>>());
    let one_at_a_time = ConcurrencyLimitLayer::new(1).layer(hang);
    let layered = ResilienceLayer::new(&module, "p").unwrap().any_service().layer(one_at_a_time.clone());
    let mut occupied = one_at_a_time;
    let _held = occupied.ready().await.unwrap().call(());

    let mut caller = layered.clone();
    let ready = caller.ready().await.unwrap();
    let late = ready.call(()).await.unwrap_err();
    assert_eq!(late.rejection().unwrap().code(), RejectionCode::AttemptTimeout);
    let rejected = layered.oneshot(()).await.unwrap_err();
    assert_eq!(
        rejected.rejection().unwrap().code(),
        RejectionCode::CircuitOpen,
        "at once, although the inner service is not ready"
    );
}

#[tokio::test]
async fn without_retry_and_hedge_the_request_is_moved_and_the_service_cloned_once() {
    let module = module(Policy::named("p").breaker(open_on_first_failure()).timeout(SECOND));
    let service = Strict::default();
    let mut layered = ResilienceLayer::new(&module, "p").unwrap().any_service().send_once().layer(service.clone());
    let before = service.clones.load(Relaxed);
    assert_eq!(layered.call(NotClone).await.unwrap(), 1);
    assert_eq!(service.clones.load(Relaxed) - before, 1);
}

#[tokio::test]
async fn a_request_that_cannot_be_cloned_is_sent_once_under_any_policy() {
    let module = module(Policy::named("p").retry(retry()));
    let service = failing(1);
    let layered = ResilienceLayer::new(&module, "p").unwrap().any_service().send_once().layer(service.clone());
    assert!(layered.oneshot(NotClone).await.unwrap_err().inner().is_some());
    assert_eq!(service.calls.load(Relaxed), 1);
}

#[tokio::test]
async fn a_policy_that_gains_a_retry_repeats_from_then_on() {
    let module = module(Policy::named("p"));
    let service = failing(3);
    let mut layered = ResilienceLayer::new(&module, "p").unwrap().any_service().layer(service.clone());
    assert!(layered.call(()).await.is_err());
    module.retune(Policy::named("p").retry(retry())).unwrap();
    assert_eq!(layered.call(()).await.unwrap(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_sends_a_clone_of_the_request() {
    let module = module(Policy::named("p").hedge(HedgeSpec::after(50 * MS)).idempotent());
    let calls = Arc::new(AtomicUsize::new(0));
    let service = service_fn(move |name: String| {
        let call = calls.fetch_add(1, Relaxed);
        async move {
            if call == 0 {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(format!("{name}, {call}"))
        }
    });
    let layered = ResilienceLayer::new(&module, "p").unwrap().any_service().layer(service);
    assert_eq!(layered.oneshot("eu".to_owned()).await.unwrap(), "eu, 1");
}

#[tokio::test]
async fn clones_of_layer_and_service_share_breaker_and_limits() {
    let module = module(Policy::named("p").rate_limit(RateLimitSpec::new(3, 3_600 * SECOND)));
    let layer = ResilienceLayer::new(&module, "p").unwrap().any_service();
    let first = layer.layer(Strict::default());
    let other = ResilienceLayer::new(&module, "p").unwrap().any_service().layer(Strict::default());
    for service in [first.clone(), first, layer.clone().layer(Strict::default())] {
        assert!(service.oneshot(()).await.is_ok());
    }
    assert_eq!(other.oneshot(()).await.unwrap_err().rejection().unwrap().code(), RejectionCode::RateLimited);
}

#[tokio::test]
async fn each_route_has_its_own_state() {
    let module = module(Policy::named("p").breaker(open_on_first_failure()));
    let layer =
        ResilienceLayer::new(&module, "p").unwrap().any_service().route_by(|host: &&'static str| (*host).into());
    let by_host = async |host: &'static str| if host == "eu" { Err(io::Error::other("broken")) } else { Ok(host) };
    let mut layered = layer.layer(service_fn(by_host));
    assert!(layered.call("eu").await.unwrap_err().inner().is_some());
    assert_eq!(layered.call("eu").await.unwrap_err().rejection().unwrap().code(), RejectionCode::CircuitOpen);
    assert_eq!(layered.call("us").await.unwrap(), "us");

    let open = ResilienceLayer::new(&module, "p").unwrap().any_service().route("eu").unwrap();
    assert!(open.layer(Strict::default()).oneshot(()).await.is_err(), "the same route by value");
}

#[tokio::test]
async fn policy_and_route_can_be_selected_by_the_request() {
    let policies = [Policy::named("read").retry(retry()), Policy::named("write")];
    let module = ResilienceModule::in_memory().policies(policies).build().unwrap();
    let layer = ResilienceLayer::by_request(&module, |module, write: &bool| {
        module.pipeline(if *write { "write" } else { "read" }, "db")
    });
    let service = failing(1);
    let mut layered = layer.any_service().layer(service.clone());
    assert!(layered.call(true).await.is_err(), "a write is not repeated");
    let mut layered = ResilienceLayer::by_request(&module, |module, _: &bool| module.pipeline("read", ()))
        .any_service()
        .layer(failing(2));
    assert_eq!(layered.call(false).await.unwrap(), 3);
}

#[tokio::test]
async fn results_can_be_classified_by_a_closure() {
    let module = module(Policy::named("p").retry(retry()));
    let layer = ResilienceLayer::new(&module, "p").unwrap().any_service();
    let layer = layer.classify(|result: &io::Result<usize>| match result {
        Ok(1) => Kind::Infrastructure.into(),
        Ok(_) => Class::SUCCESS,
        Err(error) => error.classify(),
    });
    assert_eq!(layer.layer(Strict::default()).oneshot(()).await.unwrap(), 2);
}

#[tokio::test]
async fn boxed_errors_can_be_downcast() {
    let module = module(Policy::named("p").breaker(open_on_first_failure()));
    let layer = ResilienceLayer::new(&module, "p").unwrap().any_service().boxed_errors();
    let mut layered = ServiceBuilder::new().layer(layer).service(failing(1));
    let inner: BoxError = layered.call(()).await.unwrap_err();
    assert_eq!(inner.downcast::<io::Error>().unwrap().to_string(), "broken");
    let rejected: tower::BoxError = layered.call(()).await.unwrap_err();
    assert_eq!(rejected.downcast_ref::<Rejection>().unwrap().code(), RejectionCode::CircuitOpen);
}

#[tokio::test]
async fn a_rejection_can_be_mapped_to_a_response() {
    let module = module(Policy::named("p").rate_limit(RateLimitSpec::new(1, 3_600 * SECOND)));
    let layer = ResilienceLayer::new(&module, "p").unwrap().any_service();
    let layer = layer.map_rejection(|rejection| rejection.code().to_string());
    let mut layered = layer.layer(service_fn(async |()| Ok::<_, Infallible>("fine".to_owned())));
    assert_eq!(layered.call(()).await, Ok("fine".to_owned()));
    assert_eq!(layered.call(()).await, Ok("rate_limited".to_owned()));
}

#[tokio::test]
async fn an_outer_retry_stops_at_the_rejection_of_an_inner_breaker() {
    let policies = [Policy::named("outer").retry(retry()), Policy::named("inner").breaker(open_on_first_failure())];
    let module = ResilienceModule::in_memory().policies(policies).build().unwrap();
    let layer = |name| ResilienceLayer::new(&module, name).unwrap().any_service();
    let service = failing(9);
    let layered = ServiceBuilder::new().layer(layer("outer")).layer(layer("inner")).service(service.clone());
    let error = layered.oneshot(()).await.unwrap_err();
    assert_eq!(error.kind(), Some(Kind::Infrastructure));
    assert_eq!(service.calls.load(Relaxed), 1, "the inner breaker opened and the outer retry stopped");
}

/// Drops the response future after each possible number of polls, and checks that nothing is held.
#[tokio::test(start_paused = true)]
async fn dropping_the_response_future_at_any_await_releases_everything() {
    let policy = Policy::named("p")
        .rate_limit(RateLimitSpec::new(1_000, SECOND).burst(1).max_wait(SECOND))
        .bulkhead(BulkheadSpec::fixed(1).queue(1))
        .breaker(BreakerSpec::consecutive_failures(9))
        .retry(retry())
        .timeout(SECOND);
    let module = module(policy);
    let pipeline = module.pipeline("p", ()).unwrap();
    let (permits, calls) = (Arc::new(tokio::sync::Semaphore::new(1)), Arc::new(AtomicUsize::new(0)));
    let (held, counted) = (permits.clone(), calls.clone());
    let service = service_fn(move |()| {
        let (permits, calls) = (held.clone(), counted.clone());
        async move {
            let _permit = permits.acquire_owned().await;
            tokio::task::yield_now().await;
            let first = calls.fetch_add(1, Relaxed).is_multiple_of(2);
            if first { Err(io::Error::other("broken")) } else { Ok(()) }
        }
    });
    let inner = ConcurrencyLimitLayer::new(1).layer(service);
    let layered = ResilienceLayer::new(&module, "p").unwrap().any_service().layer(inner.clone());
    let mut ended = false;
    for polls in 0..100 {
        if ended {
            break;
        }
        calls.store(0, Relaxed);
        let mut call = Box::pin(layered.clone().call(()));
        for _ in 0..polls {
            ended = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await.is_ready();
            if ended {
                break;
            }
            tokio::time::sleep(MS).await;
        }
        drop(call);
        assert_eq!(pipeline.available_slots(), Some(1), "after {polls} polls");
        assert_eq!(permits.available_permits(), 1, "after {polls} polls");
        let mut service = inner.clone();
        assert!(service.poll_ready(&mut TaskContext::from_waker(Waker::noop())).is_ready(), "after {polls} polls");
        tokio::time::sleep(SECOND).await;
    }
    assert!(ended, "the last call completed");
}

#[tokio::test]
async fn a_future_that_is_never_polled_sends_nothing() {
    let service = Strict::default();
    let module = module(Policy::named("p").bulkhead(BulkheadSpec::fixed(1)));
    let mut layered = ResilienceLayer::new(&module, "p").unwrap().any_service().layer(service.clone());
    drop(layered.call(()));
    assert_eq!(service.calls.load(Relaxed), 0);
    assert_eq!(module.pipeline("p", ()).unwrap().available_slots(), Some(1));
}

#[tokio::test]
async fn a_call_can_run_in_a_spawned_task() {
    let module = module(Policy::named("p").retry(retry()));
    let (answered, answer) = oneshot::channel();
    let mut layered = ResilienceLayer::new(&module, "p").unwrap().any_service().layer(failing(1));
    tokio::spawn(async move { answered.send(layered.call(()).await.unwrap()) });
    assert_eq!(answer.await.unwrap(), 2);
}

//! Fallbacks: when they answer, with what, and how the answer is marked.

mod support;

use std::panic::AssertUnwindSafe;

use phalanx::fallback::Degraded;
use phalanx::*;
use support::*;

async fn broken() -> Result<u32, Failure> {
    Err(BROKEN)
}

#[tokio::test(start_paused = true)]
async fn a_value_a_function_and_an_async_function_answer() {
    let module = module(Policy::named("p"));
    assert_eq!(module.call("p", ()).fallback_value(7).run(broken).await, Ok(7));
    let by_error = |error: &Error<Failure>| u32::from(matches!(error, Error::Inner(_))) + 40;
    assert_eq!(module.call("p", ()).fallback_with(by_error).run(broken).await, Ok(41));
    let slow = |_: &Error<Failure>| async {
        tokio::time::sleep(SECOND).await;
        9
    };
    assert_eq!(module.call("p", ()).fallback_async(slow).run(broken).await, Ok(9));
}

#[tokio::test(start_paused = true)]
async fn it_answers_whichever_stage_rejected() {
    let breaker = BreakerSpec::consecutive_failures(1);
    let policy = Policy::named("p").rate_limit(RateLimitSpec::per_second(2)).breaker(breaker);
    let module = module(policy);
    let mut reasons = Vec::new();
    for _ in 0..4 {
        let (answer, record) = module.call("p", ()).fallback_value(0).run_recorded(broken).await;
        assert_eq!(answer, Ok(0));
        assert_eq!(record.degraded, Some(Degraded { data_age: None, approximate: true }));
        reasons.push(record.reason);
    }
    assert_eq!(reasons[..2], [None, Some(RejectionCode::CircuitOpen)]);
}

#[tokio::test(start_paused = true)]
async fn a_domain_error_is_kept_unless_the_filter_names_its_kind() {
    let module = module(Policy::named("p"));
    let missing = || async { Err::<u32, _>(Failure(Kind::NotFound, None)) };
    assert!(module.call("p", ()).fallback_value(0).run(missing).await.is_err());
    let named = module.call("p", ()).fallback_value(0).fallback_on([Kind::NotFound]);
    assert_eq!(named.run(missing).await, Ok(0));
    let named = module.call("p", ()).fallback_value(0).fallback_on([Kind::NotFound]);
    assert!(named.run(broken).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_last_good_value_is_served_with_its_age() {
    let module = module(Policy::named("p"));
    let cache = StaleCache::new(100, 60 * SECOND);
    let upstream = Upstream::scripted([Ok(5), Err(BROKEN)]);
    let fresh = module.call("p", "eu").fallback(cache.at("eu")).run_served(|| upstream.call()).await;
    assert_eq!(fresh, Ok(Served { value: 5, degraded: None }));
    tokio::time::advance(10 * SECOND).await;
    let stale = module.call("p", "eu").fallback(cache.at("eu")).run_served(|| upstream.call()).await;
    let degraded = Some(Degraded { data_age: Some(10 * SECOND), approximate: false });
    assert_eq!(stale, Ok(Served { value: 5, degraded }));
    let unknown = module.call("p", "us").fallback(cache.at("us")).run(|| upstream.call()).await;
    assert_eq!(unknown, Err(Error::Inner(BROKEN)), "no value was cached for this key");
    tokio::time::advance(60 * SECOND).await;
    let too_old = module.call("p", "eu").fallback(cache.at("eu")).run(|| upstream.call()).await;
    assert_eq!(too_old, Err(Error::Inner(BROKEN)));
}

#[tokio::test(start_paused = true)]
async fn an_ok_classified_as_failure_is_not_cached() {
    let module = module(Policy::named("p"));
    let cache = StaleCache::new(10, 60 * SECOND);
    let bad = |_: &Result<u32, Failure>| Kind::Infrastructure.into();
    let call = module.call("p", ()).classify(bad).fallback(cache.at(1));
    assert_eq!(call.run(|| async { Ok(503) }).await, Ok(503), "no value is cached");
    assert_eq!(cache.get(&1), None);
}

#[tokio::test(start_paused = true)]
async fn an_ok_classified_as_failure_is_replaced_by_a_value_or_the_last_good_one() {
    let module = module(Policy::named("p"));
    let by_status = |result: &Result<u32, Failure>| match result {
        Ok(503) => Kind::Infrastructure.into(),
        _ => Class::SUCCESS,
    };
    let call = module.call("p", ()).classify(by_status).fallback_value(0);
    let degraded = Some(Degraded { data_age: None, approximate: true });
    assert_eq!(call.run_served(|| async { Ok(503) }).await, Ok(Served { value: 0, degraded }));
    let cache = StaleCache::new(10, 60 * SECOND);
    for (answer, expected) in [(200, 200), (503, 200)] {
        let call = module.call("p", ()).classify(by_status).fallback(cache.at("k"));
        assert_eq!(call.run(|| async move { Ok(answer) }).await, Ok(expected));
    }
}

#[cfg(feature = "http")]
#[tokio::test(start_paused = true)]
async fn answers_that_implement_classify_need_no_closure() {
    let retry = RetrySpec::attempts(3).backoff(Backoff::constant(MS));
    let module = module(Policy::named("p").retry(retry));
    let calls = std::cell::Cell::new(0);
    let answer = module.call("p", ()).classify_answers().run(|| async {
        calls.set(calls.get() + 1);
        let status = if calls.get() < 3 { 503 } else { 200 };
        Ok::<_, Failure>(http::Response::builder().status(status).body(()).unwrap())
    });
    assert_eq!((answer.await.unwrap().status().as_u16(), calls.get()), (200, 3));
}

#[tokio::test(start_paused = true)]
async fn a_served_fallback_is_emitted() {
    let log = Log::default();
    let module = builder(Policy::named("p")).observer(log.clone()).build().unwrap();
    assert_eq!(module.call("p", ()).fallback_value(7).run(broken).await, Ok(7));
    assert_eq!(log.lines(), ["finished Some(Failure)", "FallbackServed { kind: Infrastructure }"]);
}

#[tokio::test(start_paused = true)]
async fn an_exhausted_call_answered_by_a_fallback_does_not_stop_outer_retries() {
    let upstream = Upstream::always(Err(BROKEN));
    let retry = RetrySpec::attempts(2).backoff(Backoff::constant(MS));
    let module = module(Policy::named("p").retry(retry));
    let answer = module.run("p", (), || async {
        let inner = module.call("p", "inner").fallback_value(0).run(|| upstream.call()).await;
        assert_eq!(inner, Ok(0));
        Err::<u32, _>(BROKEN)
    });
    assert!(answer.await.is_err());
    assert_eq!(upstream.calls(), 4, "two outer attempts with two inner attempts each");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_policy_is_answered_only_if_the_filter_names_its_kind() {
    let module = module(Policy::named("p"));
    let rejected = module.call("typo", ()).fallback_value(0).run(broken).await.unwrap_err();
    assert_eq!(rejected.rejection().unwrap().code(), RejectionCode::UnknownPolicy);
    let named = module.call("typo", ()).fallback_value(0).fallback_on([Kind::Configuration]);
    assert_eq!(named.run(broken).await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn a_panicking_fallback_holds_no_permit_and_no_slot() {
    let policy = Policy::named("p").rate_limit(RateLimitSpec::per_second(9)).breaker(BreakerSpec::failure_ratio(1.0));
    let module = module(policy);
    let panicking = |_: &Error<Failure>| -> u32 { std::panic::resume_unwind(Box::new("no")) };
    let mut call = Box::pin(module.call("p", ()).fallback_with(panicking).run(broken));
    let polled = std::panic::catch_unwind(AssertUnwindSafe(|| poll_once(call.as_mut()).is_ready()));
    assert!(polled.is_err());
    let pipeline = module.pipeline("p", ()).unwrap();
    assert_eq!(pipeline.available_permits().await, Some(8));
    assert_eq!(pipeline.circuit().await.unwrap().failures, 1);
}

//! Retries: which failures, how often, after which delays, and what limits the extra load.

mod support;

use std::time::Duration;

use phalanx::policy::{BudgetSpec, Jitter};
use phalanx::*;
use support::*;
use tokio::time::Instant;

fn retry(attempts: u32) -> RetrySpec {
    RetrySpec::attempts(attempts).backoff(Backoff::constant(100 * MS).jitter(Jitter::None))
}

#[tokio::test(start_paused = true)]
async fn a_transient_failure_is_retried_and_the_last_attempt_is_the_answer() {
    let upstream = Upstream::scripted([Err(BROKEN), Err(BROKEN), Ok(7)]);
    let module = module(Policy::named("p").retry(retry(3)));
    let start = Instant::now();
    let (answer, record) = module.call("p", ()).run_recorded(|| upstream.call()).await;
    assert_eq!(answer, Ok(7));
    assert_eq!((record.attempts, record.elapsed, start.elapsed()), (3, 200 * MS, 200 * MS));
}

#[tokio::test(start_paused = true)]
async fn after_the_last_attempt_the_caller_gets_the_error_of_the_operation() {
    let upstream = Upstream::scripted([Err(BROKEN), Err(Failure(Kind::Infrastructure, Some(MS)))]);
    let module = module(Policy::named("p").retry(retry(2)));
    let error = module.run("p", (), || upstream.call()).await.unwrap_err();
    assert_eq!(error, Error::Inner(Failure(Kind::Infrastructure, Some(MS))));
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_call_marked_once_is_neither_retried_nor_hedged() {
    let hedge = HedgeSpec::after(100 * MS);
    let module = module(Policy::named("p").retry(retry(3)).hedge(hedge).idempotent());
    let upstream = Upstream::always(Err(BROKEN));
    let (answer, record) = module.call("p", ()).once().run_recorded(|| upstream.call()).await;
    assert_eq!((answer, record.attempts, upstream.calls()), (Err(Error::Inner(BROKEN)), 1, 1));

    let pipeline = module.pipeline("p", ()).unwrap();
    assert!(pipeline.repeats());
    let slow = || async {
        tokio::time::sleep(SECOND).await;
        Ok::<_, Failure>(())
    };
    let (answer, record) = pipeline.call().once().run_recorded(slow).await;
    assert_eq!((answer, record.hedges), (Ok(()), 0));
    let (calls, by_error) = (upstream.calls(), phalanx::internal::core::classify::ByError);
    assert!(pipeline.run_classified(by_error, false, || upstream.call()).await.is_err());
    assert_eq!(upstream.calls() - calls, 1);
    assert!(pipeline.run_classified(by_error, true, || upstream.call()).await.is_err());
    assert_eq!(upstream.calls() - calls, 4);
}

#[tokio::test(start_paused = true)]
async fn only_the_configured_kinds_are_retried() {
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Throttled) {
        let upstream = Upstream::always(Err(Failure(kind, None)));
        let module = module(Policy::named("p").retry(retry(5).on([Kind::Throttled])));
        assert!(module.run("p", (), || upstream.call()).await.is_err());
        assert_eq!(upstream.calls(), 1, "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ok_classified_as_failure_is_retried() {
    let upstream = Upstream::scripted([Ok(503), Ok(200)]);
    let module = module(Policy::named("p").retry(retry(3)));
    let by_status = |result: &Result<u32, Failure>| match result {
        Ok(503) => Kind::Infrastructure.into(),
        Ok(_) => Class::SUCCESS,
        Err(failure) => failure.classify(),
    };
    let answer = module.call("p", ()).classify(by_status).run(|| upstream.call()).await;
    assert_eq!((answer, upstream.calls()), (Ok(200), 2));
}

#[tokio::test(start_paused = true)]
async fn the_last_answer_is_returned_even_if_it_is_classified_as_failure() {
    let upstream = Upstream::always(Ok(503));
    let module = module(Policy::named("p").retry(retry(2)));
    let all_bad = |_: &Result<u32, Failure>| Kind::Infrastructure.into();
    assert_eq!(module.call("p", ()).classify(all_bad).run(|| upstream.call()).await, Ok(503));
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_longer_than_the_backoff_is_honoured() {
    let upstream = Upstream::scripted([Err(Failure(Kind::Throttled, Some(3 * SECOND))), Ok(1)]);
    let module = module(Policy::named("p").retry(retry(2).on([Kind::Throttled])));
    let start = Instant::now();
    assert_eq!(module.run("p", (), || upstream.call()).await, Ok(1));
    assert_eq!(start.elapsed(), 3 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_wait_beyond_the_deadline_is_not_started_and_the_last_error_is_returned() {
    let late = Failure(Kind::Throttled, Some(3 * SECOND));
    let upstream = Upstream::always(Err(late));
    let module = module(Policy::named("p").retry(retry(5).on([Kind::Throttled])).deadline(2 * SECOND));
    let start = Instant::now();
    assert_eq!(module.run("p", (), || upstream.call()).await, Err(Error::Inner(late)));
    assert_eq!((start.elapsed(), upstream.calls()), (Duration::ZERO, 1));
}

#[tokio::test(start_paused = true)]
async fn without_a_deadline_a_retry_after_of_an_hour_is_not_waited_for() {
    let upstream = Upstream::always(Err(Failure(Kind::Throttled, Some(3_600 * SECOND))));
    let module = module(Policy::named("p").retry(retry(5).on([Kind::Throttled])));
    let start = Instant::now();
    assert!(module.run("p", (), || upstream.call()).await.is_err());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_budget_caps_the_ratio_of_retries() {
    let log = Log::default();
    let upstream = Upstream::always(Err(BROKEN));
    let budget = BudgetSpec::ratio(0.1).min_per_second(0);
    let policy = Policy::named("p").retry(RetrySpec::attempts(3).backoff(Backoff::constant(MS)).budget(budget));
    let module = builder(policy).observer(log.clone()).build().unwrap();
    for _ in 0..100 {
        assert!(module.run("p", (), || upstream.call()).await.is_err());
    }
    assert_eq!(upstream.calls(), 110);
    assert_eq!(log.count("retry after"), 10);
    assert!(log.count("RetryBudgetExhausted") > 0);
}

#[tokio::test(start_paused = true)]
async fn nested_retries_do_not_multiply() {
    let upstream = Upstream::always(Err(BROKEN));
    let inner = Policy::named("inner").retry(retry(3));
    let module = builder(inner).policy(Policy::named("outer").retry(retry(3))).build().unwrap();
    let nested = || module.run("inner", (), || upstream.call());
    assert!(module.run("outer", (), nested).await.is_err());
    assert_eq!(upstream.calls(), 3, "not nine");
}

#[tokio::test(start_paused = true)]
async fn nested_retries_do_not_multiply_with_work_between_inner_and_outer_call() {
    let inner = Policy::named("inner").retry(retry(3));
    let module = builder(inner).policy(Policy::named("outer").retry(retry(3))).build().unwrap();
    // An await after the inner call gave up.
    let upstream = Upstream::always(Err(BROKEN));
    let audited = || async {
        let answer = module.run("inner", (), || upstream.call()).await;
        tokio::time::sleep(MS).await;
        answer
    };
    assert!(module.run("outer", (), audited).await.is_err());
    assert_eq!(upstream.calls(), 3);
    // Something slower that runs concurrently.
    let upstream = Upstream::always(Err(BROKEN));
    let joined = || async { tokio::join!(module.run("inner", (), || upstream.call()), tokio::time::sleep(SECOND)).0 };
    assert!(module.run("outer", (), joined).await.is_err());
    assert_eq!(upstream.calls(), 3);
    // An `Ok` that is a failure, on both levels.
    let upstream = Upstream::always(Ok(503));
    let bad = |_: &Result<u32, Failure>| Kind::Infrastructure.into();
    let worse = |_: &Result<u32, Error<Failure>>| Kind::Infrastructure.into();
    let response = || module.call("inner", ()).classify(bad).run(|| upstream.call());
    assert_eq!(module.call("outer", ()).classify(worse).run(response).await, Ok(503));
    assert_eq!(upstream.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_outer_retry_does_not_bypass_an_inner_budget() {
    let upstream = Upstream::always(Err(BROKEN));
    let broke = BudgetSpec::ratio(0.1).min_per_second(0);
    let inner = Policy::named("inner").retry(retry(3).budget(broke));
    let module = builder(inner).policy(Policy::named("outer").retry(retry(3))).build().unwrap();
    assert!(module.run("outer", (), || module.run("inner", (), || upstream.call())).await.is_err());
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_inner_call_that_gave_up_does_not_stop_outer_retries_after_a_later_success() {
    let inner = Policy::named("inner").retry(retry(2));
    let module = builder(inner).policy(Policy::named("outer").retry(retry(3))).build().unwrap();
    let (dead, alive) = (Upstream::always(Err(BROKEN)), Upstream::always(Ok(1)));
    let attempts = std::cell::Cell::new(0);
    let answer = module.run("outer", (), || async {
        attempts.set(attempts.get() + 1);
        assert!(module.run("inner", "a", || dead.call()).await.is_err());
        assert!(module.run("inner", "b", || alive.call()).await.is_ok());
        Err::<u32, _>(BROKEN)
    });
    assert!(answer.await.is_err());
    assert_eq!(attempts.get(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_retry_around_an_open_breaker_fails_fast_instead_of_waiting_for_the_break() {
    let inner = Policy::named("inner").breaker(BreakerSpec::consecutive_failures(1).break_for(30 * SECOND));
    let quick = RetrySpec::attempts(3).backoff(Backoff::constant(MS).jitter(Jitter::None));
    let module = builder(inner).policy(Policy::named("outer").retry(quick)).build().unwrap();
    let upstream = Upstream::always(Err(BROKEN));
    let start = Instant::now();
    for _ in 0..2 {
        assert!(module.run("outer", (), || module.run("inner", (), || upstream.call())).await.is_err());
    }
    assert_eq!((start.elapsed(), upstream.calls()), (4 * MS, 1));
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_retry_is_emitted() {
    let log = Log::default();
    let policy = Policy::named("p").deadline(50 * MS).retry(retry(2));
    let module = builder(policy).observer(log.clone()).build().unwrap();
    assert!(module.run("p", (), || Upstream::always(Err(BROKEN)).call_owned()).await.is_err());
    assert_eq!(log.count("RetryAbandoned"), 1);
}

#[tokio::test(start_paused = true)]
async fn nested_retries_multiply_with_retry_exhausted() {
    let upstream = Upstream::always(Err(BROKEN));
    let inner = Policy::named("inner").retry(retry(3));
    let module = builder(inner).policy(Policy::named("outer").retry(retry(3).retry_exhausted())).build().unwrap();
    let nested = || module.run("inner", (), || upstream.call());
    assert!(module.run("outer", (), nested).await.is_err());
    assert_eq!(upstream.calls(), 9);
}

#[tokio::test(start_paused = true)]
async fn an_inner_rejection_without_an_attempt_is_retried_by_the_outer_policy() {
    let upstream = Upstream::always(Ok(1));
    let inner = Policy::named("inner").rate_limit(RateLimitSpec::per_second(1)).retry(retry(3));
    let patient = retry(3).on([Kind::Throttled]);
    let module = builder(inner).policy(Policy::named("outer").retry(patient)).build().unwrap();
    let nested = || module.run("inner", (), || upstream.call());
    assert!(module.run("outer", (), nested).await.is_ok());
    assert!(module.run("outer", (), nested).await.is_ok(), "the retry waits for the retry-after of the rate limit");
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_operation_may_borrow_and_is_called_again_for_each_attempt() {
    let orders = [Err(BROKEN), Ok(2)];
    let started = std::cell::Cell::new(0);
    let module = module(Policy::named("p").retry(retry(2)));
    let answer = module.run("p", (), || {
        started.set(started.get() + 1);
        let order = &orders[started.get() - 1];
        async move { *order }
    });
    assert_eq!(answer.await, Ok(2));
    assert_eq!(started.get(), 2);
}

//! The breaker as a stage: what it counts, its probes, and how it closes again.

#![allow(clippy::unwrap_used)] // helpers of tests may unwrap

mod support;

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use phalanx::describe::Phase;
use phalanx::policy::Override;
use phalanx::*;
use support::*;

const BREAK: Duration = Duration::from_secs(30);

fn breaker() -> BreakerSpec {
    BreakerSpec::consecutive_failures(1).break_for(BREAK)
}

fn guarded() -> Pipeline {
    pipeline(Policy::named("p").breaker(breaker()))
}

fn pipeline(policy: Policy) -> Pipeline {
    module(policy).pipeline("p", ()).unwrap()
}

async fn phase(pipeline: &Pipeline) -> Phase {
    pipeline.circuit().await.unwrap().phase
}

async fn ok() -> Result<u32, Failure> {
    Ok(1)
}

async fn broken() -> Result<u32, Failure> {
    Err(BROKEN)
}

/// Trips the breaker and waits for the end of its break.
async fn half_open(pipeline: &Pipeline) {
    assert!(pipeline.run(broken).await.is_err());
    tokio::time::advance(BREAK).await;
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_rejects_with_the_rest_of_the_break_as_retry_after() {
    let pipeline = guarded();
    assert!(pipeline.run(broken).await.is_err());
    tokio::time::advance(10 * SECOND).await;
    let rejected = *pipeline.run(ok).await.unwrap_err().rejection().unwrap();
    assert_eq!((rejected.code(), rejected.retry_after()), (RejectionCode::CircuitOpen, Some(20 * SECOND)));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_probe_frees_the_probe_quota() {
    let pipeline = guarded();
    half_open(&pipeline).await;
    {
        let mut probe = pin!(pipeline.run(hang));
        assert!(poll_once(probe.as_mut()).is_pending());
        assert_eq!(code(pipeline.run(ok).await), RejectionCode::ProbeQuota);
    }
    assert_eq!(pipeline.run(ok).await, Ok(1));
    assert_eq!(phase(&pipeline).await, Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_cut_off_early_by_its_deadline_frees_the_probe_quota() {
    let pipeline = guarded();
    half_open(&pipeline).await;
    assert_eq!(code(pipeline.call().within(10 * MS).run(hang).await), RejectionCode::DeadlineExceeded);
    assert_eq!(phase(&pipeline).await, Phase::HalfOpen, "10 ms are below the failure floor");
    assert_eq!(pipeline.run(ok).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_ends_with_a_neutral_kind_frees_the_probe_quota() {
    let pipeline = guarded();
    half_open(&pipeline).await;
    for kind in [Kind::Throttled, Kind::Concurrency] {
        assert!(pipeline.run(|| async move { Err::<u32, _>(Failure(kind, None)) }).await.is_err());
        assert_eq!(phase(&pipeline).await, Phase::HalfOpen);
    }
    assert_eq!(pipeline.run(ok).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_success_of_a_call_from_before_the_trip_does_not_close_a_half_open_breaker() {
    let pipeline = guarded();
    let mut early = pin!(pipeline.run(|| after(BREAK + SECOND, Ok(1))));
    assert!(poll_once(early.as_mut()).is_pending());
    half_open(&pipeline).await;
    let mut probe = pin!(pipeline.run(hang));
    assert!(poll_once(probe.as_mut()).is_pending());
    assert_eq!(early.await, Ok(1));
    assert_eq!(phase(&pipeline).await, Phase::HalfOpen);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_arrives_while_open_does_not_prolong_the_break() {
    let pipeline = guarded();
    let mut early = pin!(pipeline.run(|| after(29 * SECOND, Err(BROKEN))));
    assert!(poll_once(early.as_mut()).is_pending());
    assert!(pipeline.run(broken).await.is_err());
    assert!(early.await.is_err());
    tokio::time::advance(SECOND).await;
    assert_eq!(pipeline.run(ok).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_call_cut_off_by_its_deadline_after_the_failure_floor_is_a_failure() {
    let pipeline = guarded();
    assert_eq!(code(pipeline.call().within(50 * MS).run(hang).await), RejectionCode::DeadlineExceeded);
    assert_eq!(phase(&pipeline).await, Phase::Open);
}

#[tokio::test(start_paused = true)]
async fn a_call_cut_off_by_its_deadline_before_the_failure_floor_is_not_a_failure() {
    let pipeline = guarded();
    assert_eq!(code(pipeline.call().within(49 * MS).run(hang).await), RejectionCode::DeadlineExceeded);
    assert_eq!(phase(&pipeline).await, Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_by_its_caller_after_the_deadline_is_a_failure() {
    let pipeline = guarded();
    let context = Context::EMPTY.with_timeout(80 * MS);
    let call = scope(context, async {
        let mut call = pin!(pipeline.call().run(hang));
        assert!(poll_once(call.as_mut()).is_pending());
        tokio::time::advance(81 * MS).await;
    });
    call.await;
    assert_eq!(phase(&pipeline).await, Phase::Open);
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_by_its_caller_is_not_recorded() {
    let pipeline = guarded();
    assert!(tokio::time::timeout(SECOND, pipeline.run(hang)).await.is_err());
    let view = pipeline.circuit().await.unwrap();
    assert_eq!((view.phase, view.calls), (Phase::Closed, 0));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_timeout_is_a_failure() {
    let pipeline = pipeline(Policy::named("p").breaker(breaker()).timeout(10 * MS));
    assert_eq!(code(pipeline.run(hang).await), RejectionCode::AttemptTimeout);
    assert_eq!(phase(&pipeline).await, Phase::Open);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_operation_is_a_failure_and_propagates() {
    let pipeline = guarded();
    let call = AssertUnwindSafe(async {
        let operation = || async { std::panic::resume_unwind(Box::new("boom")) };
        pipeline.run::<u32, Failure, _, _>(operation).await
    });
    let panic = catch_unwind(call).await.expect_err("it panics");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"boom"));
    assert_eq!(phase(&pipeline).await, Phase::Open);
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_by_an_unrelated_panic_is_not_a_failure() {
    let pipeline = guarded();
    let call = AssertUnwindSafe(async {
        let mut call = pin!(pipeline.run(hang));
        assert!(poll_once(call.as_mut()).is_pending());
        std::panic::resume_unwind(Box::new("not the operation"));
    });
    assert!(catch_unwind(call).await.is_err());
    assert_eq!(phase(&pipeline).await, Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_domain_error_is_a_success() {
    let pipeline = guarded();
    for kind in [Kind::Domain, Kind::Validation, Kind::NotFound, Kind::Internal] {
        assert!(pipeline.run(|| async move { Err::<u32, _>(Failure(kind, None)) }).await.is_err());
    }
    let view = pipeline.circuit().await.unwrap();
    assert_eq!((view.phase, view.calls, view.failures), (Phase::Closed, 4, 0));
}

#[tokio::test(start_paused = true)]
async fn by_default_a_call_with_its_retries_counts_once() {
    let retry = RetrySpec::attempts(4).backoff(Backoff::constant(MS));
    let spec = BreakerSpec::consecutive_failures(9);
    let pipeline = pipeline(Policy::named("p").breaker(spec).retry(retry));
    assert!(pipeline.run(broken).await.is_err());
    assert_eq!(pipeline.circuit().await.unwrap().failures, 1);
}

#[tokio::test(start_paused = true)]
async fn with_attempts_counted_an_open_breaker_ends_the_retries_with_the_last_error() {
    let retry = RetrySpec::attempts(10).backoff(Backoff::constant(MS));
    let spec = BreakerSpec::consecutive_failures(3).count_attempts();
    let upstream = Upstream::always(Err(BROKEN));
    let pipeline = pipeline(Policy::named("p").breaker(spec).retry(retry));
    assert_eq!(pipeline.run(|| upstream.call()).await, Err(Error::Inner(BROKEN)));
    assert_eq!(upstream.calls(), 3);
    assert_eq!(code(pipeline.run(|| upstream.call()).await), RejectionCode::CircuitOpen);
}

#[tokio::test(start_paused = true)]
async fn an_override_decides_until_it_is_released() {
    let pipeline = guarded();
    pipeline.force(Some(Override::Open)).await;
    let (answer, record) = pipeline.call().run_recorded(ok).await;
    assert_eq!((code(answer), record.source), (RejectionCode::ForcedOpen, Source::Forced));
    pipeline.force(Some(Override::Closed)).await;
    for _ in 0..5 {
        assert_eq!(pipeline.run(broken).await, Err(Error::Inner(BROKEN)));
    }
    pipeline.force(None).await;
    assert!(pipeline.run(broken).await.is_err());
    assert_eq!(phase(&pipeline).await, Phase::Open);
    pipeline.reset().await;
    assert_eq!(pipeline.run(ok).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn slow_answers_open_the_breaker() {
    let spec = BreakerSpec::slow_call_ratio(0.5, 100 * MS).min_throughput(4).break_for(BREAK);
    let pipeline = pipeline(Policy::named("p").breaker(spec));
    for _ in 0..4 {
        assert_eq!(pipeline.run(|| after(100 * MS, Ok(1))).await, Ok(1));
    }
    assert_eq!(code(pipeline.run(ok).await), RejectionCode::CircuitOpen);
}

#[tokio::test(start_paused = true)]
async fn a_p95_over_its_threshold_for_long_enough_opens_the_breaker() {
    let spec = BreakerSpec::latency(0.95, 100 * MS, 2 * SECOND).window(10 * SECOND).break_for(BREAK);
    let pipeline = pipeline(Policy::named("p").breaker(spec));
    let mut calls = 0;
    while phase(&pipeline).await == Phase::Closed {
        assert_eq!(pipeline.run(|| after(150 * MS, Ok(1))).await, Ok(1));
        calls += 1;
        assert!(calls < 100, "it never opened");
    }
    // A p95 needs 20 samples (3 s); then it must stay over the threshold for two seconds.
    assert!((33..=36).contains(&calls), "{calls}");
}

#[tokio::test(start_paused = true)]
async fn every_change_of_phase_is_emitted_once() {
    let log = Log::default();
    let module = builder(Policy::named("p").breaker(breaker())).observer(log.clone()).build().unwrap();
    let pipeline = module.pipeline("p", ()).unwrap();
    half_open(&pipeline).await;
    assert_eq!(pipeline.run(ok).await, Ok(1));
    let changes: Vec<_> = log.lines().into_iter().filter(|line| line.contains("->")).collect();
    assert_eq!(changes, ["closed -> open", "open -> half_open", "half_open -> closed"]);
}

/// `FutureExt::catch_unwind`, for these tests.
async fn catch_unwind<T>(
    future: AssertUnwindSafe<impl Future<Output = T>>,
) -> Result<T, Box<dyn std::any::Any + Send>> {
    let mut future = pin!(future.0);
    std::future::poll_fn(move |cx| match std::panic::catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => std::task::Poll::Ready(Err(panic)),
    })
    .await
}

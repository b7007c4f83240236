//! Draining a module: calls in flight are waited for, new ones are rejected at the gate.

#![allow(clippy::unwrap_used)] // helpers of tests may panic

mod support;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use phalanx::describe::{BulkheadView, Outcome, Phase};
use phalanx::lifecycle::{Drained, Gate};
use phalanx::policy::{BudgetSpec, Jitter};
use phalanx::*;
use support::{BROKEN, Failure, SECOND};
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep};

type Answer = Result<u32, Error<Failure>>;

fn module(policy: Policy) -> (ResilienceModule, Gate) {
    let module = ResilienceModule::in_memory().policy(policy).build().unwrap();
    let gate = Gate::default();
    assert!(module.attach(&gate) && module.attach(&gate));
    assert!(!module.attach(&Gate::default()), "the first gate stays");
    (module, gate)
}

/// Spawns a call that has started when this returns.
async fn start_call(module: &ResilienceModule, time: Duration) -> JoinHandle<Answer> {
    let module = module.clone();
    let call = tokio::spawn(async move {
        let work = async || {
            sleep(time).await;
            Ok::<u32, Failure>(7)
        };
        module.run("p", (), work).await
    });
    tokio::task::yield_now().await;
    call
}

fn code(answer: &Answer) -> Option<RejectionCode> {
    answer.as_ref().err().and_then(Error::rejection).map(Rejection::code)
}

#[tokio::test(start_paused = true)]
async fn a_call_in_flight_is_waited_for_and_a_new_one_is_rejected_with_a_retry_after() {
    let (module, gate) = module(Policy::named("p"));
    let call = start_call(&module, 3 * SECOND).await;
    let drain = tokio::spawn({
        let gate = gate.clone();
        async move { gate.drain(10 * SECOND).await }
    });
    tokio::task::yield_now().await;
    let rejected = module.run("p", (), async || Ok::<u32, Failure>(1)).await;
    let rejection = *rejected.as_ref().unwrap_err().rejection().unwrap();
    assert_eq!((rejection.code(), rejection.retry_after()), (RejectionCode::Draining, Some(SECOND)));
    assert_eq!((module.status(&rejection), rejection.kind().retryable()), (503, true));
    assert_eq!(call.await.unwrap().unwrap(), 7);
    let drained = drain.await.unwrap();
    assert_eq!((drained.in_flight, drained.leftovers, drained.elapsed), (1, 0, 3 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn calls_nested_in_a_call_in_flight_are_admitted_also_in_a_scoped_task() {
    let (module, gate) = module(Policy::named("p").timeout(20 * SECOND));
    let outer = module.clone();
    let call = tokio::spawn(async move {
        let work = async || {
            sleep(SECOND).await;
            let one = outer.run("p", (), async || Ok::<u32, Failure>(1)).await.unwrap();
            let nested = outer.clone();
            let in_a_task = async move { nested.run("p", "other", async || Ok::<u32, Failure>(2)).await.unwrap() };
            Ok::<u32, Failure>(one + tokio::spawn(scope(Context::current(), in_a_task)).await.unwrap())
        };
        outer.run("p", (), work).await
    });
    tokio::task::yield_now().await;
    assert_eq!(gate.drain(10 * SECOND).await.leftovers, 0);
    assert_eq!(call.await.unwrap().unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_outlasts_the_drain_is_cancelled_wherever_it_waits() {
    let limit = RateLimitSpec::per_second(1).max_wait(60 * SECOND);
    let retry = RetrySpec::attempts(9).on([Kind::Infrastructure, Kind::Throttled]);
    let backoff = Backoff::constant(30 * SECOND).max(30 * SECOND).jitter(Jitter::None);
    let (module, gate) = module(Policy::named("p").rate_limit(limit).retry(retry.backoff(backoff)));
    let running = start_call(&module, 100 * SECOND).await;
    let waiting_for_a_permit = start_call(&module, Duration::ZERO).await;
    let backing_off = tokio::spawn({
        let module = module.clone();
        async move { module.run("p", "b", async || Err::<u32, _>(BROKEN)).await }
    });
    tokio::task::yield_now().await;
    let start = Instant::now();
    let drained = gate.drain(SECOND / 2).await;
    assert_eq!((drained.in_flight, drained.leftovers, drained.stuck), (3, 3, 0));
    assert_eq!(start.elapsed(), SECOND / 2, "cancelled calls end at once");
    assert_eq!(code(&running.await.unwrap()), Some(RejectionCode::Draining));
    assert_eq!(code(&waiting_for_a_permit.await.unwrap()), Some(RejectionCode::Draining));
    assert_eq!(backing_off.await.unwrap(), Err(Error::Inner(BROKEN)), "the error of the operation is more specific");
}

#[tokio::test(start_paused = true)]
async fn a_call_cancelled_by_the_drain_is_neutral_and_emitted_once() {
    let ends = Arc::new(AtomicU32::new(0));
    let counted = ends.clone();
    let breaker = BreakerSpec::consecutive_failures(1).break_for(SECOND);
    let module = ResilienceModule::in_memory()
        .policy(Policy::named("p").breaker(breaker).timeout(60 * SECOND))
        .on_event(move |event| {
            if let EventKind::Finished { outcome, decision, .. } = event.kind {
                assert_eq!((outcome, decision.reason), (Some(Outcome::Neutral), Some(RejectionCode::Draining)));
                counted.fetch_add(1, Ordering::Relaxed);
            }
        })
        .build()
        .unwrap();
    let gate = Gate::default();
    module.attach(&gate);
    let call = start_call(&module, 30 * SECOND).await;
    assert_eq!(gate.drain(SECOND).await.leftovers, 1);
    assert_eq!(code(&call.await.unwrap()), Some(RejectionCode::Draining));
    assert_eq!(ends.load(Ordering::Relaxed), 1);
    assert_eq!(module.pipeline("p", ()).unwrap().circuit().await.unwrap().phase, Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_by_its_caller_leaves_the_gate() {
    let (module, gate) = module(Policy::named("p").timeout(SECOND));
    for _ in 0..3 {
        let call = module.run("p", (), pending::<Result<u32, Failure>>);
        assert!(tokio::time::timeout(SECOND / 10, call).await.is_err());
    }
    assert_eq!(gate.in_flight(), 0);
    assert_eq!(gate.drain(SECOND).await, Drained::default());
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_slot_or_run_hedges_are_cancelled_and_free_their_slots() {
    let hedge = HedgeSpec::after(SECOND / 10).max_attempts(3).budget(BudgetSpec::ratio(1.0).min_per_second(9));
    let policy = Policy::named("p").bulkhead(BulkheadSpec::fixed(2).queue(5)).hedge(hedge).idempotent();
    let (module, gate) = module(policy);
    let racing = start_call(&module, 100 * SECOND).await;
    sleep(SECOND / 4).await; // it has a hedge by now, and no slot is left for another
    let waiting = start_call(&module, 100 * SECOND).await;
    let pipeline = module.pipeline("p", ()).unwrap();
    let view = pipeline.bulkhead().unwrap();
    assert_eq!((view.in_use, view.waiting), (2, 1));
    assert_eq!(gate.drain(SECOND / 2).await.leftovers, 2);
    assert_eq!(code(&racing.await.unwrap()), Some(RejectionCode::Draining));
    assert_eq!(code(&waiting.await.unwrap()), Some(RejectionCode::Draining));
    assert_eq!(pipeline.bulkhead(), Some(BulkheadView { limit: 2, in_use: 0, waiting: 0 }));
}

//! A module whose process is going: what its calls meet at the gate.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

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
    assert!(!module.attach(&Gate::default()), "the first one stays");
    (module, gate)
}

/// A call in a task of its own, which has begun when this returns.
async fn begun(module: &ResilienceModule, time: Duration) -> JoinHandle<Answer> {
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
    let call = begun(&module, 3 * SECOND).await;
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
async fn calls_inside_a_call_in_flight_are_let_in_also_in_a_scoped_task() {
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
async fn what_outlasts_the_window_is_cancelled_wherever_it_waits() {
    let limit = RateLimitSpec::per_second(1).max_wait(60 * SECOND);
    let retry = RetrySpec::attempts(9).on([Kind::Infrastructure, Kind::Throttled]);
    let backoff = Backoff::constant(30 * SECOND).max(30 * SECOND).jitter(Jitter::None);
    let (module, gate) = module(Policy::named("p").rate_limit(limit).retry(retry.backoff(backoff)));
    let at_work = begun(&module, 100 * SECOND).await;
    let at_the_bucket = begun(&module, Duration::ZERO).await;
    let backing_off = tokio::spawn({
        let module = module.clone();
        async move { module.run("p", "b", async || Err::<u32, _>(BROKEN)).await }
    });
    tokio::task::yield_now().await;
    let start = Instant::now();
    let drained = gate.drain(SECOND / 2).await;
    assert_eq!((drained.in_flight, drained.leftovers, drained.stuck), (3, 3, 0));
    assert_eq!(start.elapsed(), SECOND / 2, "nobody had to be waited for");
    assert_eq!(code(&at_work.await.unwrap()), Some(RejectionCode::Draining));
    assert_eq!(code(&at_the_bucket.await.unwrap()), Some(RejectionCode::Draining));
    assert_eq!(backing_off.await.unwrap(), Err(Error::Inner(BROKEN)), "its own error says more");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_says_nothing_about_its_dependency_and_is_told_once() {
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
    let call = begun(&module, 30 * SECOND).await;
    assert_eq!(gate.drain(SECOND).await.leftovers, 1);
    assert_eq!(code(&call.await.unwrap()), Some(RejectionCode::Draining));
    assert_eq!(ends.load(Ordering::Relaxed), 1);
    assert_eq!(module.pipeline("p", ()).unwrap().circuit().await.unwrap().phase, Phase::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_its_caller_drops_is_out_of_the_gate() {
    let (module, gate) = module(Policy::named("p").timeout(SECOND));
    for _ in 0..3 {
        let call = module.run("p", (), pending::<Result<u32, Failure>>);
        assert!(tokio::time::timeout(SECOND / 10, call).await.is_err());
    }
    assert_eq!(gate.in_flight(), 0);
    assert_eq!(gate.drain(SECOND).await, Drained::default());
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_slot_or_races_his_copies_is_cancelled_too_and_every_slot_comes_back() {
    let hedge = HedgeSpec::after(SECOND / 10).max_attempts(3).budget(BudgetSpec::ratio(1.0).min_per_second(9));
    let policy = Policy::named("p").bulkhead(BulkheadSpec::fixed(2).queue(5)).hedge(hedge).idempotent();
    let (module, gate) = module(policy);
    let racing = begun(&module, 100 * SECOND).await;
    sleep(SECOND / 4).await; // it has a copy by now, and no slot is left for another
    let waiting = begun(&module, 100 * SECOND).await;
    let pipeline = module.pipeline("p", ()).unwrap();
    let view = pipeline.bulkhead().unwrap();
    assert_eq!((view.in_use, view.waiting), (2, 1));
    assert_eq!(gate.drain(SECOND / 2).await.leftovers, 2);
    assert_eq!(code(&racing.await.unwrap()), Some(RejectionCode::Draining));
    assert_eq!(code(&waiting.await.unwrap()), Some(RejectionCode::Draining));
    assert_eq!(pipeline.bulkhead(), Some(BulkheadView { limit: 2, in_use: 0, waiting: 0 }));
}

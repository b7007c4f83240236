//! The bulkhead as a stage: which calls are admitted, wait or are rejected, and that every slot is freed.

#![allow(clippy::unwrap_used)] // helpers of tests may panic

mod support;

use std::pin::pin;
use std::time::Duration;

use phalanx::guard::{CallInfo, Guard};
use phalanx::policy::{Jitter, Stage};
use phalanx::*;
use support::*;
use tokio::task::JoinHandle;
use tokio::time::Instant;

type Answer = Result<u32, Error<Failure>>;

fn bulkhead(spec: BulkheadSpec) -> Policy {
    Policy::named("p").bulkhead(spec)
}

fn pipeline(policy: Policy) -> Pipeline {
    module(policy).pipeline("p", ()).unwrap()
}

/// Spawns a call that takes this long once it is admitted.
fn call(pipeline: &Pipeline, takes: Duration) -> JoinHandle<Answer> {
    let pipeline = pipeline.clone();
    tokio::spawn(async move { pipeline.run(|| after(takes, Ok(1))).await })
}

/// Lets every task run as far as it can.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

fn view(pipeline: &Pipeline) -> (u32, u32, u32) {
    let view = pipeline.bulkhead().unwrap();
    (view.limit, view.in_use, view.waiting)
}

#[tokio::test(start_paused = true)]
async fn a_call_beyond_the_limit_and_the_queue_is_rejected_at_once() {
    let pipeline = pipeline(bulkhead(BulkheadSpec::fixed(2).queue(1)));
    let calls = [(); 3].map(|()| call(&pipeline, SECOND));
    settle().await;
    assert_eq!((view(&pipeline), pipeline.available_slots()), ((2, 2, 1), Some(0)));
    let (answer, record) = pipeline.call().run_recorded(|| after(SECOND, Ok(1))).await;
    assert_eq!(code(answer), RejectionCode::BulkheadFull);
    assert_eq!(
        (record.verdict, record.stage, record.elapsed),
        (Verdict::Rejected, Some(Stage::Bulkhead), Duration::ZERO)
    );
    for call in calls {
        assert_eq!(call.await.unwrap(), Ok(1));
    }
    assert_eq!(view(&pipeline), (2, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn time_in_the_queue_counts_for_the_call_and_not_for_the_operation() {
    let breaker = BreakerSpec::slow_call_ratio(0.1, 150 * MS).min_throughput(1);
    let pipeline = pipeline(bulkhead(BulkheadSpec::fixed(1).queue(9)).breaker(breaker));
    let calls = [(); 5].map(|()| call(&pipeline, 100 * MS));
    settle().await;
    let (answer, record) = pipeline.call().run_recorded(|| after(100 * MS, Ok(1))).await;
    assert_eq!((answer, record.elapsed), (Ok(1), 600 * MS));
    for call in calls {
        assert_eq!(call.await.unwrap(), Ok(1), "no call was slow");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gives_up_at_the_queue_timeout() {
    let pipeline = pipeline(bulkhead(BulkheadSpec::fixed(1).queue(1).queue_timeout(300 * MS)));
    let holder = call(&pipeline, SECOND);
    settle().await;
    let start = Instant::now();
    assert_eq!(code(call(&pipeline, MS).await.unwrap()), RejectionCode::BulkheadQueueTimeout);
    assert_eq!((start.elapsed(), view(&pipeline)), (300 * MS, (1, 1, 0)));
    assert_eq!(holder.await.unwrap(), Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gives_up_at_its_deadline_without_an_attempt() {
    let pipeline = pipeline(bulkhead(BulkheadSpec::fixed(1).queue(1)).deadline(300 * MS));
    let holder = pipeline.clone();
    let holder = tokio::spawn(async move { holder.call().run(|| after(290 * MS, Ok(1))).await });
    settle().await;
    let waiting = pipeline.call().within(100 * MS);
    let (answer, record) = waiting.run_recorded(|| after(MS, Ok(1))).await;
    assert_eq!(code(answer), RejectionCode::DeadlineExceeded);
    assert_eq!((record.elapsed, record.attempts, record.stage), (100 * MS, 0, Some(Stage::Deadline)));
    assert_eq!(holder.await.unwrap(), Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_congested_queue_is_shed_even_if_every_slot_hangs() {
    let pipeline = pipeline(bulkhead(BulkheadSpec::fixed(1).queue(100).queue_target(20 * MS)));
    let holder = call(&pipeline, 60 * SECOND);
    settle().await;
    let start = Instant::now();
    let early = call(&pipeline, MS);
    settle().await;
    assert_eq!(code(early.await.unwrap()), RejectionCode::BulkheadQueueShed);
    assert_eq!(start.elapsed(), 100 * MS, "the queue had been empty just before");
    let calls = [(); 12].map(|()| call(&pipeline, MS));
    settle().await;
    for (index, call) in calls.into_iter().enumerate() {
        assert_eq!(code(call.await.unwrap()), RejectionCode::BulkheadQueueShed, "call {index}");
    }
    assert_eq!(view(&pipeline), (1, 1, 0));
    holder.abort();
}

#[tokio::test(start_paused = true)]
async fn a_critical_call_displaces_a_less_critical_one_and_is_served_first() {
    let pipeline = pipeline(bulkhead(BulkheadSpec::fixed(1).queue(2).prioritized()));
    let holder = call(&pipeline, SECOND);
    settle().await;
    let waiter = |criticality| {
        let pipeline = pipeline.clone();
        tokio::spawn(async move {
            let context = Context::EMPTY.with_criticality(criticality);
            let answer = scope(context, pipeline.run(|| after(100 * MS, Ok(1)))).await;
            (answer, Instant::now())
        })
    };
    let (normal, low) = (waiter(Criticality::Normal), waiter(Criticality::BestEffort));
    settle().await;
    let start = Instant::now();
    let critical = waiter(Criticality::Critical);
    settle().await;
    let (answer, at) = low.await.unwrap();
    assert_eq!((code(answer), at), (RejectionCode::BulkheadQueueShed, start));
    let ((critical, first), (normal, second)) = (critical.await.unwrap(), normal.await.unwrap());
    assert_eq!((critical, normal, second - first), (Ok(1), Ok(1), 100 * MS));
    assert_eq!(holder.await.unwrap(), Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_rejection_returns_the_permit_of_the_rate_limit() {
    let limit = RateLimitSpec::new(1, 3_600 * SECOND).burst(3);
    let pipeline = pipeline(bulkhead(BulkheadSpec::fixed(1)).rate_limit(limit));
    let holder = call(&pipeline, SECOND);
    settle().await;
    assert_eq!(code(call(&pipeline, MS).await.unwrap()), RejectionCode::BulkheadFull);
    assert_eq!(pipeline.available_permits().await, Some(2));
    assert_eq!(holder.await.unwrap(), Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_call_holds_one_slot_for_all_its_attempts() {
    let retry = RetrySpec::attempts(3).backoff(Backoff::constant(100 * MS).jitter(Jitter::None));
    let pipeline = pipeline(bulkhead(BulkheadSpec::fixed(1)).retry(retry));
    let upstream = Upstream::always(Err(BROKEN));
    let mut trying = pin!(pipeline.run(|| upstream.call()));
    assert!(poll_once(trying.as_mut()).is_pending(), "it waits for its second attempt");
    assert_eq!(pipeline.available_slots(), Some(0));
    assert_eq!(trying.await, Err(Error::Inner(BROKEN)));
    assert_eq!((upstream.calls(), pipeline.available_slots()), (3, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_circuit_that_is_open_costs_no_slot() {
    let breaker = BreakerSpec::consecutive_failures(1);
    let pipeline = pipeline(bulkhead(BulkheadSpec::fixed(1)).breaker(breaker));
    assert!(pipeline.run(|| async { Err::<u32, _>(BROKEN) }).await.is_err());
    assert_eq!(code(pipeline.run(|| after(MS, Ok(1))).await), RejectionCode::CircuitOpen);
    assert_eq!(pipeline.available_slots(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn every_route_has_slots_of_its_own() {
    let module = module(bulkhead(BulkheadSpec::fixed(1)));
    let (eu, us) = (module.pipeline("p", "eu").unwrap(), module.pipeline("p", "us").unwrap());
    let holder = call(&eu, SECOND);
    settle().await;
    assert_eq!((eu.available_slots(), us.available_slots()), (Some(0), Some(1)));
    assert_eq!(holder.await.unwrap(), Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_policy_keeps_slots_and_waiters_and_a_higher_limit_serves_them_at_once() {
    let module = module(bulkhead(BulkheadSpec::fixed(1).queue(2)));
    let pipeline = module.pipeline("p", ()).unwrap();
    let holder = call(&pipeline, 10 * SECOND);
    settle().await;
    let waiter = call(&pipeline, SECOND);
    settle().await;
    let start = Instant::now();
    module.retune(bulkhead(BulkheadSpec::fixed(2).queue(2))).unwrap();
    assert_eq!(waiter.await.unwrap(), Ok(1));
    assert_eq!((start.elapsed(), view(&pipeline)), (SECOND, (2, 1, 0)));
    module.retune(Policy::named("p")).unwrap();
    module.retune(bulkhead(BulkheadSpec::fixed(1))).unwrap();
    assert_eq!(view(&pipeline), (1, 1, 0), "calls in flight keep their slots");
    assert_eq!(holder.await.unwrap(), Ok(1));
    assert_eq!(view(&pipeline), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_guard_between_rate_limit_and_bulkhead_is_asked_before_the_wait() {
    struct Doorman;
    impl Guard for Doorman {
        fn name(&self) -> &str {
            "doorman"
        }
        fn order(&self) -> u16 {
            250
        }
        fn admit(&self, _: &CallInfo<'_>) -> Result<(), Rejection> {
            Err(Rejection::new(RejectionCode::GuardRejected))
        }
    }
    let pipeline = pipeline(bulkhead(BulkheadSpec::fixed(1)).guard(Doorman));
    assert_eq!(code(pipeline.run(|| after(MS, Ok(1))).await), RejectionCode::GuardRejected);
    assert_eq!(pipeline.available_slots(), Some(1));
}

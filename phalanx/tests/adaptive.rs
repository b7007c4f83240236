//! Adaptive limits: what lowers them, what raises them, and what does not.

#![allow(clippy::unwrap_used)] // helpers of tests may panic

mod support;

use std::sync::Arc;
use std::time::Duration;

use phalanx::policy::{AdaptiveSpec, GradientSpec, Jitter};
use phalanx::*;
use support::*;

const MAX_LIMIT: u32 = 20;

fn adaptive() -> AdaptiveSpec {
    AdaptiveSpec::threshold(100 * MS)
}

fn policy(spec: AdaptiveSpec) -> Policy {
    Policy::named("p").bulkhead(BulkheadSpec::adaptive(MAX_LIMIT, spec).queue(100))
}

fn pipeline(policy: Policy) -> Pipeline {
    module(policy).pipeline("p", ()).unwrap()
}

fn limit(pipeline: &Pipeline) -> u32 {
    pipeline.bulkhead().unwrap().limit
}

/// Runs calls one after the other, each with this latency and answer.
async fn serve(pipeline: &Pipeline, calls: usize, takes: Duration, answer: Result<u32, Failure>) {
    for _ in 0..calls {
        let _ = pipeline.run(|| after(takes, answer)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_lowers_the_limit_once_a_cooldown_and_quick_ones_raise_it() {
    let pipeline = pipeline(policy(adaptive()));
    assert_eq!(limit(&pipeline), MAX_LIMIT);
    let slow = [(); 15].map(|()| pipeline.run(|| after(150 * MS, Ok(1))));
    futures_util::future::join_all(slow).await;
    assert_eq!(limit(&pipeline), 18, "one decrease per cooldown");
    serve(&pipeline, 10, 150 * MS, Ok(1)).await;
    assert_eq!(limit(&pipeline), 16, "after 1.5 seconds");
    serve(&pipeline, 18, MS, Ok(1)).await;
    assert_eq!(limit(&pipeline), 17, "a limit's worth of quick calls");
    serve(&pipeline, 1_000, MS, Ok(1)).await;
    assert_eq!(limit(&pipeline), MAX_LIMIT, "never above max_concurrency");
}

#[tokio::test(start_paused = true)]
async fn quick_failures_do_not_move_the_limit_and_slow_ones_do() {
    let pipeline = pipeline(policy(adaptive()));
    serve(&pipeline, 1, 150 * MS, Err(BROKEN)).await;
    assert_eq!(limit(&pipeline), 18);
    serve(&pipeline, 500, MS, Err(BROKEN)).await;
    assert_eq!(limit(&pipeline), 18);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_timed_out_was_slow() {
    let pipeline = pipeline(policy(adaptive()).timeout(200 * MS));
    assert_eq!(code(pipeline.run(hang).await), RejectionCode::AttemptTimeout);
    assert_eq!(limit(&pipeline), 18);
}

#[tokio::test(start_paused = true)]
async fn a_dependency_that_hangs_until_its_callers_give_up_is_slow() {
    let slow = pipeline(policy(adaptive()));
    assert_eq!(code(slow.call().within(200 * MS).run(hang).await), RejectionCode::DeadlineExceeded);
    assert_eq!(limit(&slow), 18, "cut off by the deadline");
    let slow = pipeline(policy(adaptive()));
    assert!(tokio::time::timeout(200 * MS, slow.run(hang)).await.is_err());
    assert_eq!(limit(&slow), 18, "dropped by the caller");
    let quick = pipeline(policy(adaptive()));
    assert!(tokio::time::timeout(50 * MS, quick.run(hang)).await.is_err());
    assert_eq!(limit(&quick), MAX_LIMIT, "dropped too early to be slow");
}

#[tokio::test(start_paused = true)]
async fn time_in_the_queue_and_between_attempts_is_not_latency_of_the_dependency() {
    let retry = RetrySpec::attempts(3).backoff(Backoff::constant(SECOND).jitter(Jitter::None));
    let pipeline = pipeline(policy(adaptive()).retry(retry));
    let calls = [(); 60].map(|()| pipeline.run(|| after(90 * MS, Err::<u32, _>(BROKEN))));
    futures_util::future::join_all(calls).await;
    assert_eq!(limit(&pipeline), MAX_LIMIT);
}

#[tokio::test(start_paused = true)]
async fn outliers_do_not_move_a_limit_that_uses_a_quantile() {
    let pipeline = pipeline(policy(adaptive().quantile(0.95)));
    for _ in 0..50 {
        serve(&pipeline, 99, 10 * MS, Ok(1)).await;
        serve(&pipeline, 1, 5 * SECOND, Ok(1)).await;
    }
    assert_eq!(limit(&pipeline), MAX_LIMIT);
    serve(&pipeline, 100, 150 * MS, Ok(1)).await;
    assert!(limit(&pipeline) < MAX_LIMIT, "a shifted distribution moves it");
}

#[tokio::test(start_paused = true)]
async fn each_decrease_uses_only_samples_after_the_previous_one() {
    let pipeline = pipeline(policy(adaptive().quantile(0.5)));
    serve(&pipeline, 100, 150 * MS, Ok(1)).await;
    let lowered = limit(&pipeline);
    assert!(lowered < MAX_LIMIT);
    // Most samples of the window are still slow, but none since the decrease: 65 answers in two cooldowns.
    serve(&pipeline, 65, 30 * MS, Ok(1)).await;
    assert!(limit(&pipeline) >= lowered, "{} after {lowered}", limit(&pipeline));
}

#[tokio::test(start_paused = true)]
async fn an_event_is_emitted_when_a_limit_is_lowered() {
    let log = Log::default();
    let module = builder(policy(adaptive())).observer(log.clone()).build().unwrap();
    let pipeline = module.pipeline("p", ()).unwrap();
    serve(&pipeline, 3, 150 * MS, Ok(1)).await;
    assert_eq!(log.count("LimitLowered"), 1);
    assert!(log.lines().iter().any(|line| line.contains("from: 20, to: 18")), "{:?}", log.lines());
}

#[tokio::test(start_paused = true)]
async fn a_retuned_adaptive_limit_is_kept_and_a_fixed_limit_resets_it() {
    let module = module(policy(adaptive()));
    let pipeline = module.pipeline("p", ()).unwrap();
    serve(&pipeline, 1, 150 * MS, Ok(1)).await;
    module.retune(policy(adaptive().cooldown(5 * SECOND))).unwrap();
    assert_eq!(limit(&pipeline), 18);
    module.retune(Policy::named("p").bulkhead(BulkheadSpec::fixed(7))).unwrap();
    assert_eq!(limit(&pipeline), 7);
    module.retune(policy(adaptive())).unwrap();
    assert_eq!(limit(&pipeline), MAX_LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_gradient_shrinks_to_the_concurrency_of_the_dependency() {
    let policy = Policy::named("p").bulkhead(BulkheadSpec::gradient(64, GradientSpec::default()).queue(1_000));
    let pipeline = pipeline(policy);
    // The dependency serves eight at a time, 10 ms each; further calls wait there.
    let servers = Arc::new(tokio::sync::Semaphore::new(8));
    let callers = (0..100).map(|_| {
        let (pipeline, servers) = (pipeline.clone(), servers.clone());
        tokio::spawn(async move {
            for _ in 0..300 {
                let serve = || async {
                    let _served = servers.acquire().await.unwrap();
                    after(10 * MS, Ok(1)).await
                };
                assert_eq!(pipeline.run(serve).await, Ok(1));
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    let found = limit(&pipeline);
    assert!((4..=16).contains(&found), "{found} for eight servers");
}

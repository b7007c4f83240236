//! Limits that move: what lowers them, what raises them, and what does not.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

mod support;

use std::sync::Arc;
use std::time::Duration;

use phalanx::policy::{AdaptiveSpec, GradientSpec, Jitter};
use phalanx::*;
use support::*;

const MOST: u32 = 20;

fn adaptive() -> AdaptiveSpec {
    AdaptiveSpec::threshold(100 * MS)
}

fn policy(spec: AdaptiveSpec) -> Policy {
    Policy::named("p").bulkhead(BulkheadSpec::adaptive(MOST, spec).queue(100))
}

fn pipeline(policy: Policy) -> Pipeline {
    module(policy).pipeline("p", ()).unwrap()
}

fn limit(pipeline: &Pipeline) -> u32 {
    pipeline.bulkhead().unwrap().limit
}

/// Calls one after the other, each of which takes this long and ends so.
async fn serve(pipeline: &Pipeline, calls: usize, takes: Duration, answer: Result<u32, Failure>) {
    for _ in 0..calls {
        let _ = pipeline.run(|| after(takes, answer)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_lowers_the_limit_once_a_cooldown_and_quick_ones_raise_it() {
    let pipeline = pipeline(policy(adaptive()));
    assert_eq!(limit(&pipeline), MOST);
    let slow = [(); 15].map(|()| pipeline.run(|| after(150 * MS, Ok(1))));
    futures_util::future::join_all(slow).await;
    assert_eq!(limit(&pipeline), 18, "all fifteen together are one breach");
    serve(&pipeline, 10, 150 * MS, Ok(1)).await;
    assert_eq!(limit(&pipeline), 16, "1.5 seconds later");
    serve(&pipeline, 18, MS, Ok(1)).await;
    assert_eq!(limit(&pipeline), 17, "a limit's worth of quick calls");
    serve(&pipeline, 1_000, MS, Ok(1)).await;
    assert_eq!(limit(&pipeline), MOST, "and never more than it may be");
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
async fn a_dependency_that_hangs_until_its_callers_leave_is_slow() {
    let slow = pipeline(policy(adaptive()));
    assert_eq!(code(slow.call().within(200 * MS).run(hang).await), RejectionCode::DeadlineExceeded);
    assert_eq!(limit(&slow), 18, "by their deadline");
    let slow = pipeline(policy(adaptive()));
    assert!(tokio::time::timeout(200 * MS, slow.run(hang)).await.is_err());
    assert_eq!(limit(&slow), 18, "without a word");
    let quick = pipeline(policy(adaptive()));
    assert!(tokio::time::timeout(50 * MS, quick.run(hang)).await.is_err());
    assert_eq!(limit(&quick), MOST, "who left early cannot tell");
}

#[tokio::test(start_paused = true)]
async fn time_in_the_queue_and_between_attempts_is_not_the_dependencys() {
    let retry = RetrySpec::attempts(3).backoff(Backoff::constant(SECOND).jitter(Jitter::None));
    let pipeline = pipeline(policy(adaptive()).retry(retry));
    let calls = [(); 60].map(|()| pipeline.run(|| after(90 * MS, Err::<u32, _>(BROKEN))));
    futures_util::future::join_all(calls).await;
    assert_eq!(limit(&pipeline), MOST);
}

#[tokio::test(start_paused = true)]
async fn outliers_do_not_move_a_limit_that_is_judged_by_a_quantile() {
    let pipeline = pipeline(policy(adaptive().quantile(0.95)));
    for _ in 0..50 {
        serve(&pipeline, 99, 10 * MS, Ok(1)).await;
        serve(&pipeline, 1, 5 * SECOND, Ok(1)).await;
    }
    assert_eq!(limit(&pipeline), MOST);
    serve(&pipeline, 100, 150 * MS, Ok(1)).await;
    assert!(limit(&pipeline) < MOST, "a shifted distribution does");
}

#[tokio::test(start_paused = true)]
async fn each_back_off_is_decided_on_what_came_after_the_one_before() {
    let pipeline = pipeline(policy(adaptive().quantile(0.5)));
    serve(&pipeline, 100, 150 * MS, Ok(1)).await;
    let lowered = limit(&pipeline);
    assert!(lowered < MOST);
    // Most of the window is still slow, but of what came since, nothing is: 65 answers in two cooldowns.
    serve(&pipeline, 65, 30 * MS, Ok(1)).await;
    assert!(limit(&pipeline) >= lowered, "{} after {lowered}", limit(&pipeline));
}

#[tokio::test(start_paused = true)]
async fn observers_are_told_when_a_limit_is_lowered() {
    let log = Log::default();
    let module = builder(policy(adaptive())).observer(log.clone()).build().unwrap();
    let pipeline = module.pipeline("p", ()).unwrap();
    serve(&pipeline, 3, 150 * MS, Ok(1)).await;
    assert_eq!(log.count("LimitLowered"), 1);
    assert!(log.lines().iter().any(|line| line.contains("from: 20, to: 18")), "{:?}", log.lines());
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_numbers_keeps_what_was_learned_and_a_fixed_limit_forgets_it() {
    let module = module(policy(adaptive()));
    let pipeline = module.pipeline("p", ()).unwrap();
    serve(&pipeline, 1, 150 * MS, Ok(1)).await;
    module.retune(policy(adaptive().cooldown(5 * SECOND))).unwrap();
    assert_eq!(limit(&pipeline), 18);
    module.retune(Policy::named("p").bulkhead(BulkheadSpec::fixed(7))).unwrap();
    assert_eq!(limit(&pipeline), 7);
    module.retune(policy(adaptive())).unwrap();
    assert_eq!(limit(&pipeline), MOST);
}

#[tokio::test(start_paused = true)]
async fn a_gradient_shrinks_to_what_the_dependency_can_serve_at_a_time() {
    let policy = Policy::named("p").bulkhead(BulkheadSpec::gradient(64, GradientSpec::default()).queue(1_000));
    let pipeline = pipeline(policy);
    // Eight at a time, 10 ms each; whoever comes besides waits at the dependency.
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

//! The module: names, routes, configuration mistakes, changes at run time, and decision records.

#![allow(clippy::unwrap_used)] // helpers of tests may unwrap

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx::describe::StageDescription;
use phalanx::policy::{Jitter, Override, Stage, UnknownPolicy};
use phalanx::*;
use support::*;

async fn ok() -> Result<u32, Failure> {
    Ok(1)
}

async fn broken() -> Result<u32, Failure> {
    Err(BROKEN)
}

#[tokio::test]
async fn an_unknown_name_is_an_error_at_wiring_and_a_rejection_at_run_time() {
    let module = module(Policy::named("p"));
    let misspelt = module.pipeline("typo", ()).unwrap_err();
    assert_eq!(misspelt.to_string(), "typo: no policy has this name (unknown_policy)");
    let rejected = *module.run("typo", (), ok).await.unwrap_err().rejection().unwrap();
    assert_eq!((rejected.kind(), rejected.status()), (Kind::Configuration, 500));
}

#[tokio::test]
async fn a_name_is_looked_up_by_itself_then_as_default_then_as_the_unknown_rule_says() {
    let limited = Policy::named("ignored").rate_limit(RateLimitSpec::per_second(1));
    let module = builder(Policy::named("p")).default_policy(limited).build().unwrap();
    assert!(module.pipeline("p", ()).unwrap().describe().stages.is_empty());
    let other = module.pipeline("other", ()).unwrap();
    assert_eq!((other.key().policy(), other.describe().stages.len()), ("other", 1));

    let lenient = builder(Policy::named("p")).unknown_policy(UnknownPolicy::Passthrough).build().unwrap();
    assert_eq!(lenient.run("anything", (), ok).await, Ok(1));
}

#[tokio::test]
async fn unknown_policy_names_are_bounded_in_length_and_number() {
    let module = builder(Policy::named("p")).unknown_policy(UnknownPolicy::Passthrough).max_routes(8).build().unwrap();
    assert_eq!(code(module.run("x".repeat(129).as_str(), (), ok).await), RejectionCode::UnknownPolicy);
    for i in 0..5_000 {
        assert_eq!(module.run(&format!("caller {i}"), (), ok).await, Ok(1));
    }
    assert!(module.pipelines().len() <= 8);
    let too_long = Policy::named("x".repeat(129));
    assert_eq!(too_long.mistakes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn two_policies_are_built_in_and_can_be_replaced() {
    let module = module(Policy::named("transient").timeout(SECOND));
    assert_eq!(module.policies(), ["occ", "transient"]);
    let occ = Upstream::scripted([Err(Failure(Kind::Concurrency, None)), Ok(2)]);
    assert_eq!(module.run("occ", (), || occ.call()).await, Ok(2));
    let names: Vec<_> = module.pipeline("transient", ()).unwrap().describe().stages;
    assert_eq!(names, [StageDescription::Timeout(SECOND)]);
}

#[test]
fn every_mistake_of_every_policy_is_reported_at_once() {
    let error = ResilienceModule::in_memory()
        .policy(Policy::named("a").timeout(Duration::ZERO))
        .policy(Policy::named("b").retry(RetrySpec::attempts(0)))
        .policy(Policy::named("b"))
        .policy(Policy::named(""))
        .max_routes(0)
        .status(RejectionCode::Draining, 200)
        .build()
        .unwrap_err();
    let paths: Vec<_> = error.mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
    let expected = [
        "policies.a.timeout",
        "policies.b.retry.max_attempts",
        "policies.b",
        "policies..name",
        "max_routes",
        "statuses.draining",
    ];
    assert_eq!(paths, expected);
    assert!(error.to_string().starts_with("6 mistakes in the configuration\n  policies.a.timeout: must be"));
}

#[test]
fn a_service_may_override_the_status_of_a_code() {
    let module = builder(Policy::named("p")).status(RejectionCode::BulkheadFull, 429).build().unwrap();
    assert_eq!(module.status(&Rejection::new(RejectionCode::BulkheadFull)), 429);
    assert_eq!(module.status(&Rejection::new(RejectionCode::CircuitOpen)), 503);
}

#[tokio::test]
async fn a_route_that_is_too_long_is_rejected_and_unusual_characters_are_not() {
    let module = module(Policy::named("p"));
    assert_eq!(module.run("p", "{x}\r\n:\0/…", ok).await, Ok(1));
    assert_eq!(code(module.run("p", "x".repeat(1025).as_str(), ok).await), RejectionCode::RouteTooLong);
    assert_eq!(module.run("p", "x".repeat(1024).as_str(), ok).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_retuned_policy_reaches_existing_buckets_breakers_and_pipelines() {
    let policy = |permits, failures| {
        Policy::named("p")
            .rate_limit(RateLimitSpec::per_second(permits))
            .breaker(BreakerSpec::consecutive_failures(failures))
    };
    let log = Log::default();
    let module = builder(policy(10, 5)).observer(log.clone()).build().unwrap();
    let kept = module.pipeline("p", "eu").unwrap();
    for _ in 0..2 {
        assert_eq!(kept.run(broken).await, Err(Error::Inner(BROKEN)));
    }
    module.retune(policy(6, 3)).unwrap();
    assert_eq!(kept.available_permits().await, Some(6), "eight were left, the new burst is six");
    assert_eq!(kept.run(broken).await, Err(Error::Inner(BROKEN)));
    let (answer, record) = kept.call().run_recorded(ok).await;
    assert_eq!((code(answer), record.policy_version), (RejectionCode::CircuitOpen, 2), "the streak of two was kept");
    assert_eq!(log.count("Retuned"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retune_can_add_and_remove_stages_while_calls_run() {
    let module = module(Policy::named("p").timeout(SECOND));
    let kept = module.pipeline("p", ()).unwrap();
    let mut running = Box::pin(kept.run(hang));
    assert!(poll_once(running.as_mut()).is_pending());
    module.retune(Policy::named("p").rate_limit(RateLimitSpec::per_second(1))).unwrap();
    assert_eq!(kept.run(ok).await, Ok(1));
    assert_eq!(code(kept.run(ok).await), RejectionCode::RateLimited);
    assert_eq!(code(running.await), RejectionCode::AttemptTimeout, "a call in flight finishes under the old policy");
    assert_eq!(kept.run(ok).await, Ok(1));
    module.retune(Policy::named("p")).unwrap();
    module.retune(Policy::named("p").rate_limit(RateLimitSpec::per_second(1))).unwrap();
    tokio::time::advance(SECOND / 2).await;
    assert_eq!(code(kept.run(ok).await), RejectionCode::RateLimited, "the bucket was kept");
}

#[tokio::test]
async fn an_invalid_retune_changes_nothing() {
    let module = module(Policy::named("p").timeout(SECOND));
    let error = module.retune(Policy::named("p").timeout(Duration::ZERO)).unwrap_err();
    assert_eq!(error.mistakes[0].path, "policies.p.timeout");
    assert_eq!(module.pipeline("p", ()).unwrap().describe().version, 1);
}

#[tokio::test(start_paused = true)]
async fn routes_are_bounded_and_new_routes_beyond_the_bound_share_one_limit() {
    let log = Log::default();
    let limited = Policy::named("p").rate_limit(RateLimitSpec::per_second(1));
    let module = builder(limited).max_routes(2).observer(log.clone()).build().unwrap();
    let _held = [module.pipeline("p", "a").unwrap(), module.pipeline("p", "b").unwrap()];
    assert_eq!(module.run("p", "c", ok).await, Ok(1));
    assert_eq!(code(module.run("p", "d", ok).await), RejectionCode::RateLimited, "new routes share one bucket");
    assert_eq!((module.pipelines().len(), log.count("RoutesExhausted")), (3, 2), "two, and the shared one");
    drop(_held);
    assert_eq!(module.run("p", "e", ok).await, Ok(1), "there is room again");
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_is_not_evicted_for_idle_routes() {
    let module = builder(Policy::named("p").breaker(BreakerSpec::consecutive_failures(1))).max_routes(4);
    let module = module.build().unwrap();
    assert!(module.run("p", "dead", broken).await.is_err());
    for i in 0..100 {
        assert_eq!(module.run("p", i.to_string().as_str(), ok).await, Ok(1));
    }
    assert_eq!(code(module.run("p", "dead", ok).await), RejectionCode::CircuitOpen);
}

#[tokio::test(start_paused = true)]
async fn a_sharded_table_evicts_no_open_breaker() {
    let policy = Policy::named("p").breaker(BreakerSpec::consecutive_failures(1).break_for(3_600 * SECOND));
    let module = builder(policy).max_routes(1_600).build().unwrap();
    let dead = |i: u32| format!("dead {i}");
    for i in 0..300 {
        assert!(module.run("p", dead(i).as_str(), broken).await.is_err());
    }
    for i in 0..4_000 {
        assert_eq!(module.run("p", i.to_string().as_str(), ok).await, Ok(1));
    }
    for i in 0..300 {
        assert_eq!(code(module.run("p", dead(i).as_str(), ok).await), RejectionCode::CircuitOpen, "{i}");
    }
}

#[tokio::test(start_paused = true)]
async fn breakers_past_their_break_can_be_evicted() {
    let policy = Policy::named("p").breaker(BreakerSpec::consecutive_failures(1).break_for(SECOND));
    let module = builder(policy).max_routes(4).build().unwrap();
    for i in 0..4 {
        assert!(module.run("p", format!("gone {i}").as_str(), broken).await.is_err());
    }
    tokio::time::advance(60 * SECOND).await;
    for i in 0..4 {
        assert!(module.run("p", format!("new {i}").as_str(), broken).await.is_err());
    }
    for i in 0..4 {
        assert_eq!(code(module.run("p", format!("new {i}").as_str(), ok).await), RejectionCode::CircuitOpen);
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_may_retune_the_policy_of_the_event() {
    let held: Arc<Mutex<Option<ResilienceModule>>> = Arc::default();
    let module_of = held.clone();
    let limited = || Policy::named("p").rate_limit(RateLimitSpec::per_second(1));
    let react = move |event: &Event<'_>| {
        let module = module_of.lock().unwrap().clone();
        if let (EventKind::RoutesExhausted, Some(module)) = (event.kind, module) {
            module.retune(limited()).unwrap();
            assert!(module.policies().len() >= 3);
        }
    };
    let module = builder(limited()).max_routes(1).on_event(react).build().unwrap();
    *held.lock().unwrap() = Some(module.clone());
    let _held = module.pipeline("p", "a").unwrap();
    assert_eq!(module.run("p", "b", ok).await, Ok(1));
    held.lock().unwrap().take();
}

#[tokio::test(start_paused = true)]
async fn retune_needs_an_existing_policy_and_add_a_new_name() {
    let module = module(Policy::named("p").timeout(SECOND));
    assert!(module.retune(Policy::named("typo")).is_err());
    assert!(module.add(Policy::named("p")).is_err());
    assert_eq!(module.policies(), ["occ", "p", "transient"]);
    module.add(Policy::named("q")).unwrap();
    assert_eq!(module.run("q", (), ok).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn an_override_is_emitted_and_rejected_without_a_breaker() {
    let log = Log::default();
    let policy = Policy::named("p").breaker(BreakerSpec::failure_ratio(0.5));
    let module = builder(policy).policy(Policy::named("bare")).observer(log.clone()).build().unwrap();
    assert!(module.pipeline("p", ()).unwrap().force(Some(Override::Open)).await);
    assert!(!module.pipeline("bare", ()).unwrap().force(Some(Override::Open)).await);
    assert_eq!(log.lines(), ["Override(Some(Open))"]);
}

#[tokio::test(start_paused = true)]
async fn the_record_describes_every_outcome() {
    let policy = Policy::named("p")
        .rate_limit(RateLimitSpec::per_second(3))
        .breaker(BreakerSpec::consecutive_failures(1).break_for(SECOND))
        .timeout(100 * MS);
    let pipeline = module(policy).pipeline("p", ()).unwrap();
    let (_, answered) = pipeline.call().run_recorded(|| after(40 * MS, Ok(1))).await;
    let expected =
        Decision { remaining: Some(2), policy_version: 1, attempts: 1, elapsed: 40 * MS, ..Decision::default() };
    assert_eq!(answered, expected);

    let (_, cut_off) = pipeline.call().run_recorded(hang).await;
    assert_eq!((cut_off.stage, cut_off.reason), (Some(Stage::Timeout), Some(RejectionCode::AttemptTimeout)));
    assert_eq!((cut_off.verdict, cut_off.elapsed), (Verdict::Admitted, 100 * MS));

    let (_, rejected) = pipeline.call().run_recorded(ok).await;
    assert_eq!((rejected.stage, rejected.reason), (Some(Stage::Circuit), Some(RejectionCode::CircuitOpen)));
    assert_eq!((rejected.verdict, rejected.attempts, rejected.retry_after), (Verdict::Rejected, 0, Some(SECOND)));

    tokio::time::advance(SECOND).await;
    let (_, probe) = pipeline.call().run_recorded(ok).await;
    assert!(probe.probe && !answered.probe);

    let (_, missing) = module(Policy::named("p")).call("typo", ()).run_recorded(ok).await;
    assert_eq!((missing.verdict, missing.reason), (Verdict::Rejected, Some(RejectionCode::UnknownPolicy)));
}

#[tokio::test(start_paused = true)]
async fn the_record_has_the_remaining_time_of_the_deadline() {
    let module = module(Policy::named("p").timeout(SECOND));
    let (_, free) = module.call("p", ()).run_recorded(|| after(40 * MS, Ok(1))).await;
    assert_eq!(free.deadline_remaining, None);
    let (_, bound) = module.call("p", ()).within(100 * MS).run_recorded(|| after(40 * MS, Ok(1))).await;
    assert_eq!(bound.deadline_remaining, Some(60 * MS));
    let (_, late) = module.call("p", ()).within(100 * MS).run_recorded(hang).await;
    assert_eq!((late.reason, late.deadline_remaining), (Some(RejectionCode::DeadlineExceeded), Some(Duration::ZERO)));
}

#[tokio::test(start_paused = true)]
async fn the_record_of_a_rejected_call_includes_its_wait() {
    let policy = Policy::named("p")
        .rate_limit(RateLimitSpec::per_second(5).burst(1).max_wait(SECOND))
        .breaker(BreakerSpec::consecutive_failures(1));
    let pipeline = module(policy).pipeline("p", ()).unwrap();
    assert!(pipeline.run(broken).await.is_err());
    let (_, record) = pipeline.call().run_recorded(ok).await;
    assert_eq!((record.reason, record.elapsed), (Some(RejectionCode::CircuitOpen), 200 * MS));
}

#[tokio::test(start_paused = true)]
async fn the_record_of_a_retry_rejected_by_the_breaker_is_of_the_previous_attempt() {
    let policy = Policy::named("p")
        .breaker(BreakerSpec::consecutive_failures(1).count_attempts())
        .retry(RetrySpec::attempts(5).backoff(Backoff::constant(300 * MS).jitter(Jitter::None)))
        .timeout(50 * MS);
    let pipeline = module(policy).pipeline("p", ()).unwrap();
    let (_, record) = pipeline.call().run_recorded(hang).await;
    assert_eq!((record.stage, record.reason), (Some(Stage::Timeout), Some(RejectionCode::AttemptTimeout)));
    assert_eq!((record.attempts, record.elapsed), (1, 350 * MS));
}

#[tokio::test(start_paused = true)]
async fn the_throttle_rejects_in_proportion_with_a_code_of_its_own() {
    let module = module(Policy::named("p").throttle(ThrottleSpec::default()));
    let pipeline = module.pipeline("p", ()).unwrap();
    let (mut shed, mut sent) = (0, 0);
    for _ in 0..1_000 {
        match pipeline.run(broken).await.unwrap_err() {
            Error::Inner(_) => sent += 1,
            Error::Rejected(no) => {
                assert_eq!(
                    (no.code(), no.kind(), no.status()),
                    (RejectionCode::AdaptiveThrottle, Kind::Throttled, 429)
                );
                shed += 1;
            }
        }
    }
    assert!(shed > 900 && sent >= 10, "{shed} shed, {sent} sent");
    assert!(pipeline.circuit().await.is_none());
}

#[tokio::test]
async fn a_pipeline_describes_itself_as_text() {
    let policy = Policy::named("payments").rate_limit(RateLimitSpec::per_second(100).burst(200)).timeout(SECOND);
    let text = module(policy).pipeline("payments", "stripe").unwrap().describe().to_string();
    assert_eq!(text, "payments/stripe (version 1)\n  rate_limit 100 per 1s, burst 200\n  timeout    1s an attempt");
    let empty = module(Policy::named("p")).pipeline("p", ()).unwrap().describe().to_string();
    assert_eq!(empty, "p (version 1)\n  pass-through");
}

#[test]
fn calls_and_pipelines_are_send() {
    fn sendable<T: Send>(_: T) {}
    let module = module(Policy::named("p"));
    sendable(module.run("p", (), ok));
    sendable(module.pipeline("p", ()).unwrap().run(ok));
    sendable(module.call("p", ()).fallback_value(1).run_recorded(ok));
}

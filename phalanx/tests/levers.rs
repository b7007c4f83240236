//! Levers: they override a policy, and releasing them restores it.

#![allow(clippy::unwrap_used)] // helpers of tests may panic

mod support;

use phalanx::policy::{Jitter, LeverSpec};
use phalanx::*;
use support::*;

fn rejected(answer: Result<u32, Error<Failure>>) -> (RejectionCode, Source) {
    let error = answer.unwrap_err();
    let rejection = error.rejection().unwrap();
    (rejection.code(), rejection.source())
}

fn tripping() -> Policy {
    Policy::named("p").breaker(BreakerSpec::consecutive_failures(1).break_for(60 * SECOND))
}

fn retrying() -> Policy {
    let backoff = Backoff::constant(MS).jitter(Jitter::None);
    Policy::named("p").retry(RetrySpec::attempts(3).on([Kind::Infrastructure]).backoff(backoff))
}

#[tokio::test(start_paused = true)]
async fn force_open_rejects_every_call_and_takes_no_permits() {
    let policy = Policy::named("p").rate_limit(RateLimitSpec::per_second(5)).bulkhead(BulkheadSpec::fixed(1));
    let module = module(policy);
    let pipeline = module.pipeline("p", "kept").unwrap();
    module.pull("p", LeverSpec::force_open().reason("drill")).unwrap();
    let upstream = Upstream::always(Ok(1));
    assert_eq!(rejected(pipeline.run(|| upstream.call()).await), (RejectionCode::ForcedOpen, Source::Forced));
    assert_eq!(rejected(module.run("p", "new", || upstream.call()).await), (RejectionCode::ForcedOpen, Source::Forced));
    assert_eq!(upstream.calls(), 0);
    assert_eq!((pipeline.available_permits().await, pipeline.available_slots()), (Some(5), Some(1)));
    assert!(module.release("p"));
    assert_eq!(pipeline.run(|| upstream.call()).await, Ok(1));
    assert!(!module.release("p"), "it was released before");
}

#[tokio::test(start_paused = true)]
async fn force_closed_bypasses_the_breaker_and_records_nothing() {
    let module = module(tripping());
    let pipeline = module.pipeline("p", ()).unwrap();
    let _ = pipeline.run(|| after(MS, Err::<u32, _>(BROKEN))).await;
    assert_eq!(code(pipeline.run(|| after(MS, Ok(1))).await), RejectionCode::CircuitOpen);
    module.pull("p", LeverSpec::force_closed()).unwrap();
    assert_eq!(pipeline.run(|| after(MS, Ok(1))).await, Ok(1));
    module.release("p");
    assert_eq!(code(pipeline.run(|| after(MS, Ok(1))).await), RejectionCode::CircuitOpen, "its state was kept");
}

#[tokio::test(start_paused = true)]
async fn without_retries_the_first_failure_is_returned() {
    let module = module(retrying());
    module.pull("p", LeverSpec::default().without_retries()).unwrap();
    let upstream = Upstream::always(Err(BROKEN));
    assert_eq!(module.run("p", (), || upstream.call()).await, Err(Error::Inner(BROKEN)));
    assert_eq!(upstream.calls(), 1);
    module.release("p");
    let _ = module.run("p", (), || upstream.call()).await;
    assert_eq!(upstream.calls(), 1 + 3);
}

#[tokio::test(start_paused = true)]
async fn without_hedging_no_hedge_is_sent() {
    let module = module(Policy::named("p").hedge(HedgeSpec::after(10 * MS)).idempotent());
    let pipeline = module.pipeline("p", ()).unwrap();
    let hedges = async || pipeline.call().run_recorded(|| after(50 * MS, Ok(1))).await.1.hedges;
    assert_eq!(hedges().await, 1);
    module.pull("p", LeverSpec::default().without_hedging()).unwrap();
    assert_eq!((hedges().await, pipeline.hedge_delay()), (0, None));
    module.release("p");
    assert_eq!(hedges().await, 1);
}

#[tokio::test(start_paused = true)]
async fn max_concurrency_applies_with_and_without_a_bulkhead() {
    for policy in [Policy::named("p"), Policy::named("p").bulkhead(BulkheadSpec::fixed(3))] {
        let module = module(policy);
        let pipeline = module.pipeline("p", ()).unwrap();
        module.pull("p", LeverSpec::default().max_concurrency(1)).unwrap();
        let (inside, rejected) = tokio::join!(pipeline.run(|| after(MS, Ok(1))), pipeline.run(|| after(MS, Ok(2))));
        assert_eq!((inside, code(rejected)), (Ok(1), RejectionCode::BulkheadFull));
        module.release("p");
        let (one, other) = tokio::join!(pipeline.run(|| after(MS, Ok(1))), pipeline.run(|| after(MS, Ok(2))));
        assert_eq!((one, other), (Ok(1), Ok(2)));
        assert_eq!(pipeline.bulkhead().map_or(0, |view| view.in_use), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_in_flight_is_not_changed_by_a_lever() {
    let module = module(retrying());
    let pipeline = module.pipeline("p", ()).unwrap();
    let upstream = Upstream::scripted([Err(BROKEN), Ok(7)]);
    let call = pipeline.run(|| async {
        module.pull("p", LeverSpec::force_open().without_retries()).unwrap();
        upstream.call().await
    });
    assert_eq!(call.await, Ok(7), "it was retried");
    assert_eq!(code(pipeline.run(|| upstream.call()).await), RejectionCode::ForcedOpen);
}

#[tokio::test]
async fn the_lever_of_all_policies_combines_with_that_of_one() {
    let module = ResilienceModule::in_memory().policies([retrying(), Policy::named("q")]).build().unwrap();
    module.pull("*", LeverSpec::default().without_retries()).unwrap();
    module.pull("q", LeverSpec::force_open()).unwrap();
    let upstream = Upstream::always(Err(BROKEN));
    let _ = module.run("p", (), || upstream.call()).await;
    assert_eq!(upstream.calls(), 1);
    assert_eq!(code(module.run("q", (), || upstream.call()).await), RejectionCode::ForcedOpen);
    let both = module.pipeline("q", ()).unwrap().describe().lever.unwrap();
    assert_eq!(both.pulled().collect::<Vec<_>>(), ["force_open", "retries_off"]);
    assert_eq!(module.levers().into_keys().collect::<Vec<_>>(), ["*", "q"]);
}

#[tokio::test]
async fn pulling_and_releasing_a_lever_is_emitted_and_described() {
    let log = Log::default();
    let module = builder(tripping()).observer(log.clone()).build().unwrap();
    let pipeline = module.pipeline("p", "eu").unwrap();
    module.pull("p", LeverSpec::default().without_hedging().max_concurrency(4).reason("INC-7")).unwrap();
    let text = pipeline.describe().to_string();
    assert!(text.contains("lever      hedging_off, max_concurrency (INC-7)"), "{text}");
    assert!(text.contains("bulkhead   4 at a time"), "{text}");
    module.release("p");
    assert_eq!(pipeline.describe().lever, None);
    let emitted: Vec<_> = log.lines().into_iter().filter(|line| line.starts_with("Lever")).collect();
    assert_eq!(emitted.len(), 2, "{emitted:?}");
    assert!(emitted[0].contains("INC-7") && emitted[1].contains("lever: None"), "{emitted:?}");
    assert_eq!(log.count("Retuned"), 0, "the policy did not change");
}

#[test]
fn a_lever_of_an_unknown_policy_or_with_an_invalid_value_is_rejected() {
    let module = module(tripping());
    let error = module.pull("q", LeverSpec::default().max_concurrency(0)).unwrap_err();
    let paths: Vec<_> = error.mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
    assert_eq!(paths, ["levers.q.max_concurrency", "levers.q"]);
    assert!(module.levers().is_empty());
    let built = ResilienceModule::in_memory().lever("q", LeverSpec::force_open()).build();
    assert_eq!(built.unwrap_err().mistakes[0].path, "levers.q");
}

#[tokio::test]
async fn a_configured_lever_applies_at_start_and_again_after_a_pulled_one_is_released() {
    let module = builder(tripping()).lever("p", LeverSpec::force_open()).build().unwrap();
    let upstream = Upstream::always(Ok(1));
    assert_eq!(code(module.run("p", (), || upstream.call()).await), RejectionCode::ForcedOpen);
    module.pull("p", LeverSpec::default()).unwrap();
    assert_eq!(
        module.run("p", (), || upstream.call()).await,
        Ok(1),
        "a lever pulled by code overrides the configured one"
    );
    assert!(module.levers().is_empty());
    module.release("p");
    assert_eq!(code(module.run("p", (), || upstream.call()).await), RejectionCode::ForcedOpen);
}

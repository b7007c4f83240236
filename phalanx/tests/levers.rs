//! Levers: what an operator pulls above a policy, and that releasing them leaves everything as it was.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

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
async fn forced_open_rejects_every_call_and_takes_nothing_from_anybody() {
    let policy = Policy::named("p").rate_limit(RateLimitSpec::per_second(5)).bulkhead(BulkheadSpec::fixed(1));
    let module = module(policy);
    let pipeline = module.pipeline("p", "kept").unwrap();
    module.pull("p", LeverSpec::force_open().reason("drill")).unwrap();
    let upstream = Upstream::always(Ok(1));
    assert_eq!(rejected(pipeline.run(|| upstream.call()).await), (RejectionCode::ForcedOpen, Source::Override));
    assert_eq!(
        rejected(module.run("p", "new", || upstream.call()).await),
        (RejectionCode::ForcedOpen, Source::Override)
    );
    assert_eq!(upstream.calls(), 0);
    assert_eq!((pipeline.available_permits().await, pipeline.available_slots()), (Some(5), Some(1)));
    assert!(module.release("p"));
    assert_eq!(pipeline.run(|| upstream.call()).await, Ok(1));
    assert!(!module.release("p"), "it is released already");
}

#[tokio::test(start_paused = true)]
async fn forced_closed_asks_no_circuit_and_lets_it_learn_nothing() {
    let module = module(tripping());
    let pipeline = module.pipeline("p", ()).unwrap();
    let _ = pipeline.run(|| after(MS, Err::<u32, _>(BROKEN))).await;
    assert_eq!(code(pipeline.run(|| after(MS, Ok(1))).await), RejectionCode::CircuitOpen);
    module.pull("p", LeverSpec::force_closed()).unwrap();
    assert_eq!(pipeline.run(|| after(MS, Ok(1))).await, Ok(1));
    module.release("p");
    assert_eq!(
        code(pipeline.run(|| after(MS, Ok(1))).await),
        RejectionCode::CircuitOpen,
        "it went on from where it was"
    );
}

#[tokio::test(start_paused = true)]
async fn without_retries_the_first_failure_is_the_answer() {
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
async fn without_hedging_no_copy_is_sent() {
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
async fn a_cap_holds_where_the_policy_has_slots_and_where_it_has_none() {
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
async fn a_call_in_flight_finishes_as_it_began() {
    let module = module(retrying());
    let pipeline = module.pipeline("p", ()).unwrap();
    let upstream = Upstream::playing([Err(BROKEN), Ok(7)]);
    let call = pipeline.run(|| async {
        module.pull("p", LeverSpec::force_open().without_retries()).unwrap();
        upstream.call().await
    });
    assert_eq!(call.await, Ok(7), "it was retried");
    assert_eq!(code(pipeline.run(|| upstream.call()).await), RejectionCode::ForcedOpen);
}

#[tokio::test]
async fn a_lever_of_every_policy_stands_beside_each_ones_own() {
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
async fn a_pulled_lever_is_told_and_described_and_so_is_its_release() {
    let log = Log::default();
    let module = builder(tripping()).observer(log.clone()).build().unwrap();
    let pipeline = module.pipeline("p", "eu").unwrap();
    module.pull("p", LeverSpec::default().without_hedging().max_concurrency(4).reason("INC-7")).unwrap();
    let text = pipeline.describe().to_string();
    assert!(text.contains("lever      hedging_off, max_concurrency (INC-7)"), "{text}");
    assert!(text.contains("bulkhead   4 at a time"), "{text}");
    module.release("p");
    assert_eq!(pipeline.describe().lever, None);
    let told: Vec<_> = log.lines().into_iter().filter(|line| line.starts_with("Lever")).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("INC-7") && told[1].contains("lever: None"), "{told:?}");
    assert_eq!(log.count("Retuned"), 0, "the policy is the same");
}

#[test]
fn a_lever_of_nobody_or_without_sense_is_rejected_and_nothing_changes() {
    let module = module(tripping());
    let error = module.pull("q", LeverSpec::default().max_concurrency(0)).unwrap_err();
    let paths: Vec<_> = error.mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
    assert_eq!(paths, ["levers.q.max_concurrency", "levers.q"]);
    assert!(module.levers().is_empty());
    let built = ResilienceModule::in_memory().lever("q", LeverSpec::force_open()).build();
    assert_eq!(built.unwrap_err().mistakes[0].path, "levers.q");
}

#[tokio::test]
async fn a_configured_lever_holds_from_the_beginning_and_again_after_one_pulled_by_hand() {
    let module = builder(tripping()).lever("p", LeverSpec::force_open()).build().unwrap();
    let upstream = Upstream::always(Ok(1));
    assert_eq!(code(module.run("p", (), || upstream.call()).await), RejectionCode::ForcedOpen);
    module.pull("p", LeverSpec::default()).unwrap();
    assert_eq!(module.run("p", (), || upstream.call()).await, Ok(1), "a hand above it that pulls nothing");
    assert!(module.levers().is_empty());
    module.release("p");
    assert_eq!(code(module.run("p", (), || upstream.call()).await), RejectionCode::ForcedOpen);
}

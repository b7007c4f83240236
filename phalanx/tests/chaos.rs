//! Faults injected by the lever `chaos`: none until it is pulled, where a real fault would happen, and all of them visible.

#![cfg(feature = "chaos")]
#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx::policy::{ChaosSpec, InjectedFault, Jitter, LeverSpec};
use phalanx::*;
use tokio::time::Instant;

const MS: Duration = Duration::from_millis(1);

type Faults = Arc<Mutex<Vec<InjectedFault>>>;

/// A module with one policy, and the faults it has injected.
fn module(policy: Policy) -> (ResilienceModule, Faults) {
    let faults = Faults::default();
    let injected = faults.clone();
    let module = ResilienceModule::in_memory().policy(policy).seed(7).on_event(move |event| {
        if let EventKind::FaultInjected(fault) = event.kind {
            injected.lock().unwrap().push(fault);
        }
    });
    (module.build().unwrap(), faults)
}

fn pull(module: &ResilienceModule) {
    module.pull("p", LeverSpec::default().with_chaos().reason("rehearsal")).unwrap();
}

async fn call(module: &ResilienceModule) -> Result<&'static str, Error<Kind>> {
    module.run("p", (), || async { Ok("answer") }).await
}

fn code<T>(answer: &Result<T, Error<Kind>>) -> Option<RejectionCode> {
    answer.as_ref().err()?.rejection().map(|rejection| rejection.code())
}

fn everything() -> ChaosSpec {
    ChaosSpec::default().latency(1.0, 200 * MS).errors(1.0).rejections(1.0)
}

#[tokio::test(start_paused = true)]
async fn nothing_is_injected_until_the_lever_is_pulled_and_after_it_is_released() {
    let (module, faults) = module(Policy::named("p").chaos(everything()));
    let start = Instant::now();
    assert_eq!(call(&module).await, Ok("answer"));
    module.pull("p", LeverSpec::default().without_retries()).unwrap();
    assert_eq!(call(&module).await, Ok("answer"), "another lever is not this one");
    pull(&module);
    assert_eq!(code(&call(&module).await), Some(RejectionCode::InjectedFault));
    assert!(module.release("p"));
    assert_eq!(call(&module).await, Ok("answer"));
    assert_eq!((start.elapsed(), faults.lock().unwrap().len()), (Duration::ZERO, 1));
}

#[tokio::test(start_paused = true)]
async fn the_lever_of_every_policy_disturbs_only_policies_with_chaos() {
    let (module, _) = module(Policy::named("p").chaos(everything()));
    module.add(Policy::named("calm")).unwrap();
    module.pull("*", LeverSpec::default().with_chaos()).unwrap();
    assert_eq!(code(&call(&module).await), Some(RejectionCode::InjectedFault));
    assert_eq!(module.run("calm", (), || async { Ok::<_, Kind>(1) }).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn an_injected_rejection_happens_before_all_stages() {
    let policy =
        Policy::named("p").rate_limit(RateLimitSpec::per_minute(5)).chaos(ChaosSpec::default().rejections(1.0));
    let (module, faults) = module(policy);
    pull(&module);
    let (answer, record) = module.call("p", ()).run_recorded(|| async { Ok::<_, Kind>(()) }).await;
    let rejection = *answer.unwrap_err().rejection().unwrap();
    assert_eq!((rejection.code(), rejection.status()), (RejectionCode::InjectedFault, 503));
    assert_eq!((record.verdict, record.attempts, record.source), (Verdict::Rejected, 0, Source::Forced));
    assert_eq!(module.pipeline("p", ()).unwrap().available_permits().await, Some(5), "no permit is taken");
    assert_eq!(*faults.lock().unwrap(), [InjectedFault::Rejection]);
}

#[tokio::test(start_paused = true)]
async fn injected_errors_are_retried_and_trip_the_breaker_and_the_operation_never_runs() {
    let retry = RetrySpec::attempts(3).on([Kind::Infrastructure]).backoff(Backoff::constant(MS).jitter(Jitter::None));
    let policy = Policy::named("p")
        .retry(retry)
        .breaker(BreakerSpec::consecutive_failures(2))
        .chaos(ChaosSpec::default().errors(1.0));
    let (module, faults) = module(policy);
    pull(&module);
    let ran = Cell::new(0);
    let operation = || async {
        ran.set(ran.get() + 1);
        Ok::<_, Kind>(())
    };
    for _ in 0..2 {
        let (answer, record) = module.call("p", ()).run_recorded(operation).await;
        assert_eq!(code(&answer), Some(RejectionCode::InjectedFault));
        assert_eq!((record.verdict, record.attempts, record.stage), (Verdict::Admitted, 3, None));
    }
    assert_eq!(code(&call(&module).await), Some(RejectionCode::CircuitOpen));
    assert_eq!((ran.get(), faults.lock().unwrap().len()), (0, 6));
}

#[tokio::test(start_paused = true)]
async fn an_injected_error_close_to_the_deadline_is_still_a_failure() {
    let policy = Policy::named("p")
        .deadline(40 * MS)
        .breaker(BreakerSpec::consecutive_failures(1))
        .chaos(ChaosSpec::default().errors(1.0));
    let (module, _) = module(policy);
    pull(&module);
    assert_eq!(code(&call(&module).await), Some(RejectionCode::InjectedFault));
    assert_eq!(code(&call(&module).await), Some(RejectionCode::CircuitOpen));
}

#[tokio::test(start_paused = true)]
async fn injected_latency_delays_the_operation_and_counts_as_its_latency() {
    let chaos = ChaosSpec::default().latency_between(1.0, 100 * MS, 200 * MS);
    let (module, faults) = module(Policy::named("p").chaos(chaos));
    pull(&module);
    let (answer, record) = module.call("p", ()).run_recorded(|| async { Ok::<_, Kind>(1) }).await;
    assert_eq!(answer, Ok(1));
    let [InjectedFault::Latency(delay)] = faults.lock().unwrap()[..] else { unreachable!("one fault") };
    assert!((100 * MS..200 * MS).contains(&delay), "{delay:?}");
    // Timers have a resolution of a millisecond.
    assert!(record.elapsed >= delay && record.elapsed <= delay + MS, "{:?} for {delay:?}", record.elapsed);
}

#[tokio::test(start_paused = true)]
async fn injected_latency_beyond_the_timeout_is_an_attempt_timeout() {
    let chaos = ChaosSpec::default().latency(1.0, 200 * MS);
    let (module, faults) = module(Policy::named("p").timeout(50 * MS).chaos(chaos));
    pull(&module);
    let start = Instant::now();
    assert_eq!(code(&call(&module).await), Some(RejectionCode::AttemptTimeout));
    assert_eq!(start.elapsed(), 50 * MS);
    let slow_error = Policy::named("p").timeout(50 * MS).chaos(chaos.errors(1.0));
    module.retune(slow_error).unwrap();
    assert_eq!(code(&call(&module).await), Some(RejectionCode::AttemptTimeout));
    assert_eq!(start.elapsed(), 100 * MS);
    assert_eq!(*faults.lock().unwrap(), [InjectedFault::Latency(200 * MS); 2], "the error came too late");
}

#[tokio::test(start_paused = true)]
async fn a_hedge_draws_a_latency_of_its_own_and_may_overtake() {
    let hedge = HedgeSpec::after(10 * MS);
    let chaos = ChaosSpec::default().latency(0.5, 500 * MS);
    let (module, faults) = module(Policy::named("p").hedge(hedge).idempotent().chaos(chaos));
    pull(&module);
    let mut overtaken = 0;
    for _ in 0..40 {
        let (answer, record) = module.call("p", ()).run_recorded(|| async { Ok::<_, Kind>(1) }).await;
        assert_eq!(answer, Ok(1));
        if record.hedge_won {
            assert_eq!(record.elapsed, 10 * MS);
            overtaken += 1;
        }
        tokio::time::advance(Duration::from_secs(1)).await; // refills the budget of hedges
    }
    assert!(overtaken > 5, "{overtaken}");
    assert!(faults.lock().unwrap().iter().all(|fault| *fault == InjectedFault::Latency(500 * MS)));
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_injects_the_same_faults_and_about_the_configured_share() {
    let chaos = ChaosSpec::default().latency(0.2, 5 * MS).errors(0.1).rejections(0.05);
    let run = async || {
        let (module, faults) = module(Policy::named("p").chaos(chaos));
        pull(&module);
        let mut answers = Vec::new();
        for _ in 0..2_000 {
            answers.push(code(&call(&module).await));
        }
        (answers, faults.lock().unwrap().clone())
    };
    let (first, second) = (run().await, run().await);
    assert_eq!(first, second);
    let share = |wanted: &str| first.1.iter().filter(|fault| fault.name() == wanted).count();
    let (rejections, errors, late) = (share("rejection"), share("error"), share("latency"));
    // Five standard deviations around 100, 190 and 380.
    assert!((51..150).contains(&rejections) && (125..256).contains(&errors) && (292..469).contains(&late), "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_an_injected_wait() {
    let chaos = ChaosSpec::default().latency(1.0, Duration::from_secs(60)).errors(1.0);
    let (module, _) = module(Policy::named("p").chaos(chaos));
    let gate = lifecycle::Gate::default();
    assert!(module.attach(&gate));
    pull(&module);
    let waiting = tokio::spawn({
        let module = module.clone();
        async move { call(&module).await }
    });
    tokio::task::yield_now().await;
    gate.drain(MS).await;
    assert_eq!(code(&waiting.await.unwrap()), Some(RejectionCode::Draining));
}

#[test]
fn a_description_shows_the_chaos_of_a_pulled_lever() {
    let (module, _) = module(Policy::named("p").chaos(everything()));
    let pipeline = module.pipeline("p", ()).unwrap();
    assert!(!pipeline.describe().to_string().contains("late by"));
    pull(&module);
    let described = pipeline.describe().to_string();
    assert!(described.contains("chaos") && described.contains("1 late by 200ms, 1 failing, 1 rejected"), "{described}");
    assert_eq!(module.describe().policy("p").unwrap().value("chaos.error_ratio").unwrap().value, "1.0");
}

//! User code that panics: operations, classifiers, fallbacks, observers, guards.
//!
//! Whichever panics and whenever, no permit, no probe slot and no guard is leaked, one end is emitted, and the next call
//! works. The panic of an observer is contained; all others reach the caller.
//!
//! Nothing is printed, because `resume_unwind` does not run the panic hook.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

mod support;

use std::future::{Future, poll_fn, ready};
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use phalanx::describe::{Outcome, Phase};
use phalanx::policy::Stage;
use phalanx::store::MemoryStore;
use phalanx::store::Rng;
use phalanx::*;
use support::panicking::*;
use support::*;
use tokio::time::advance;

const BURST: u64 = 9;

/// A half-open circuit behind a rate limit, with a guard at every position: everything that a call can hold.
struct Fixture {
    pipeline: Pipeline,
    ledger: Ledger,
}

impl Fixture {
    async fn new(panicking: Option<PanickingGuard>) -> Self {
        let breaker = BreakerSpec::consecutive_failures(1).break_for(SECOND).probe_lease(HOUR);
        let store = MemoryStore::seeded(Clock::tokio(), 16, Rng::seeded(7));
        trip(&store, &breaker);
        advance(SECOND).await;
        let ledger = Ledger::default();
        let mut policy = Policy::named("p")
            .rate_limit(RateLimitSpec::new(1, HOUR).burst(BURST))
            .breaker(breaker)
            .retry(RetrySpec::attempts(3).on([Kind::Throttled]).backoff(Backoff::constant(MS)))
            .timeout(SECOND);
        // The panicking guard is directly outside the ledger's guard of the same order.
        if let Some(panicking) = panicking {
            policy = policy.guard(panicking);
        }
        let policy = GUARD_ORDERS.into_iter().fold(policy, |policy, order| policy.guard(ledger.guard(order)));
        let module = ResilienceModule::in_store(store).observer(ledger.clone()).policy(policy).build().unwrap();
        Self { pipeline: module.pipeline("p", ()).unwrap(), ledger }
    }

    /// Asserts that nothing is held, one end was emitted, `paid` permits were paid, the breaker is in `phase`, and the next
    /// call works.
    async fn assert_released(&self, paid: u64, phase: Phase) {
        let entries = self.ledger.read();
        assert!(entries.held.is_empty() && entries.disorder.is_empty(), "{entries:?}");
        assert_eq!(entries.finished.len(), 1, "{entries:?}");
        assert_eq!(self.pipeline.available_permits().await, Some(BURST - paid));
        let view = self.pipeline.circuit().await.unwrap();
        assert_eq!((view.phase, view.probes), (phase, 0));
        if phase == Phase::Open {
            advance(SECOND).await;
        }
        assert_eq!(self.pipeline.run(ok).await, Ok(1));
        assert_eq!(self.pipeline.circuit().await.unwrap().phase, Phase::Closed);
        assert!(self.ledger.read().held.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_panics_when_called_is_a_failure_and_holds_nothing() {
    let fixture = Fixture::new(None).await;
    let operation = || -> std::future::Ready<Result<u32, Failure>> { panic_quietly() };
    assert_eq!(caught(fixture.pipeline.run(operation)).await, Err("boom"));
    assert_eq!(fixture.ledger.read().finished, [Some(Outcome::Failure)]);
    fixture.assert_released(1, Phase::Open).await;
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_panics_at_any_poll_of_any_attempt_is_a_failure_and_holds_nothing() {
    for attempt in 1..=3 {
        for poll in 1..=3 {
            let fixture = Fixture::new(None).await;
            let (mut attempts, mut polls) = (0, 0);
            let script = std::sync::Mutex::new(move |first: bool| {
                (attempts, polls) = if first { (attempts + 1, 1) } else { (attempts, polls + 1) };
                (attempts, polls)
            });
            let operation = || {
                let mut first = true;
                let script = &script;
                poll_fn(move |cx| {
                    let now = script.lock().unwrap()(std::mem::take(&mut first));
                    cx.waker().wake_by_ref();
                    match now {
                        now if now == (attempt, poll) => panic_quietly(),
                        (_, 3) => Poll::Ready(Err::<u32, _>(Failure(Kind::Throttled))),
                        _ => Poll::Pending,
                    }
                })
            };
            // The script's lock is released before the panic.
            assert_eq!(caught(fixture.pipeline.run(operation)).await, Err("boom"), "attempt {attempt}, poll {poll}");
            assert_eq!(fixture.ledger.read().finished, [Some(Outcome::Failure)]);
            fixture.assert_released(1, Phase::Open).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_panic_of_a_detached_operation_reaches_the_caller() {
    let fixture = Fixture::new(None).await;
    let call = fixture.pipeline.call().run_detached(|| async { panic_quietly::<Result<u32, Failure>>() });
    assert_eq!(caught(call).await, Err("boom"));
    fixture.assert_released(1, Phase::Open).await;
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_panics_is_one_failure_in_the_breakers_window() {
    let policy = Policy::named("p").breaker(BreakerSpec::failure_ratio(1.0).min_throughput(9).count_attempts());
    let pipeline = ResilienceModule::in_memory().policy(policy).build().unwrap().pipeline("p", ()).unwrap();
    for panics in 1..=5 {
        assert_eq!(caught(pipeline.run(|| async { panic_quietly::<Result<u32, Failure>>() })).await, Err("boom"));
        let view = pipeline.circuit().await.unwrap();
        assert_eq!((view.calls, view.failures), (panics, panics));
    }
}

#[tokio::test(start_paused = true)]
async fn the_panic_of_a_classifier_reaches_the_caller_and_holds_nothing() {
    let fixture = Fixture::new(None).await;
    let call = fixture.pipeline.call().classify(|_: &Result<u32, Failure>| panic_quietly()).run(ok);
    assert_eq!(caught(call).await, Err("boom"));
    assert_eq!(fixture.ledger.read().finished, [Some(Outcome::Cancelled)], "no evidence about the dependency");
    fixture.assert_released(1, Phase::HalfOpen).await;
}

#[tokio::test(start_paused = true)]
async fn the_panic_of_a_fallback_reaches_the_caller_and_holds_nothing() {
    let broken = || async { Err::<u32, _>(BROKEN) };

    let fixture = Fixture::new(None).await;
    assert_eq!(caught(fixture.pipeline.call().fallback_with(|_| panic_quietly()).run(broken)).await, Err("boom"));
    fixture.assert_released(1, Phase::Open).await;

    let fixture = Fixture::new(None).await;
    let later = |_: &Error<Failure>| async {
        tokio::task::yield_now().await;
        panic_quietly()
    };
    assert_eq!(caught(fixture.pipeline.call().fallback_async(later).run(broken)).await, Err("boom"));
    fixture.assert_released(1, Phase::Open).await;
}

#[tokio::test(start_paused = true)]
async fn a_value_whose_clone_panics_leaves_a_stale_cache_usable() {
    #[derive(Debug)]
    struct PanicsOnClone(Arc<AtomicBool>);
    impl Clone for PanicsOnClone {
        fn clone(&self) -> Self {
            if self.0.swap(false, Ordering::Relaxed) { panic_quietly() } else { Self(self.0.clone()) }
        }
    }
    let fixture = Fixture::new(None).await;
    let (cache, panics) = (StaleCache::new(4, HOUR), Arc::new(AtomicBool::new(true)));
    let good = || ready(Ok::<_, Failure>(PanicsOnClone(panics.clone())));
    let call = |fallback| fixture.pipeline.call().fallback(fallback);
    assert_eq!(caught(call(cache.at("k")).run(good)).await.map(drop), Err("boom"), "when it is stored");
    assert!(call(cache.at("k")).run(good).await.is_ok());
    panics.store(true, Ordering::Relaxed);
    let broken = || ready(Err::<PanicsOnClone, _>(BROKEN));
    assert_eq!(caught(call(cache.at("k")).run(broken)).await.map(drop), Err("boom"), "when it is served");
    assert!(call(cache.at("k")).run(broken).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_panicking_observer_changes_no_result_and_hides_no_panic() {
    let ledger = Ledger::default();
    let policy = Policy::named("p")
        .rate_limit(RateLimitSpec::new(1, HOUR).burst(BURST))
        .breaker(BreakerSpec::consecutive_failures(1).break_for(SECOND))
        .guard(ledger.guard(GUARD_ORDERS[0]));
    let panicking = |_: &Event<'_>| panic_quietly();
    let module = ResilienceModule::in_memory().observer(panicking).observer(ledger.clone()).policy(policy);
    let pipeline = module.build().unwrap().pipeline("p", ()).unwrap();
    assert_eq!(caught(pipeline.run(ok)).await, Ok(Ok(1)));
    assert_eq!(caught(pipeline.run(|| async { panic_quietly::<Result<u32, Failure>>() })).await, Err("boom"));
    assert_eq!(pipeline.circuit().await.unwrap().phase, Phase::Open);
    for _ in 0..20 {
        assert!(caught(pipeline.run(ok)).await.unwrap().is_err());
    }
    advance(SECOND).await;
    assert_eq!(caught(pipeline.run(ok)).await, Ok(Ok(1)));
    let entries = ledger.read();
    assert_eq!((entries.finished.len(), entries.held.len()), (23, 0));
    assert_eq!(
        pipeline.available_permits().await,
        Some(BURST - 3),
        "permits of rejections by the circuit are refunded"
    );
}

#[tokio::test(start_paused = true)]
async fn the_panic_of_a_guard_on_admit_reaches_the_caller_and_holds_nothing() {
    for order in GUARD_ORDERS {
        let fixture = Fixture::new(Some(PanickingGuard::at(order, When::Admit))).await;
        assert_eq!(caught(fixture.pipeline.run(ok)).await, Err("boom"), "order {order}");
        let asked = order > Stage::Circuit.order();
        let view = fixture.pipeline.circuit().await.unwrap();
        assert_eq!(view.phase, if asked { Phase::HalfOpen } else { Phase::Open }, "order {order}");
        fixture.assert_released(0, view.phase).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_panic_of_a_guard_on_settle_reaches_the_caller_and_holds_nothing() {
    for order in GUARD_ORDERS {
        let fixture = Fixture::new(Some(PanickingGuard::at(order, When::Settle))).await;
        assert_eq!(caught(fixture.pipeline.run(ok)).await, Err("boom"), "order {order}");
        let view = fixture.pipeline.circuit().await.unwrap();
        fixture.assert_released(1, view.phase).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_panics_on_settle_of_a_dropped_call_holds_nothing() {
    for order in GUARD_ORDERS {
        let fixture = Fixture::new(Some(PanickingGuard::at(order, When::Settle))).await;
        let mut call: Pin<Box<dyn Future<Output = _>>> = Box::pin(fixture.pipeline.run(hang));
        assert!(poll_once(call.as_mut()).is_pending());
        drop(call); // no caller is left to receive the panic
        fixture.assert_released(1, Phase::HalfOpen).await;
    }
}

#[tokio::test(start_paused = true)]
async fn panics_of_both_operation_and_guard_do_not_abort_the_process() {
    for order in GUARD_ORDERS {
        let fixture = Fixture::new(Some(PanickingGuard::at(order, When::Settle))).await;
        let operation = || async { resume_unwind(Box::new("boom")) };
        assert_eq!(caught(fixture.pipeline.run::<u32, Failure, _, _>(operation)).await, Err("boom"), "order {order}");
        fixture.assert_released(1, Phase::Open).await;
    }
}

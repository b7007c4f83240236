//! Code of others that panics: operations, classifiers, fallbacks, observers, guards.
//!
//! Whoever panics and whenever, no permit, no probe's place and no guard stays taken, observers hear of one end,
//! and the next call works. The panic of an observer stays with it; all others reach the caller.
//!
//! Nothing here prints: `resume_unwind` panics without the hook.

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

/// A half-open circuit behind a rate limit, guarded at every place: everything that a call can hold.
struct Stand {
    pipeline: Pipeline,
    ledger: Ledger,
}

impl Stand {
    async fn new(fragile: Option<Fragile>) -> Self {
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
        // The fragile guard stands right outside the ledger's guard of its place.
        if let Some(fragile) = fragile {
            policy = policy.guard(fragile);
        }
        let policy = PLACES.into_iter().fold(policy, |policy, place| policy.guard(ledger.guard(place)));
        let module = ResilienceModule::in_store(store).observer(ledger.clone()).policy(policy).build().unwrap();
        Self { pipeline: module.pipeline("p", ()).unwrap(), ledger }
    }

    /// Nothing is held, one end was told, so many permits were paid, and the circuit stands as it should; then, that
    /// the next call works.
    async fn is_free(&self, paid: u64, phase: Phase) {
        let told = self.ledger.read();
        assert!(told.held.is_empty() && told.disorder.is_empty(), "{told:?}");
        assert_eq!(told.finished.len(), 1, "{told:?}");
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
    let stand = Stand::new(None).await;
    let operation = || -> std::future::Ready<Result<u32, Failure>> { boom() };
    assert_eq!(caught(stand.pipeline.run(operation)).await, Err("boom"));
    assert_eq!(stand.ledger.read().finished, [Some(Outcome::Failure)]);
    stand.is_free(1, Phase::Open).await;
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_panics_at_any_poll_of_any_attempt_is_a_failure_and_holds_nothing() {
    for attempt in 1..=3 {
        for poll in 1..=3 {
            let stand = Stand::new(None).await;
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
                        now if now == (attempt, poll) => boom(),
                        (_, 3) => Poll::Ready(Err::<u32, _>(Failure(Kind::Throttled))),
                        _ => Poll::Pending,
                    }
                })
            };
            // The lock of the script is released before the panic.
            assert_eq!(caught(stand.pipeline.run(operation)).await, Err("boom"), "attempt {attempt}, poll {poll}");
            assert_eq!(stand.ledger.read().finished, [Some(Outcome::Failure)]);
            stand.is_free(1, Phase::Open).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_panics_in_a_task_of_its_own_is_the_callers_panic() {
    let stand = Stand::new(None).await;
    let call = stand.pipeline.call().run_detached(|| async { boom::<Result<u32, Failure>>() });
    assert_eq!(caught(call).await, Err("boom"));
    stand.is_free(1, Phase::Open).await;
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_panics_outside_a_breaker_is_one_failure_in_its_window() {
    let policy = Policy::named("p").breaker(BreakerSpec::failure_ratio(1.0).min_throughput(9).count_attempts());
    let pipeline = ResilienceModule::in_memory().policy(policy).build().unwrap().pipeline("p", ()).unwrap();
    for panics in 1..=5 {
        assert_eq!(caught(pipeline.run(|| async { boom::<Result<u32, Failure>>() })).await, Err("boom"));
        let view = pipeline.circuit().await.unwrap();
        assert_eq!((view.calls, view.failures), (panics, panics));
    }
}

#[tokio::test(start_paused = true)]
async fn a_classifier_that_panics_reaches_the_caller_and_holds_nothing() {
    let stand = Stand::new(None).await;
    let call = stand.pipeline.call().classify(|_: &Result<u32, Failure>| boom()).run(ok);
    assert_eq!(caught(call).await, Err("boom"));
    assert_eq!(stand.ledger.read().finished, [Some(Outcome::Cancelled)], "it says nothing about the dependency");
    stand.is_free(1, Phase::HalfOpen).await;
}

#[tokio::test(start_paused = true)]
async fn a_fallback_that_panics_reaches_the_caller_and_holds_nothing() {
    let broken = || async { Err::<u32, _>(BROKEN) };

    let stand = Stand::new(None).await;
    assert_eq!(caught(stand.pipeline.call().fallback_with(|_| boom()).run(broken)).await, Err("boom"));
    stand.is_free(1, Phase::Open).await;

    let stand = Stand::new(None).await;
    let later = |_: &Error<Failure>| async {
        tokio::task::yield_now().await;
        boom()
    };
    assert_eq!(caught(stand.pipeline.call().fallback_async(later).run(broken)).await, Err("boom"));
    stand.is_free(1, Phase::Open).await;
}

#[tokio::test(start_paused = true)]
async fn a_value_whose_copying_panics_leaves_a_stale_cache_usable() {
    #[derive(Debug)]
    struct Fussy(Arc<AtomicBool>);
    impl Clone for Fussy {
        fn clone(&self) -> Self {
            if self.0.swap(false, Ordering::Relaxed) { boom() } else { Self(self.0.clone()) }
        }
    }
    let stand = Stand::new(None).await;
    let (cache, panics) = (StaleCache::new(4, HOUR), Arc::new(AtomicBool::new(true)));
    let good = || ready(Ok::<_, Failure>(Fussy(panics.clone())));
    let call = |fallback| stand.pipeline.call().fallback(fallback);
    assert_eq!(caught(call(cache.at("k")).run(good)).await.map(drop), Err("boom"), "when it is remembered");
    assert!(call(cache.at("k")).run(good).await.is_ok());
    panics.store(true, Ordering::Relaxed);
    let broken = || ready(Err::<Fussy, _>(BROKEN));
    assert_eq!(caught(call(cache.at("k")).run(broken)).await.map(drop), Err("boom"), "when it is served");
    assert!(call(cache.at("k")).run(broken).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_changes_no_answer_and_hides_no_panic() {
    let ledger = Ledger::default();
    let policy = Policy::named("p")
        .rate_limit(RateLimitSpec::new(1, HOUR).burst(BURST))
        .breaker(BreakerSpec::consecutive_failures(1).break_for(SECOND))
        .guard(ledger.guard(PLACES[0]));
    let panicking = |_: &Event<'_>| boom();
    let module = ResilienceModule::in_memory().observer(panicking).observer(ledger.clone()).policy(policy);
    let pipeline = module.build().unwrap().pipeline("p", ()).unwrap();
    assert_eq!(caught(pipeline.run(ok)).await, Ok(Ok(1)));
    assert_eq!(caught(pipeline.run(|| async { boom::<Result<u32, Failure>>() })).await, Err("boom"));
    assert_eq!(pipeline.circuit().await.unwrap().phase, Phase::Open);
    for _ in 0..20 {
        assert!(caught(pipeline.run(ok)).await.unwrap().is_err());
    }
    advance(SECOND).await;
    assert_eq!(caught(pipeline.run(ok)).await, Ok(Ok(1)));
    let told = ledger.read();
    assert_eq!((told.finished.len(), told.held.len()), (23, 0));
    assert_eq!(pipeline.available_permits().await, Some(BURST - 3), "rejections by the circuit gave theirs back");
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_panics_when_asked_reaches_the_caller_and_holds_nothing() {
    for place in PLACES {
        let stand = Stand::new(Some(Fragile::at(place, When::Admit))).await;
        assert_eq!(caught(stand.pipeline.run(ok)).await, Err("boom"), "place {place}");
        let asked = place > Stage::Circuit.order();
        let view = stand.pipeline.circuit().await.unwrap();
        assert_eq!(view.phase, if asked { Phase::HalfOpen } else { Phase::Open }, "place {place}");
        stand.is_free(0, view.phase).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_panics_when_told_reaches_the_caller_and_holds_nothing() {
    for place in PLACES {
        let stand = Stand::new(Some(Fragile::at(place, When::Settle))).await;
        assert_eq!(caught(stand.pipeline.run(ok)).await, Err("boom"), "place {place}");
        let view = stand.pipeline.circuit().await.unwrap();
        stand.is_free(1, view.phase).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_panics_when_told_that_the_caller_left_holds_nothing() {
    for place in PLACES {
        let stand = Stand::new(Some(Fragile::at(place, When::Settle))).await;
        let mut call: Pin<Box<dyn Future<Output = _>>> = Box::pin(stand.pipeline.run(hang));
        assert!(poll_once(call.as_mut()).is_pending());
        drop(call); // nobody is left to hear of it
        stand.is_free(1, Phase::HalfOpen).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_and_a_guard_that_both_panic_do_not_end_the_process() {
    for place in PLACES {
        let stand = Stand::new(Some(Fragile::at(place, When::Settle))).await;
        let operation = || async { resume_unwind(Box::new("boom")) };
        assert_eq!(caught(stand.pipeline.run::<u32, Failure, _, _>(operation)).await, Err("boom"), "place {place}");
        stand.is_free(1, Phase::Open).await;
    }
}

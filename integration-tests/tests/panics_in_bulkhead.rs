//! User code that panics while slots are taken: in a hedged attempt, and with callers in the queue.
//!
//! Whichever panics and whenever, the slots of the call and of its hedges go to the waiting call, the breaker's tickets are
//! released, one end is emitted, and the next call works.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

mod support;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use phalanx::describe::Outcome;
use phalanx::guard::{CallInfo, Guard};
use phalanx::policy::BudgetSpec;
use phalanx::*;
use support::panicking::*;
use support::*;
use tokio::time::sleep;

type Answer = Result<u32, Error<Failure>>;

const GUARD_ORDERS_AROUND_BULKHEAD: [u16; 5] = [150, 250, 350, 450, 550];

/// A call that arrives while all slots are taken.
#[derive(Default)]
struct Waiter<'a>(RefCell<Option<Pin<Box<dyn Future<Output = Answer> + 'a>>>>);

impl<'a> Waiter<'a> {
    fn arrive(&self, pipeline: &'a Pipeline) {
        let limit = pipeline.bulkhead().unwrap().limit;
        let mut call: Pin<Box<dyn Future<Output = Answer>>> = Box::pin(pipeline.run(ok));
        assert!(poll_once(call.as_mut()).is_pending());
        assert_eq!(slots(pipeline), (limit, limit, 1));
        *self.0.borrow_mut() = Some(call);
    }

    /// Asserts that it arrived and has a slot now.
    fn assert_served(self) {
        assert_eq!(poll_once(self.0.take().unwrap().as_mut()), Poll::Ready(Ok(1)));
    }
}

fn slots(pipeline: &Pipeline) -> (u32, u32, u32) {
    let view = pipeline.bulkhead().unwrap();
    (view.limit, view.in_use, view.waiting)
}

/// Two slots, one for the attempt and one for its hedge, and a breaker that counts.
fn hedged(ledger: &Ledger, count_attempts: bool) -> ModuleBuilder {
    let mut breaker = BreakerSpec::failure_ratio(1.0).min_throughput(1_000).window(HOUR);
    if count_attempts {
        breaker = breaker.count_attempts();
    }
    let policy = Policy::named("p")
        .bulkhead(BulkheadSpec::fixed(2).queue(1))
        .breaker(breaker)
        .retry(RetrySpec::attempts(3))
        .hedge(HedgeSpec::after(4 * MS).budget(BudgetSpec::ratio(1.0)))
        .idempotent()
        .timeout(SECOND);
    let policy =
        GUARD_ORDERS_AROUND_BULKHEAD.into_iter().fold(policy, |policy, order| policy.guard(ledger.guard(order)));
    ResilienceModule::in_memory().observer(ledger.clone()).policy(policy)
}

/// Where the panic happens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PanicAt {
    HedgeCreated,
    HedgeFirstPoll,
    HedgeLaterPoll,
    /// While the hedge runs.
    AttemptLaterPoll,
    /// After the attempt has failed.
    LastHedgeLaterPoll,
    ClassifyAttempt,
    ClassifyHedge,
    DropLosingAttempt,
    DropLosingHedge,
}

impl PanicAt {
    const ALL: [Self; 9] = [
        Self::HedgeCreated,
        Self::HedgeFirstPoll,
        Self::HedgeLaterPoll,
        Self::AttemptLaterPoll,
        Self::LastHedgeLaterPoll,
        Self::ClassifyAttempt,
        Self::ClassifyHedge,
        Self::DropLosingAttempt,
        Self::DropLosingHedge,
    ];

    /// Returns whether the panic counts as a failure of the dependency: one of the operation does, others do not.
    fn is_failure(self) -> bool {
        let others = [Self::ClassifyAttempt, Self::ClassifyHedge, Self::DropLosingAttempt, Self::DropLosingHedge];
        !others.contains(&self)
    }
}

/// Panics when dropped, unless already panicking.
struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic_quietly()
        }
    }
}

/// The operation: run 0 is the attempt, run 1 its hedge. A waiter arrives just before the panic.
async fn run_operation(at: PanicAt, run: u32, arrive: impl Fn()) -> Result<u32, Failure> {
    match (at, run) {
        (PanicAt::HedgeFirstPoll, 1) => {
            arrive();
            panic_quietly()
        }
        (PanicAt::HedgeLaterPoll, 1) | (PanicAt::AttemptLaterPoll, 0) | (PanicAt::LastHedgeLaterPoll, 1) => {
            sleep(10 * MS).await;
            arrive();
            panic_quietly()
        }
        (PanicAt::LastHedgeLaterPoll, 0) => {
            sleep(6 * MS).await;
            Err(BROKEN)
        }
        (PanicAt::ClassifyAttempt, 0) | (PanicAt::ClassifyHedge, 1) => {
            sleep(10 * MS).await;
            arrive();
            Err(BROKEN)
        }
        (PanicAt::DropLosingAttempt, 0) | (PanicAt::DropLosingHedge, 1) => {
            let _panics = PanicOnDrop;
            hang().await
        }
        (PanicAt::DropLosingAttempt, 1) | (PanicAt::DropLosingHedge, 0) => {
            sleep(10 * MS).await;
            arrive();
            Ok(1)
        }
        _ => hang().await,
    }
}

#[tokio::test(start_paused = true)]
async fn any_panic_in_a_hedged_attempt_releases_every_slot_to_the_waiter() {
    for (at, count_attempts) in PanicAt::ALL.into_iter().flat_map(|at| [(at, false), (at, true)]) {
        let ledger = Ledger::default();
        let pipeline = hedged(&ledger, count_attempts).build().unwrap().pipeline("p", ()).unwrap();
        let (begun, waiter) = (Cell::new(0), Waiter::default());
        let operation = || {
            let run = begun.replace(begun.get() + 1);
            if (at, run) == (PanicAt::HedgeCreated, 1) {
                waiter.arrive(&pipeline);
                panic_quietly()
            }
            run_operation(at, run, || waiter.arrive(&pipeline))
        };
        let classifier = |result: &Result<u32, Failure>| match result {
            Err(_) if matches!(at, PanicAt::ClassifyAttempt | PanicAt::ClassifyHedge) => panic_quietly(),
            Err(error) => error.classify(),
            Ok(_) => Class::SUCCESS,
        };
        assert_eq!(caught(pipeline.call().classify(classifier).run(operation)).await, Err("boom"), "{at:?}");
        assert_eq!(begun.get(), 2, "{at:?}");
        let outcome = if at.is_failure() { Outcome::Failure } else { Outcome::Cancelled };
        assert_eq!(ledger.read().finished, [Some(outcome)], "{at:?}");
        waiter.assert_served();
        assert_eq!(slots(&pipeline), (2, 0, 0), "{at:?}");
        assert!(ledger.read().held.is_empty(), "{at:?}");
        let view = pipeline.circuit().await.unwrap();
        assert_eq!((view.calls, view.failures), (1 + view.failures, u64::from(at.is_failure())), "{at:?}");
        assert_eq!(at_once(pipeline.run(ok)), Ok(1), "{at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_on_a_hedge_event_does_not_stop_the_hedge() {
    let (ledger, calls) = (Ledger::default(), Arc::new(AtomicU32::new(0)));
    let count = calls.clone();
    let panicking = move |event: &Event<'_>| {
        if matches!(event.kind, EventKind::Hedge { .. }) {
            count.fetch_add(1, Ordering::Relaxed);
            panic_quietly()
        }
    };
    let module = hedged(&ledger, true).observer(panicking).build().unwrap();
    let pipeline = module.pipeline("p", ()).unwrap();
    for _ in 0..5 {
        let begun = Cell::new(0);
        let operation = || {
            let run = begun.replace(begun.get() + 1);
            async move { if run == 0 { hang().await } else { Ok(2) } }
        };
        assert_eq!(caught(pipeline.run(operation)).await, Ok(Ok(2)));
        assert_eq!(slots(&pipeline), (2, 0, 0));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 3, "then the observer is disabled");
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_panics_around_a_slot_releases_it_to_the_waiter() {
    for (order, when) in
        GUARD_ORDERS_AROUND_BULKHEAD.into_iter().flat_map(|order| [(order, When::Admit), (order, When::Settle)])
    {
        let policy =
            Policy::named("p").bulkhead(BulkheadSpec::fixed(1).queue(1)).guard(PanickingGuard::at(order, when));
        let pipeline = ResilienceModule::in_memory().policy(policy).build().unwrap().pipeline("p", ()).unwrap();
        let waiter = Waiter::default();
        let operation = || {
            waiter.arrive(&pipeline);
            ok()
        };
        assert_eq!(caught(pipeline.run(operation)).await, Err("boom"), "{order} {when:?}");
        if when == When::Settle {
            waiter.assert_served();
        }
        assert_eq!(slots(&pipeline), (1, 0, 0), "{order} {when:?}");
        assert_eq!(at_once(pipeline.run(ok)), Ok(1), "{order} {when:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_panics_on_admit_of_a_served_waiter_releases_the_slot_to_the_next() {
    for order in [350, 450, 550] {
        // Panics on the second call.
        let asked = Arc::new(AtomicU32::new(0));
        let policy =
            Policy::named("p").bulkhead(BulkheadSpec::fixed(1).queue(2)).guard(PanicOnSecond(order, asked.clone()));
        let pipeline = ResilienceModule::in_memory().policy(policy).build().unwrap().pipeline("p", ()).unwrap();
        let mut calls = [(); 3].map(|()| Box::pin(pipeline.run(hang)));
        calls.iter_mut().for_each(|call| assert!(poll_once(call.as_mut()).is_pending()));
        let [first, second, mut third] = calls;
        drop(first);
        assert_eq!(caught(second).await, Err("boom"), "{order}");
        assert!(poll_once(third.as_mut()).is_pending());
        assert_eq!((slots(&pipeline), asked.load(Ordering::Relaxed)), ((1, 1, 0), 3), "{order}");
        drop(third);
        assert_eq!(slots(&pipeline), (1, 0, 0), "{order}");
    }
}

/// A guard that panics on its second `admit`.
struct PanicOnSecond(u16, Arc<AtomicU32>);

impl Guard for PanicOnSecond {
    fn name(&self) -> &str {
        "second"
    }

    fn order(&self) -> u16 {
        self.0
    }

    fn admit(&self, _: &CallInfo<'_>) -> Result<(), Rejection> {
        if self.1.fetch_add(1, Ordering::Relaxed) == 1 { panic_quietly() } else { Ok(()) }
    }
}

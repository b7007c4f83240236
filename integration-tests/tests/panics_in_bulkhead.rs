//! Code of others that panics while slots are taken: in a race, with a copy beside it, with callers in the queue.
//!
//! Whoever panics and whenever, the slots of the call and of its copies go to whoever waits, the circuit's tickets are
//! back, observers hear of one end, and the next call works.

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

const PLACES_AROUND: [u16; 5] = [150, 250, 350, 450, 550];

/// Somebody who comes when all slots are taken.
#[derive(Default)]
struct Waiter<'a>(RefCell<Option<Pin<Box<dyn Future<Output = Answer> + 'a>>>>);

impl<'a> Waiter<'a> {
    fn comes(&self, pipeline: &'a Pipeline) {
        let limit = pipeline.bulkhead().unwrap().limit;
        let mut call: Pin<Box<dyn Future<Output = Answer>>> = Box::pin(pipeline.run(ok));
        assert!(poll_once(call.as_mut()).is_pending());
        assert_eq!(slots(pipeline), (limit, limit, 1));
        *self.0.borrow_mut() = Some(call);
    }

    /// He came, and has his slot by now.
    fn must_be_served(self) {
        assert_eq!(poll_once(self.0.take().unwrap().as_mut()), Poll::Ready(Ok(1)));
    }
}

fn slots(pipeline: &Pipeline) -> (u32, u32, u32) {
    let view = pipeline.bulkhead().unwrap();
    (view.limit, view.in_use, view.waiting)
}

/// Two slots, one for the attempt and one for its copy, and a circuit that counts.
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
    let policy = PLACES_AROUND.into_iter().fold(policy, |policy, place| policy.guard(ledger.guard(place)));
    ResilienceModule::in_memory().observer(ledger.clone()).policy(policy)
}

/// What panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    CopyIsMade,
    CopysFirstPoll,
    CopysLaterPoll,
    /// While the copy runs.
    AttemptsLaterPoll,
    /// After the attempt itself failed.
    LastCopysLaterPoll,
    ClassOfAttempt,
    ClassOfCopy,
    LosingAttemptIsDropped,
    LosingCopyIsDropped,
}

impl At {
    const ALL: [Self; 9] = [
        Self::CopyIsMade,
        Self::CopysFirstPoll,
        Self::CopysLaterPoll,
        Self::AttemptsLaterPoll,
        Self::LastCopysLaterPoll,
        Self::ClassOfAttempt,
        Self::ClassOfCopy,
        Self::LosingAttemptIsDropped,
        Self::LosingCopyIsDropped,
    ];

    /// Whether it says something about the dependency: what the operation does, not what is made of its answer.
    fn is_failure(self) -> bool {
        let others = [Self::ClassOfAttempt, Self::ClassOfCopy, Self::LosingAttemptIsDropped, Self::LosingCopyIsDropped];
        !others.contains(&self)
    }
}

/// Panics when it is dropped, unless another panic goes on.
struct Sore;

impl Drop for Sore {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            boom()
        }
    }
}

/// The operation's n-th run, from 0: the attempt and its copy. Somebody comes just before the panic.
async fn play(at: At, run: u32, comes: impl Fn()) -> Result<u32, Failure> {
    match (at, run) {
        (At::CopysFirstPoll, 1) => {
            comes();
            boom()
        }
        (At::CopysLaterPoll, 1) | (At::AttemptsLaterPoll, 0) | (At::LastCopysLaterPoll, 1) => {
            sleep(10 * MS).await;
            comes();
            boom()
        }
        (At::LastCopysLaterPoll, 0) => {
            sleep(6 * MS).await;
            Err(BROKEN)
        }
        (At::ClassOfAttempt, 0) | (At::ClassOfCopy, 1) => {
            sleep(10 * MS).await;
            comes();
            Err(BROKEN)
        }
        (At::LosingAttemptIsDropped, 0) | (At::LosingCopyIsDropped, 1) => {
            let _sore = Sore;
            hang().await
        }
        (At::LosingAttemptIsDropped, 1) | (At::LosingCopyIsDropped, 0) => {
            sleep(10 * MS).await;
            comes();
            Ok(1)
        }
        _ => hang().await,
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_panics_in_a_race_leaves_every_slot_to_the_next() {
    for (at, count_attempts) in At::ALL.into_iter().flat_map(|at| [(at, false), (at, true)]) {
        let ledger = Ledger::default();
        let pipeline = hedged(&ledger, count_attempts).build().unwrap().pipeline("p", ()).unwrap();
        let (begun, waiter) = (Cell::new(0), Waiter::default());
        let operation = || {
            let run = begun.replace(begun.get() + 1);
            if (at, run) == (At::CopyIsMade, 1) {
                waiter.comes(&pipeline);
                boom()
            }
            play(at, run, || waiter.comes(&pipeline))
        };
        let classifier = |result: &Result<u32, Failure>| match result {
            Err(_) if matches!(at, At::ClassOfAttempt | At::ClassOfCopy) => boom(),
            Err(error) => error.classify(),
            Ok(_) => Class::SUCCESS,
        };
        assert_eq!(caught(pipeline.call().classify(classifier).run(operation)).await, Err("boom"), "{at:?}");
        assert_eq!(begun.get(), 2, "{at:?}");
        let outcome = if at.is_failure() { Outcome::Failure } else { Outcome::Cancelled };
        assert_eq!(ledger.read().finished, [Some(outcome)], "{at:?}");
        waiter.must_be_served();
        assert_eq!(slots(&pipeline), (2, 0, 0), "{at:?}");
        assert!(ledger.read().held.is_empty(), "{at:?}");
        let view = pipeline.circuit().await.unwrap();
        assert_eq!((view.calls, view.failures), (1 + view.failures, u64::from(at.is_failure())), "{at:?}");
        assert_eq!(at_once(pipeline.run(ok)), Ok(1), "{at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_when_told_of_a_copy_stops_no_copy() {
    let (ledger, told) = (Ledger::default(), Arc::new(AtomicU32::new(0)));
    let count = told.clone();
    let fragile = move |event: &Event<'_>| {
        if matches!(event.kind, EventKind::Hedge { .. }) {
            count.fetch_add(1, Ordering::Relaxed);
            boom()
        }
    };
    let module = hedged(&ledger, true).observer(fragile).build().unwrap();
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
    assert_eq!(told.load(Ordering::Relaxed), 3, "after which it is told nothing more");
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_panics_around_a_slot_leaves_it_to_the_next() {
    for (place, when) in PLACES_AROUND.into_iter().flat_map(|place| [(place, When::Admit), (place, When::Settle)]) {
        let policy = Policy::named("p").bulkhead(BulkheadSpec::fixed(1).queue(1)).guard(Fragile::at(place, when));
        let pipeline = ResilienceModule::in_memory().policy(policy).build().unwrap().pipeline("p", ()).unwrap();
        let waiter = Waiter::default();
        let operation = || {
            waiter.comes(&pipeline);
            ok()
        };
        assert_eq!(caught(pipeline.run(operation)).await, Err("boom"), "{place} {when:?}");
        if when == When::Settle {
            waiter.must_be_served();
        }
        assert_eq!(slots(&pipeline), (1, 0, 0), "{place} {when:?}");
        assert_eq!(at_once(pipeline.run(ok)), Ok(1), "{place} {when:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_panics_when_asked_by_a_waiter_that_was_served_leaves_the_slot_to_the_next() {
    for place in [350, 450, 550] {
        // Armed by whoever comes second.
        let asked = Arc::new(AtomicU32::new(0));
        let policy = Policy::named("p").bulkhead(BulkheadSpec::fixed(1).queue(2)).guard(Second(place, asked.clone()));
        let pipeline = ResilienceModule::in_memory().policy(policy).build().unwrap().pipeline("p", ()).unwrap();
        let mut calls = [(); 3].map(|()| Box::pin(pipeline.run(hang)));
        calls.iter_mut().for_each(|call| assert!(poll_once(call.as_mut()).is_pending()));
        let [first, second, mut third] = calls;
        drop(first);
        assert_eq!(caught(second).await, Err("boom"), "{place}");
        assert!(poll_once(third.as_mut()).is_pending());
        assert_eq!((slots(&pipeline), asked.load(Ordering::Relaxed)), ((1, 1, 0), 3), "{place}");
        drop(third);
        assert_eq!(slots(&pipeline), (1, 0, 0), "{place}");
    }
}

/// Panics when it is asked for the second time.
struct Second(u16, Arc<AtomicU32>);

impl Guard for Second {
    fn name(&self) -> &str {
        "second"
    }

    fn order(&self) -> u16 {
        self.0
    }

    fn admit(&self, _: &CallInfo<'_>) -> Result<(), Rejection> {
        if self.1.fetch_add(1, Ordering::Relaxed) == 1 { boom() } else { Ok(()) }
    }
}

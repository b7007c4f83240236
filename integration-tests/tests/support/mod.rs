//! What the tests of whole calls share: an error with a kind, a ledger that observes and guards, polling by hand.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part; tests may unwrap

pub mod bulkhead_and_hedge;
pub mod panicking;
pub mod stages;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use phalanx::describe::{Outcome, Phase};
use phalanx::guard::{CallInfo, Guard};
use phalanx::store::MemoryStore;
use phalanx::*;

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
pub const HOUR: Duration = Duration::from_secs(3_600);

/// An error that is a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub Kind);

impl Classify for Failure {
    fn classify(&self) -> Class {
        Class::from(self.0)
    }
}

pub const BROKEN: Failure = Failure(Kind::Infrastructure);

pub async fn ok() -> Result<u32, Failure> {
    Ok(1)
}

pub async fn hang() -> Result<u32, Failure> {
    std::future::pending().await
}

/// Polls a future once.
pub fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Where a guard of each place stands: before the rate limit, the circuit, the retries, and around each attempt.
pub const PLACES: [u16; 4] = [150, 350, 450, 550];

/// Everything that observers and guards were told. Clones are the same ledger.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Entries>>);

#[derive(Clone, Debug, Default)]
pub struct Entries {
    /// The outcome of every call that is over.
    pub finished: Vec<Option<Outcome>>,
    /// Attempts that took too long.
    pub timeouts: usize,
    /// The guards that let a call or an attempt pass and have not been told its end, in the order they admitted.
    pub held: Vec<u16>,
    /// What guards were told, in that order.
    pub settled: Vec<(u16, Outcome)>,
    /// Settled without having admitted, or before a guard that admitted later.
    pub disorder: Vec<u16>,
}

impl Ledger {
    pub fn read(&self) -> Entries {
        self.0.lock().unwrap().clone()
    }

    /// A guard that writes down what it is told.
    pub fn guard(&self, order: u16) -> Watch {
        Watch { ledger: self.clone(), order }
    }

    fn settle(&self, order: u16, outcome: Outcome) {
        let mut entries = self.0.lock().unwrap();
        let place = entries.held.iter().rposition(|held| *held == order);
        if place.is_none_or(|place| place + 1 != entries.held.len()) {
            entries.disorder.push(order);
        }
        place.map(|place| entries.held.remove(place));
        entries.settled.push((order, outcome));
    }
}

impl Observer for Ledger {
    fn on_event(&self, event: &Event<'_>) {
        let mut entries = self.0.lock().unwrap();
        match event.kind {
            EventKind::Finished { outcome, .. } => entries.finished.push(outcome),
            EventKind::AttemptTimeout { .. } => entries.timeouts += 1,
            _ => {}
        }
    }
}

/// A guard that lets everybody pass and writes it down.
pub struct Watch {
    ledger: Ledger,
    order: u16,
}

impl Guard for Watch {
    fn name(&self) -> &str {
        "watch"
    }

    fn order(&self) -> u16 {
        self.order
    }

    fn admit(&self, _: &CallInfo<'_>) -> Result<(), Rejection> {
        self.ledger.0.lock().unwrap().held.push(self.order);
        Ok(())
    }

    fn settle(&self, _: &CallInfo<'_>, outcome: Outcome) {
        self.ledger.settle(self.order, outcome);
    }
}

/// Polls a call that is ready at once.
pub fn at_once<T>(call: impl Future<Output = T>) -> T {
    match poll_once(pin!(call)) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("it had to be ready"),
    }
}

/// The same bucket and circuit as policy `p` has on this store, in another module's hands.
fn elsewhere(store: &MemoryStore, policy: Policy) -> Pipeline {
    let module = ResilienceModule::in_store(store.clone()).policy(policy).build().unwrap();
    module.pipeline("p", ()).unwrap()
}

/// Somebody else takes so many permits from the bucket of policy `p`.
pub fn drain(store: &MemoryStore, spec: &RateLimitSpec, permits: u32) {
    let other = elsewhere(store, Policy::named("p").rate_limit(spec.clone()));
    assert_eq!(at_once(other.call().cost(permits).run(ok)), Ok(1));
}

/// Somebody else's failures open the circuit of policy `p`.
pub fn trip(store: &MemoryStore, spec: &BreakerSpec) {
    let other = elsewhere(store, Policy::named("p").breaker(spec.clone()));
    for _ in 0..spec.consecutive_failures.unwrap() {
        assert_eq!(at_once(other.run(|| async { Err::<u32, _>(BROKEN) })), Err(Error::Inner(BROKEN)));
    }
    assert_eq!(at_once(other.circuit()).unwrap().phase, Phase::Open);
}

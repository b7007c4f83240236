//! Shared parts of the tests of whole calls: an error with a kind, a ledger of events and guards, and manual polling.

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

/// An error with a kind.
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

/// Guard orders at every position: before the rate limit, the breaker, the retries, and around each attempt.
pub const GUARD_ORDERS: [u16; 4] = [150, 350, 450, 550];

/// Records the events of observers and the calls of guards. Clones share the ledger.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Entries>>);

#[derive(Clone, Debug, Default)]
pub struct Entries {
    /// The outcome of every finished call.
    pub finished: Vec<Option<Outcome>>,
    /// Attempts that timed out.
    pub timeouts: usize,
    /// Guards that admitted a call or an attempt and have not settled it, in the order of admission.
    pub held: Vec<u16>,
    /// Settled guards with their outcomes, in order.
    pub settled: Vec<(u16, Outcome)>,
    /// Guards that settled without having admitted, or before a guard that admitted later.
    pub disorder: Vec<u16>,
}

impl Ledger {
    pub fn read(&self) -> Entries {
        self.0.lock().unwrap().clone()
    }

    /// Returns a guard that records its calls here.
    pub fn guard(&self, order: u16) -> RecordingGuard {
        RecordingGuard { ledger: self.clone(), order }
    }

    fn settle(&self, order: u16, outcome: Outcome) {
        let mut entries = self.0.lock().unwrap();
        let index = entries.held.iter().rposition(|held| *held == order);
        if index.is_none_or(|index| index + 1 != entries.held.len()) {
            entries.disorder.push(order);
        }
        index.map(|index| entries.held.remove(index));
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

/// A guard that admits every call and records it.
pub struct RecordingGuard {
    ledger: Ledger,
    order: u16,
}

impl Guard for RecordingGuard {
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

/// Polls a future that is ready at the first poll and returns its output.
pub fn at_once<T>(call: impl Future<Output = T>) -> T {
    match poll_once(pin!(call)) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("not ready at the first poll"),
    }
}

/// Returns a pipeline of another module with the same bucket and breaker as policy `p` on this store.
fn other_module(store: &MemoryStore, policy: Policy) -> Pipeline {
    let module = ResilienceModule::in_store(store.clone()).policy(policy).build().unwrap();
    module.pipeline("p", ()).unwrap()
}

/// Takes permits from the bucket of policy `p` through another module.
pub fn drain(store: &MemoryStore, spec: &RateLimitSpec, permits: u32) {
    let other = other_module(store, Policy::named("p").rate_limit(spec.clone()));
    assert_eq!(at_once(other.call().cost(permits).run(ok)), Ok(1));
}

/// Opens the circuit of policy `p` by failures of another module.
pub fn trip(store: &MemoryStore, spec: &BreakerSpec) {
    let other = other_module(store, Policy::named("p").breaker(spec.clone()));
    for _ in 0..spec.consecutive_failures.unwrap() {
        assert_eq!(at_once(other.run(|| async { Err::<u32, _>(BROKEN) })), Err(Error::Inner(BROKEN)));
    }
    assert_eq!(at_once(other.circuit()).unwrap().phase, Phase::Open);
}

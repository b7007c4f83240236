//! What a store's circuit breakers do, for any bed. The cases are in the files below, by method; the rig is here.

#![allow(missing_docs)] // a case's name says what it checks

mod admitting;
mod finding;
mod operating;
mod recording;
mod tripping;

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, BreakerView, Override, Phase, Sample, Seen, Ticket, Transition};
use phalanx_core::key::StateKey;
use phalanx_core::kind::Outcome;
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::store::{BreakerStore, Store};

pub use self::admitting::*;
pub use self::finding::*;
pub use self::operating::*;
pub use self::recording::*;
pub use self::tripping::*;
use super::{MICRO, SECOND, advance_to_edge, keys_that_look_alike};
use crate::answer::{Rejection, answered, passed};
use crate::bed::Bed;

const BREAK: Duration = Duration::from_secs(30);
const WINDOW: Duration = Duration::from_secs(10);
const QUICK: Duration = Duration::from_millis(1);

/// The epochs of a new circuit's first way through its phases.
const FIRST_CLOSED: u64 = 1;
const FIRST_OPEN: u64 = 2;
const FIRST_HALF_OPEN: u64 = 3;
const SECOND_CLOSED: u64 = 4;

const fn circuit_open(retry_after: Duration) -> Rejection {
    (RejectionCode::CircuitOpen, Some(retry_after))
}

const NO_PLACE: Rejection = (RejectionCode::ProbeQuota, None);

/// Trips when half of ten calls or more failed.
fn ratio() -> BreakerSpec {
    BreakerSpec::failure_ratio(0.5).window(WINDOW).min_throughput(10).break_for(BREAK)
}

/// Trips on the first failure: for cases about what comes after.
fn brittle() -> BreakerSpec {
    BreakerSpec::consecutive_failures(1).window(WINDOW).break_for(BREAK)
}

/// A circuit that has seen nothing.
const FRESH: BreakerView = BreakerView {
    phase: Phase::Closed,
    overridden: None,
    epoch: FIRST_CLOSED,
    calls: 0,
    failures: 0,
    slow: 0,
    streak: 0,
    probes: 0,
    break_left: None,
    ramping: false,
};

/// What a change had seen is the look's business, not the cases' of changes.
const NOTHING: Seen = Seen { calls: 0, failures: 0, slow: 0 };

fn without_seen(change: Option<Transition>) -> Option<Transition> {
    change.map(|change| Transition { seen: NOTHING, ..change })
}

const fn change(from: Phase, to: Phase, epoch: u64) -> Option<Transition> {
    Some(Transition { from, to, epoch, break_for: None, seen: NOTHING })
}

const fn opening(from: Phase, epoch: u64, break_for: Duration) -> Option<Transition> {
    Some(Transition { from, to: Phase::Open, epoch, break_for: Some(break_for), seen: NOTHING })
}

/// The opening of a circuit that was never open before.
const TRIPPED: Option<Transition> = opening(Phase::Closed, FIRST_OPEN, BREAK);

/// One circuit, as two replicas hold it.
struct Fleet<B: Bed> {
    bed: B,
    key: StateKey,
    one: Replica<B>,
    two: Replica<B>,
}

/// What an ask came to: whether the call may pass, what asking changed, and whose word it was.
#[derive(Debug)]
struct Asked {
    passed: Result<Ticket, Rejection>,
    transition: Option<Transition>,
    source: Source,
}

struct Replica<B: Bed> {
    store: B::Store,
    circuit: Arc<<B::Store as BreakerStore>::Breaker>,
}

impl<B: Bed> Fleet<B> {
    async fn new(spec: &BreakerSpec) -> Self {
        let bed = B::new().await;
        let key = StateKey::new("payments", "eu");
        let (one, two) = (Replica::new(&bed, &key, spec), Replica::new(&bed, &key, spec));
        bed.settle().await;
        Self { bed, key, one, two }
    }

    /// A fleet whose circuit tripped just now.
    async fn tripped(spec: &BreakerSpec) -> Self {
        let fleet = Self::new(spec).await;
        fleet.call(&fleet.one, Outcome::Failure, TRIPPED).await;
        fleet
    }

    /// A fleet whose break is over, and the ticket of the first probe, which `one` holds.
    async fn probing(spec: &BreakerSpec) -> (Self, Ticket) {
        let fleet = Self::tripped(spec).await;
        fleet.bed.advance(BREAK).await;
        let probe = fleet.one.admitted().await;
        fleet.bed.settle().await;
        (fleet, probe)
    }

    async fn advance(&self, by: Duration) {
        self.bed.advance(by).await;
    }

    /// A call ends: `expected` is the change of phase that must come of it.
    async fn end(&self, by: &Replica<B>, ticket: Ticket, outcome: Outcome, expected: Option<Transition>) {
        self.end_after(by, ticket, outcome, QUICK, expected).await;
    }

    async fn end_after(
        &self,
        by: &Replica<B>,
        ticket: Ticket,
        outcome: Outcome,
        latency: Duration,
        expected: Option<Transition>,
    ) {
        let sample = Sample { outcome, latency };
        let told = by.store.record(&by.circuit, by.store.clock().now(), ticket, sample);
        self.came_of_it(told, expected).await;
    }

    /// The latency's quantile is told: `expected` is the change of phase that must come of it.
    async fn quantile(&self, by: &Replica<B>, value: Option<Duration>, expected: Option<Transition>) {
        let told = by.store.observe_quantile(&by.circuit, by.store.clock().now(), value);
        self.came_of_it(told, expected).await;
    }

    /// What was told must be right, and what was not told must have happened all the same.
    async fn came_of_it(&self, told: Option<Transition>, expected: Option<Transition>) {
        if B::TELLS_AT_ONCE || told.is_some() {
            assert_eq!(without_seen(told), expected);
        }
        self.bed.settle().await;
        if let Some(transition) = expected {
            self.stands(transition.to, transition.epoch).await;
            assert_eq!(self.two.view().await.break_left, transition.break_for);
        }
    }

    /// A whole call, admitted outside a trial.
    async fn call(&self, by: &Replica<B>, outcome: Outcome, expected: Option<Transition>) {
        let ticket = by.admitted().await;
        self.end(by, ticket, outcome, expected).await;
    }

    /// So many calls, by the replicas in turn, of which nothing comes.
    async fn calls(&self, count: usize, outcome: Outcome) {
        for replica in [&self.one, &self.two].into_iter().cycle().take(count) {
            self.call(replica, outcome, None).await;
        }
    }

    async fn force(&self, by: &Replica<B>, overridden: Option<Override>) {
        by.store.force(&by.circuit, overridden).await;
        self.bed.settle().await;
    }

    async fn reset(&self, by: &Replica<B>) -> Option<Transition> {
        let transition = by.store.reset(&by.circuit, by.store.clock().now()).await;
        self.bed.settle().await;
        without_seen(transition)
    }

    /// Both replicas hear of another spec; the circuits they hold stay the ones they resolved at first.
    async fn retune(&self, spec: &BreakerSpec) {
        self.one.store.breaker(&self.key, spec);
        self.two.store.breaker(&self.key, spec);
        self.bed.settle().await;
    }

    /// Demands that both replicas see the circuit there.
    async fn stands(&self, phase: Phase, epoch: u64) {
        for replica in [&self.one, &self.two] {
            let view = replica.view().await;
            assert_eq!((view.phase, view.epoch), (phase, epoch));
        }
    }

    /// Demands that both replicas see exactly this.
    async fn shows(&self, view: BreakerView) {
        assert_eq!(self.one.view().await, view);
        assert_eq!(self.two.view().await, view);
    }
}

impl<B: Bed> Replica<B> {
    fn new(bed: &B, key: &StateKey, spec: &BreakerSpec) -> Self {
        let store = bed.store();
        Self { circuit: store.breaker(key, spec), store }
    }

    async fn ask(&self) -> Asked {
        let now = self.store.clock().now();
        let (answer, transition) = answered(&self.store, &self.circuit, now).await;
        let known = [B::SOURCE, Source::Override, Source::Shadow];
        assert!(known.contains(&answer.source), "the store under test must answer itself: {answer:?}");
        Asked { passed: passed(answer.admission, now), transition, source: answer.source }
    }

    async fn admit(&self) -> Result<Ticket, Rejection> {
        self.ask().await.passed
    }

    async fn admitted(&self) -> Ticket {
        self.admit().await.expect("admitted")
    }

    async fn view(&self) -> BreakerView {
        self.store.inspect(&self.circuit, self.store.clock().now()).await
    }
}

//! Conformance cases of `BreakerStore`. The cases are in the submodules, by method; this file holds their fixture.

#![allow(missing_docs)] // the name of a case describes it

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
use crate::bed::Bed;
use crate::replies::{Rejection, admit_call, admit_result};

const BREAK: Duration = Duration::from_secs(30);
const WINDOW: Duration = Duration::from_secs(10);
const QUICK: Duration = Duration::from_millis(1);

/// The epochs of a new breaker on its first pass through the phases.
const FIRST_CLOSED: u64 = 1;
const FIRST_OPEN: u64 = 2;
const FIRST_HALF_OPEN: u64 = 3;
const SECOND_CLOSED: u64 = 4;

const fn circuit_open(retry_after: Duration) -> Rejection {
    (RejectionCode::CircuitOpen, Some(retry_after))
}

const PROBE_QUOTA: Rejection = (RejectionCode::ProbeQuota, None);

/// Trips when at least half of at least ten calls failed.
fn ratio() -> BreakerSpec {
    BreakerSpec::failure_ratio(0.5).window(WINDOW).min_throughput(10).break_for(BREAK)
}

/// Trips on the first failure, for cases about what happens after a trip.
fn brittle() -> BreakerSpec {
    BreakerSpec::consecutive_failures(1).window(WINDOW).break_for(BREAK)
}

/// The view of a breaker without any calls.
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

/// Transitions are compared without their counts; `inspect` has cases of its own for them.
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

/// The first trip of a breaker.
const TRIPPED: Option<Transition> = opening(Phase::Closed, FIRST_OPEN, BREAK);

/// One breaker, shared by two replicas.
struct Fleet<B: Bed> {
    bed: B,
    key: StateKey,
    one: Replica<B>,
    two: Replica<B>,
}

/// The result of asking for admission.
#[derive(Debug)]
struct Asked {
    admitted: Result<Ticket, Rejection>,
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
        bed.sync_all().await;
        Self { bed, key, one, two }
    }

    /// Returns a fleet whose breaker has just tripped.
    async fn tripped(spec: &BreakerSpec) -> Self {
        let fleet = Self::new(spec).await;
        fleet.call(&fleet.one, Outcome::Failure, TRIPPED).await;
        fleet
    }

    /// Returns a fleet whose break is over, and the ticket of the first probe, held by `one`.
    async fn probing(spec: &BreakerSpec) -> (Self, Ticket) {
        let fleet = Self::tripped(spec).await;
        fleet.bed.advance(BREAK).await;
        let probe = fleet.one.admitted().await;
        fleet.bed.sync_all().await;
        (fleet, probe)
    }

    async fn advance(&self, by: Duration) {
        self.bed.advance(by).await;
    }

    /// Records the end of a call and asserts the transition it causes.
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
        let returned = by.store.record(&by.circuit, by.store.clock().now(), ticket, sample);
        self.assert_transition(returned, expected).await;
    }

    /// Passes a latency quantile to the breaker and asserts the transition it causes.
    async fn quantile(&self, by: &Replica<B>, value: Option<Duration>, expected: Option<Transition>) {
        let returned = by.store.observe_quantile(&by.circuit, by.store.clock().now(), value);
        self.assert_transition(returned, expected).await;
    }

    /// Asserts that the returned transition is correct, and that the transition took place even if it was not returned.
    async fn assert_transition(&self, returned: Option<Transition>, expected: Option<Transition>) {
        if B::IMMEDIATE_TRANSITIONS || returned.is_some() {
            assert_eq!(without_seen(returned), expected);
        }
        self.bed.sync_all().await;
        if let Some(transition) = expected {
            self.assert_phase(transition.to, transition.epoch).await;
            assert_eq!(self.two.view().await.break_left, transition.break_for);
        }
    }

    /// Runs a whole call: admission, then its end.
    async fn call(&self, by: &Replica<B>, outcome: Outcome, expected: Option<Transition>) {
        let ticket = by.admitted().await;
        self.end(by, ticket, outcome, expected).await;
    }

    /// Runs `count` calls, alternating between the replicas, none of which causes a transition.
    async fn calls(&self, count: usize, outcome: Outcome) {
        for replica in [&self.one, &self.two].into_iter().cycle().take(count) {
            self.call(replica, outcome, None).await;
        }
    }

    async fn force(&self, by: &Replica<B>, overridden: Option<Override>) {
        by.store.force(&by.circuit, overridden).await;
        self.bed.sync_all().await;
    }

    async fn reset(&self, by: &Replica<B>) -> Option<Transition> {
        let transition = by.store.reset(&by.circuit, by.store.clock().now()).await;
        self.bed.sync_all().await;
        without_seen(transition)
    }

    /// Changes the spec on both replicas; they keep the handles they resolved first.
    async fn retune(&self, spec: &BreakerSpec) {
        self.one.store.breaker(&self.key, spec);
        self.two.store.breaker(&self.key, spec);
        self.bed.sync_all().await;
    }

    /// Asserts phase and epoch on both replicas.
    async fn assert_phase(&self, phase: Phase, epoch: u64) {
        for replica in [&self.one, &self.two] {
            let view = replica.view().await;
            assert_eq!((view.phase, view.epoch), (phase, epoch));
        }
    }

    /// Asserts the whole view on both replicas.
    async fn assert_view(&self, view: BreakerView) {
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
        let (answer, transition) = admit_call(&self.store, &self.circuit, now).await;
        let allowed = [B::SOURCE, Source::Forced, Source::Shadow];
        assert!(allowed.contains(&answer.source), "not decided by the store under test: {answer:?}");
        Asked { admitted: admit_result(answer.admission, now), transition, source: answer.source }
    }

    async fn admit(&self) -> Result<Ticket, Rejection> {
        self.ask().await.admitted
    }

    async fn admitted(&self) -> Ticket {
        self.admit().await.expect("admitted")
    }

    async fn view(&self) -> BreakerView {
        self.store.inspect(&self.circuit, self.store.clock().now()).await
    }
}

//! A circuit of the fleet: admitted and counted here, decided there.
//!
//! What was last heard of it stands at the front, so that closed and open circuits answer from one atomic word, and
//! successes are summed per thread. Bad news is told at once, good news every `sync_interval`; probes, ramps and
//! break ends ask Redis, all callers of a moment in one round trip. Every reply, and every message that another replica's
//! change pushes here, says how the circuit stands ([`Shared::learn`]).
//!
//! While Redis is away the twin decides: a circuit of this process that goes on from the phase last heard of. Its
//! tickets are marked, so that they count for nothing once Redis decides again; if it is open then, it stays so for
//! this replica until its own break is over.

mod answering;
mod learning;
mod operator;
mod owed;
mod telling;
mod twin;
pub(crate) mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use phalanx_core::breaker::{Admission, BreakerSpec, Override, Phase, Sample, Ticket, Transition};
use phalanx_core::breaker::{FastPath, Recorded};
use phalanx_core::clock::Time;
use phalanx_core::key::StateKey;
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::store::AdmitReply;
use phalanx_core::table::{Entry, Retention};
use phalanx_store_memory::BreakerCell;

pub(crate) use self::learning::Word;
use self::owed::{Owed, Run, Settled};
use self::twin::is_twins;
use self::view::{View, spec_text};
use crate::batch::{Asking, Batch, Batches, Desk, Seat, Void};
use crate::fleet::Fleet;
use crate::keys::{Key, Kind};
use crate::lane::Solo;

/// The circuit of one key, as this replica holds it.
#[derive(Clone, Debug)]
pub struct Circuit(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    fleet: Arc<Fleet>,
    key: StateKey,
    place: Key,
    /// Its name and this replica's: what messages are signed with.
    signed: String,
    front: FastPath,
    /// Whether anybody has asked since Redis was last asked how it stands.
    used: AtomicBool,
    queued: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    spec: BreakerSpec,
    spec_text: String,
    /// How it stood when it was last heard of; none before.
    known: Option<Known>,
    owed: Owed,
    /// Callers who wait for Redis' word.
    batches: Batches<Wish, Option<Given>>,
    /// Calls under way; one flight at a time, so that replies come in order.
    flying: u32,
    /// The twin, and the outage it was made in.
    twin: Option<(u64, Arc<BreakerCell>)>,
    /// Until when this replica rejects by itself, after an outage in which its twin tripped.
    held_open: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    view: View,
    /// When the break is over, on this replica's clock.
    until: Time,
}

type Together = Batch<Wish, Option<Given>>;

/// A call wants to pass; or the one who wanted it went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Pass,
    Gone,
}

impl Void for Wish {
    const VOID: Self = Self::Gone;
}

/// Redis' word, and the change of phase that asking brought about.
pub(crate) type Given = (AdmitReply, Option<Transition>);

impl Entry for Circuit {
    /// Redis keeps it; only what is on its way would be lost, and what a twin holds.
    fn retention(&self) -> Retention {
        let inner = self.0.inner.lock();
        if inner.twin.is_some() || inner.held_open.is_some() || inner.owed.word.is_some() {
            return Retention::Pinned;
        }
        if inner.owed.is_nothing() && inner.flying == 0 { Retention::Disposable } else { Retention::Relearnable }
    }
}

impl Circuit {
    pub(crate) fn new(fleet: Arc<Fleet>, key: &StateKey, spec: &BreakerSpec) -> Self {
        let inner = Inner {
            spec: spec.clone(),
            spec_text: spec_text(spec),
            known: None,
            owed: Owed::default(),
            batches: Batches::default(),
            flying: 0,
            twin: None,
            held_open: None,
        };
        let place = fleet.keys.of(Kind::Circuit, key);
        let shared = Arc::new(Shared {
            signed: format!("{}@{}", place.id, fleet.owner),
            place,
            key: key.clone(),
            front: FastPath::new(spec),
            used: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            inner: Mutex::new(inner),
            fleet,
        });
        Self(shared)
    }

    /// The name by which pushed messages call it.
    pub(crate) fn id(&self) -> &str {
        &self.0.place.id
    }

    pub(crate) fn retune(&self, spec: &BreakerSpec) {
        let now = self.0.fleet.clock.now();
        {
            let mut inner = self.0.inner.lock();
            if inner.spec == *spec {
                return;
            }
            self.0.gather(&mut inner, now);
            inner.spec = spec.clone();
            inner.spec_text = spec_text(spec);
            if let Some((_, twin)) = &inner.twin {
                twin.retune(spec);
            }
            // Another spec may change the state itself (a window of another length forgets): Redis must hear of it.
            inner.owed.poll = true;
            self.0.front.retune(spec);
        }
        self.0.call_out();
    }

    /// The answer that needs no round trip: of a closed or an open circuit, and of any while Redis is away.
    #[inline]
    pub fn admit_now(&self, now: Time) -> Option<AdmitReply> {
        let shared = &*self.0;
        if !shared.used.load(Ordering::Relaxed) {
            shared.first_use();
        }
        match shared.front.admit(now) {
            Some(admission) => Some(AdmitReply { admission, source: Source::Fleet }),
            None => shared.admit_by_hearsay(now),
        }
    }

    /// Asks Redis, in one round trip with everybody who asks meanwhile.
    pub async fn admit(&self, now: Time) -> (AdmitReply, Option<Transition>) {
        self.0.fleet.keep();
        match Asking::new(&self.0, Wish::Pass).await.flatten() {
            Some(given) => given,
            None => self.0.admit_alone(now),
        }
    }

    /// Counts what became of an admitted call; Redis hears of it behind the caller.
    #[inline]
    pub fn record(&self, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        match self.0.front.record(now, ticket, sample) {
            Recorded::Done => None,
            Recorded::Flushed(successes) => {
                let mut inner = self.0.inner.lock();
                self.0.note_successes(&mut inner, successes);
                None
            }
            Recorded::Forward => self.0.record_elsewhere(now, ticket, sample),
        }
    }

    /// What was last heard of it, or how the twin stands while Redis is away. Nobody is asked.
    pub fn glance(&self) -> (Phase, Option<Override>) {
        let inner = self.0.inner.lock();
        let known = inner.known.map_or((Phase::Closed, None), |known| (known.view.phase, known.view.overridden));
        let (phase, overridden) = match &inner.twin {
            Some((_, twin)) if self.0.is_away() => twin.glance(),
            _ => known,
        };
        let held_open = inner.held_open.is_some_and(|until| self.0.fleet.clock.now() < until);
        (if held_open { Phase::Open } else { phase }, overridden)
    }

    /// Tells the latency's quantile.
    pub fn observe_quantile(&self, now: Time, value: Option<Duration>) -> Option<Transition> {
        let shared = &self.0;
        let mut inner = shared.inner.lock();
        let trip = inner.spec.latency_trip()?;
        if shared.is_away() {
            let twin = shared.twin(&mut inner, now);
            drop(inner);
            return twin.observe_quantile(now, value);
        }
        let over = value.is_some_and(|value| value > trip.threshold);
        inner.owed.runs.push(Run::quantile(over));
        None
    }
}

impl Shared {
    #[cold]
    fn first_use(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_away(&self) -> bool {
        self.fleet.lane(self.place.slot).latch.is_down()
    }

    /// What can be said from what was last heard, where the front says nothing: an operator's word, and everything
    /// while Redis is away.
    #[cold]
    fn admit_by_hearsay(&self, now: Time) -> Option<AdmitReply> {
        if self.is_away() {
            let (answer, change) = self.admit_alone(now);
            if let Some(change) = change {
                self.emit(change);
            }
            return Some(answer);
        }
        let known = self.inner.lock().known?;
        let (view, passes) = (known.view, Admission::Admitted(Ticket { epoch: known.view.epoch, lease: None }));
        let shadow = match view.phase {
            Phase::Closed => !view.ramping,
            Phase::Open => now < known.until,
            Phase::HalfOpen => false,
        };
        match view.overridden? {
            Override::Open => {
                let rejected = Admission::Rejected { code: RejectionCode::ForcedOpen, until: Time::NEVER };
                Some(AdmitReply { admission: rejected, source: Source::Override })
            }
            Override::Closed | Override::Disabled => Some(AdmitReply { admission: passes, source: Source::Override }),
            Override::MetricsOnly => shadow.then_some(AdmitReply { admission: passes, source: Source::Shadow }),
        }
    }

    /// What the front cannot count: bad news, probes, calls of another time.
    #[cold]
    fn record_elsewhere(self: &Arc<Self>, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        let mut inner = self.inner.lock();
        if is_twins(ticket) || self.is_away() {
            return self.record_by_twin(inner, now, ticket, sample);
        }
        if inner.known.is_some_and(|known| ticket.epoch < known.view.epoch) {
            return None; // of an earlier epoch: it changes nothing
        }
        let slow = inner.spec.is_slow(sample.latency);
        let urgent = match ticket.lease {
            Some(lease) => {
                inner.owed.settled.push(Settled::new(ticket.epoch, lease, sample.outcome, slow));
                true
            }
            None => {
                self.gather(&mut inner, now);
                let run = Run::outcome(ticket.epoch, sample.outcome, slow, self.front.slice_of(now));
                run.is_some_and(|run| inner.owed.runs.push(run))
            }
        };
        drop(inner);
        if urgent {
            self.call_out();
        }
        None
    }
}

impl Desk for Shared {
    type Ask = Wish;
    type Answer = Option<Given>;

    fn sit(self: &Arc<Self>, ask: Wish, waker: &Waker) -> (Seat<Self>, Option<Solo>) {
        let seat = self.inner.lock().batches.join(ask, waker);
        self.call_out();
        (seat, None)
    }

    /// A probe that nobody makes frees its place.
    fn give_back(self: &Arc<Self>, answer: Option<Given>) {
        let Some((answer, change)) = answer else { return };
        if let Some(change) = change {
            self.emit(change);
        }
        if let Admission::Admitted(Ticket { epoch, lease: Some(lease) }) = answer.admission {
            self.inner.lock().owed.settled.push(Settled::unused(epoch, lease));
            self.call_out();
        }
    }
}

/// The lock of a circuit, held while something is read out of it.
type Held<'a> = MutexGuard<'a, Inner>;

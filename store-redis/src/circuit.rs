//! A circuit of the fleet: admitted and counted here, decided there.
//!
//! What was last heard of it stands at the front, so that closed and open circuits answer from one atomic word, and
//! successes are summed per thread. Bad news is told at once, good news every `sync_interval`; trial calls, ramps and
//! break ends ask Redis, all callers of a moment in one round trip. Every reply, and every message that another replica's
//! change pushes here, says how the circuit stands ([`Shared::learn`]).
//!
//! While Redis is away the twin decides: a circuit of this process that goes on from the phase last heard of. Its
//! tickets are marked, so that they count for nothing once Redis decides again; if it is open then, it stays so for
//! this replica until its own break is over.

mod telling;
mod twin;
pub(crate) mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use phalanx_core::breaker::{Admission, BreakerSpec, BreakerView, Forced, Phase, Sample, Seen, Ticket, Transition};
use phalanx_core::clock::Time;
use phalanx_core::event::What;
use phalanx_core::key::StateKey;
use phalanx_core::rate_limit::MAX_BACKSTEP;
use phalanx_core::rejection::{Code, Source};
use phalanx_core::store::Answer;
use phalanx_core::table::{Entry, Worth};
use phalanx_lua as lua;
use phalanx_store_memory::{BreakerCell, Counted, Front, Shown};

use self::telling::{Owed, Run, Settled};
use self::twin::is_twins;
use self::view::{Report, View, forced_number, spec_text};
use crate::batch::{Asking, Batch, Desk, Void};
use crate::fleet::Fleet;
use crate::invocation::{Invocation, integers};
use crate::keys::{Key, Kind};

/// The circuit of one key, as this replica holds it.
#[derive(Clone, Debug)]
pub struct Circuit(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    fleet: Arc<Fleet>,
    key: StateKey,
    place: Key,
    front: Front,
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
    /// Callers who wait for Redis' word; only the last batch can be joined.
    batches: Vec<Arc<Together>>,
    /// Calls under way; one flight at a time, so that replies come in order.
    flying: u32,
    /// The twin, and the outage it was made in.
    twin: Option<(u64, Arc<BreakerCell>)>,
    /// Until when this replica refuses by itself, after an outage in which its twin tripped.
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
pub(crate) type Given = (Answer, Option<Transition>);

impl Entry for Circuit {
    /// Redis keeps it; only what is on its way would be lost, and what a twin holds.
    fn worth(&self) -> Worth {
        let inner = self.0.inner.lock();
        if inner.twin.is_some() || inner.held_open.is_some() || inner.owed.word.is_some() {
            return Worth::Everything;
        }
        if inner.owed.is_nothing() && inner.flying == 0 { Worth::Nothing } else { Worth::Something }
    }
}

impl Circuit {
    pub(crate) fn new(fleet: Arc<Fleet>, key: &StateKey, spec: &BreakerSpec) -> Self {
        let inner = Inner {
            spec: spec.clone(),
            spec_text: spec_text(spec),
            known: None,
            owed: Owed::default(),
            batches: Vec::new(),
            flying: 0,
            twin: None,
            held_open: None,
        };
        let shared = Arc::new(Shared {
            place: fleet.keys.of(Kind::Circuit, key),
            key: key.clone(),
            front: Front::new(spec),
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
            self.0.front.tune(spec);
        }
        self.0.call_out();
    }

    /// The answer that needs no round trip: of a closed or an open circuit, and of any while Redis is away.
    #[inline]
    pub fn admit_now(&self, now: Time) -> Option<Answer> {
        let shared = &*self.0;
        if !shared.used.load(Ordering::Relaxed) {
            shared.first_use();
        }
        match shared.front.admit(now) {
            Some(admission) => Some(Answer { admission, source: Source::Fleet }),
            None => shared.admit_by_hearsay(now),
        }
    }

    /// Asks Redis, in one round trip with everybody who asks meanwhile.
    pub async fn admit(&self, now: Time) -> (Answer, Option<Transition>) {
        self.0.fleet.keep();
        match Asking::new(&self.0, Wish::Pass).await.flatten() {
            Some(given) => given,
            None => self.0.admit_by_twin(now),
        }
    }

    /// Counts what became of an admitted call; Redis hears of it behind the caller.
    #[inline]
    pub fn record(&self, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        match self.0.front.record(now, ticket, sample) {
            Counted::Here => None,
            Counted::HandedOver(successes) => {
                let mut inner = self.0.inner.lock();
                self.0.note_successes(&mut inner, successes);
                None
            }
            Counted::NotHere => self.0.record_elsewhere(now, ticket, sample),
        }
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

    /// Puts an operator's word above the phase of the whole fleet's circuit, or takes it away.
    pub async fn force(&self, forced: Option<Forced>) {
        let call = self.0.operation(&lua::BREAKER_FORCE, |call| {
            call.arg(forced_number(forced));
        });
        if self.0.operate(call, Word::Reply).await.is_none() {
            self.0.force_alone(forced);
        }
    }

    /// Back to a closed circuit that has seen nothing.
    pub async fn reset(&self, now: Time) -> Option<Transition> {
        let call = self.0.operation(&lua::BREAKER_RESET, |_| {});
        self.0.inner.lock().held_open = None;
        let Some(report) = self.0.operate(call, Word::Told).await else { return self.0.reset_alone(now) };
        report.transitions.last().copied()
    }

    /// What can be seen from outside.
    pub async fn inspect(&self, now: Time) -> BreakerView {
        let call = self.0.operation(&lua::BREAKER_INSPECT, |_| {});
        let report = self.0.operate(call, Word::Reply).await;
        report.as_ref().and_then(looked_at).unwrap_or_else(|| self.0.inspect_alone(now))
    }
}

/// Who says how a circuit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Redis, asked by us: the truth of that moment.
    Reply,
    /// The same, and the caller tells observers of the change.
    Told,
    /// Redis, unasked: may have been overtaken by a reply.
    Push,
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
    fn admit_by_hearsay(&self, now: Time) -> Option<Answer> {
        if self.is_away() {
            let (answer, change) = self.admit_by_twin(now);
            if let Some(change) = change {
                self.tell(change);
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
        match view.forced? {
            Forced::Open => {
                let refused = Admission::Refused { code: Code::ForcedOpen, until: Time::NEVER };
                Some(Answer { admission: refused, source: Source::Forced })
            }
            Forced::Closed | Forced::Disabled => Some(Answer { admission: passes, source: Source::Forced }),
            Forced::MetricsOnly => shadow.then_some(Answer { admission: passes, source: Source::Shadow }),
        }
    }

    /// What the front cannot count: bad news, trial calls, calls of another time.
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

    /// Takes what a reply or a message says for the truth, unless something newer is known, and tells observers of a
    /// change of phase that they have not heard of.
    pub(crate) fn learn(&self, view: View, changes: &[Transition], word: Word) {
        let now = self.fleet.clock.now();
        let mut inner = self.inner.lock();
        let before = inner.known.map(|known| known.view);
        // A message may have been overtaken by a reply, and a reply by a message. Where the server's clock stepped back,
        // a reply is the truth all the same.
        let overtaken = before.is_some_and(|known| {
            let behind = known.at.saturating_sub(view.at);
            let stepped_back = behind > MAX_BACKSTEP.as_micros() as u64 && word != Word::Push;
            behind > 0 && !stepped_back || word == Word::Push && view.epoch < known.epoch
        });
        if overtaken {
            return;
        }
        inner.known = Some(Known { view, until: now.after(view.left) });
        self.show(&mut inner, now);
        drop(inner);
        let heard_of = before.map_or(0, |known| known.epoch);
        for change in changes.iter().filter(|change| change.epoch > heard_of) {
            self.tell(*change);
        }
        let told = changes.iter().any(|change| change.epoch == view.epoch);
        // Another replica's change whose message was lost: what is not known of it is left out.
        if let Some(before) = before
            && view.epoch > before.epoch
            && view.phase != before.phase
            && !told
            && word == Word::Reply
        {
            let break_for = (view.phase == Phase::Open).then_some(view.left);
            let (from, to) = (before.phase, view.phase);
            self.tell(Transition { from, to, epoch: view.epoch, break_for, seen: Seen::default() });
        }
    }

    /// What the front shows: what was last heard, unless the twin decides or this replica holds the circuit open.
    fn show(&self, inner: &mut Inner, now: Time) {
        inner.held_open = inner.held_open.filter(|until| now < *until);
        let Some(known) = &inner.known else {
            return self.front.show(0, inner.held_open.map_or(Shown::Ask, Shown::Open));
        };
        let shown = match (known.view.forced, known.view.phase) {
            _ if self.is_away() => Shown::Ask,
            (None, _) if inner.held_open.is_some() => Shown::Open(inner.held_open.unwrap_or(now)),
            (None, Phase::Closed) if !known.view.ramping => Shown::Closed,
            (None, Phase::Open) => Shown::Open(known.until),
            _ => Shown::Ask,
        };
        self.front.show(known.view.epoch, shown);
    }

    fn tell(&self, change: Transition) {
        self.fleet.observers.tell(&self.key, What::Transition(change));
    }

    /// An operator's call, asked alone.
    fn operation(&self, script: &'static lua::Script, args: impl FnOnce(&mut Invocation)) -> Invocation {
        let mut call = self.fleet.call(script, &[&self.place]);
        let inner = self.inner.lock();
        self.put_common(&mut call, &inner);
        drop(inner);
        args(&mut call);
        call
    }

    async fn operate(self: &Arc<Self>, call: Invocation, word: Word) -> Option<Report> {
        self.fleet.keep();
        let reply = self.fleet.lane(self.place.slot).ask(call).await.ok()?;
        let report = Report::read(&integers(&reply))?;
        self.learn(report.view, &[], word);
        Some(report)
    }
}

impl Desk for Shared {
    type Ask = Wish;
    type Answer = Option<Given>;

    fn sit(self: &Arc<Self>, ask: Wish, waker: &Waker) -> (Arc<Together>, usize) {
        let seat = {
            let mut inner = self.inner.lock();
            let joined = inner.batches.last().and_then(|batch| Some((batch.clone(), batch.join(ask, waker)?)));
            joined.unwrap_or_else(|| {
                let batch = Arc::new(Batch::new());
                let place = batch.join(ask, waker).unwrap_or(0); // nobody else knows it yet
                inner.batches.push(batch.clone());
                (batch, place)
            })
        };
        self.call_out();
        seat
    }

    /// A trial call that nobody makes frees its place.
    fn give_back(self: &Arc<Self>, answer: Option<Given>) {
        let Some((answer, change)) = answer else { return };
        if let Some(change) = change {
            self.tell(change);
        }
        if let Admission::Admitted(Ticket { epoch, lease: Some(lease) }) = answer.admission {
            self.inner.lock().owed.settled.push(Settled::unused(epoch, lease));
            self.call_out();
        }
    }
}

fn looked_at(report: &Report) -> Option<BreakerView> {
    let [calls, failures, slow, streak, probes, ..] = report.tail[..] else { return None };
    let count = |n: i64| u64::try_from(n).ok();
    let view = report.view;
    Some(BreakerView {
        phase: view.phase,
        forced: view.forced,
        epoch: view.epoch,
        calls: count(calls)?,
        failures: count(failures)?,
        slow: count(slow)?,
        streak: u32::try_from(streak).ok()?,
        probes: u32::try_from(probes).ok()?,
        break_left: (view.phase == Phase::Open).then_some(view.left),
        ramping: view.ramping,
    })
}

/// The lock of a circuit, held while something is read out of it.
type Held<'a> = MutexGuard<'a, Inner>;

//! A breaker shared by the fleet: calls are admitted and counted in this process, phases are decided in Redis.
//!
//! The last known phase is held in the fast path, so that a closed or open breaker admits or rejects from one atomic
//! word, and successes are summed per thread. Failures and slow calls are sent at once, successes every
//! `sync_interval`. Probes, ramps and the end of a break ask Redis, with all concurrent callers in one round trip.
//! Every reply, and every message pushed by another replica's change, carries a snapshot of the breaker
//! ([`Shared::apply`]).
//!
//! While Redis is unreachable the twin decides: a breaker of this process that continues from the last known phase. Its
//! tickets are marked, so that they do not count once Redis decides again. If the twin is open at that moment, this
//! replica keeps rejecting until the twin's break ends.

mod admin;
mod admit_reply;
pub(crate) mod codec;
mod entry;
mod inbound;
mod known_override;
mod outbound;
mod pending;
mod quota;
mod twin;

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
use tokio::time::Instant;

use self::codec::{Snapshot, spec_text};
pub(crate) use self::inbound::Provenance;
use self::known_override::KnownOverride;
use self::pending::{Pending, Run, Settled};
use self::quota::LocalRamp;
use self::twin::is_twin_ticket;
use crate::batch::{Batch, BatchRequest, Batches, Coalesce, Joined, PendingRequest};
use crate::dispatcher::{InlineRequest, Queued, Urgency};
use crate::keys::{Key, Kind};
use crate::store::inner::StoreInner;

/// The breaker of one key: this replica's handle to the shared state.
#[derive(Clone, Debug)]
pub struct SharedBreaker(pub(crate) Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    store: Arc<StoreInner>,
    key: StateKey,
    redis_key: Key,
    /// `<id>@<owner>`: names the breaker and the sending replica in pushed messages.
    signature: String,
    fast_path: FastPath,
    /// Whether the breaker was used since Redis was last polled.
    used: AtomicBool,
    queued: Queued,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    spec: BreakerSpec,
    spec_text: String,
    /// The state in the last reply or push; `None` before the first.
    last_known: Option<LastKnown>,
    /// The newest override that Redis has held, or that was set here.
    known_override: Option<KnownOverride>,
    /// A half-open breaker has no free probe until then.
    no_probe_until: Time,
    /// A ramp, as far as this replica decides it.
    ramp: Option<LocalRamp>,
    /// The highest lease that this replica has received.
    received_leases: u64,
    pending: Pending,
    /// Callers that wait for a reply of `breaker_admit.lua`.
    batches: Batches<Request, Option<AdmitOutcome>>,
    /// Calls in flight. One batch of calls at a time, so that replies arrive in order.
    in_flight: u32,
    /// A call of the current batch of calls has failed.
    failed: bool,
    /// Bad news waits until then.
    paced_until: Option<Instant>,
    /// A task sends the bad news that waits.
    flush_planned: bool,
    /// The twin, and the number of the outage it was created in.
    twin: Option<(u64, Arc<BreakerCell>)>,
    /// This replica rejects until then, because its twin tripped during an outage.
    held_open: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct LastKnown {
    snapshot: Snapshot,
    /// The end of the break, on this replica's clock.
    until: Time,
    /// When this replica learned of the epoch.
    since: Time,
}

type AdmitBatch = Batch<Request, Option<AdmitOutcome>>;

/// Whether the caller still waits for admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Admit,
    Cancelled,
}

impl BatchRequest for Request {
    const CANCELLED: Self = Self::Cancelled;
}

/// The reply to one caller, and the transition that its request caused.
pub(crate) type AdmitOutcome = (AdmitReply, Option<Transition>);

impl Entry for SharedBreaker {
    /// Redis holds the state, but may lose it: what rejects calls is kept here too. What was not sent yet is sent when the
    /// entry goes.
    fn retention(&self) -> Retention {
        let now = self.0.store.clock.now();
        let mut state = self.0.state.lock();
        self.0.drain_fast_path(&mut state, now);
        let known = state.last_known.is_some_and(|last_known| last_known.is_worth_keeping(now, &state.spec));
        if known || state.overridden(now).is_some() || state.twin.is_some() || state.held_open.is_some() {
            return Retention::Pinned;
        }
        if state.pending.is_empty() && state.in_flight == 0 { Retention::Disposable } else { Retention::Relearnable }
    }
}

/// A breaker that goes to make room for another sends what it has not sent yet.
impl Drop for SharedBreaker {
    fn drop(&mut self) {
        let shared = &self.0;
        if !shared.is_degraded() && shared.has_news() {
            shared.enqueue(Urgency::Background);
        }
    }
}

impl LastKnown {
    /// Returns whether forgetting it would let calls through. A half-open breaker is kept for as long
    /// as its probes, so that one whose callers are gone for good makes room in the end.
    fn is_worth_keeping(&self, now: Time, spec: &BreakerSpec) -> bool {
        match self.snapshot.phase {
            Phase::Closed => false,
            Phase::Open => now < self.until,
            Phase::HalfOpen => now < self.since.after(spec.lease()),
        }
    }

    /// Returns whether the phase alone decides every call.
    fn decides(&self, now: Time) -> bool {
        match self.snapshot.phase {
            Phase::Closed => !self.snapshot.ramping,
            Phase::Open => now < self.until,
            Phase::HalfOpen => false,
        }
    }
}

impl SharedBreaker {
    pub(crate) fn new(store: Arc<StoreInner>, key: &StateKey, spec: &BreakerSpec) -> Self {
        let state = State {
            spec: spec.clone(),
            spec_text: spec_text(spec),
            last_known: None,
            known_override: None,
            no_probe_until: Time::ZERO,
            ramp: None,
            received_leases: 0,
            pending: Pending::default(),
            batches: Batches::default(),
            in_flight: 0,
            failed: false,
            paced_until: None,
            flush_planned: false,
            twin: None,
            held_open: None,
        };
        let redis_key = store.keys.of(Kind::Breaker, key);
        let shared = Arc::new(Shared {
            signature: format!("{}@{}", redis_key.id, store.owner),
            redis_key,
            key: key.clone(),
            fast_path: FastPath::new(spec),
            used: AtomicBool::new(false),
            queued: Queued::default(),
            state: Mutex::new(state),
            store,
        });
        Self(shared)
    }

    /// The id of the breaker in pushed messages.
    pub(crate) fn id(&self) -> &str {
        &self.0.redis_key.id
    }

    pub(crate) fn retune(&self, spec: &BreakerSpec) {
        let now = self.0.store.clock.now();
        {
            let mut state = self.0.state.lock();
            if state.spec == *spec {
                return;
            }
            self.0.drain_fast_path(&mut state, now);
            state.spec = spec.clone();
            state.spec_text = spec_text(spec);
            if let Some((_, twin)) = &state.twin {
                twin.retune(spec);
            }
            // A different spec may change the stored state (a different window clears the counts), so Redis must
            // receive it.
            state.pending.poll = true;
            self.0.fast_path.retune(spec);
        }
        self.0.enqueue(Urgency::Background);
    }

    /// Decides without a round trip: if the breaker is closed or open, and always while degraded.
    #[inline]
    pub fn admit_now(&self, now: Time) -> Option<AdmitReply> {
        let shared = &*self.0;
        if !shared.used.load(Ordering::Relaxed) {
            self.0.mark_used();
        }
        match shared.fast_path.admit(now) {
            // The latch may have tripped just now, before the fast paths were cleared.
            Some(admission) if !shared.is_degraded() => Some(AdmitReply { admission, source: Source::Fleet }),
            _ => shared.admit_from_last_known(now),
        }
    }

    /// Asks Redis, in one round trip with all concurrent callers of the key.
    pub async fn admit(&self, now: Time) -> (AdmitReply, Option<Transition>) {
        self.0.store.ensure_background();
        match PendingRequest::new(&self.0, Request::Admit).await.flatten() {
            Some(outcome) => {
                self.0.store.dispatcher(self.0.redis_key.slot).latch.count_shared_decision();
                outcome
            }
            None => self.0.admit_degraded(now),
        }
    }

    /// Records the outcome of an admitted call; it is sent to Redis in the background.
    #[inline]
    pub fn record(&self, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        // The round that the admission was noted for may be over.
        if !self.0.used.load(Ordering::Relaxed) {
            self.0.mark_used();
        }
        match self.0.fast_path.record(now, ticket, sample) {
            Recorded::Done => None,
            Recorded::Flushed(successes) => {
                let mut state = self.0.state.lock();
                self.0.add_successes(&mut state, successes);
                None
            }
            Recorded::Forward => self.0.record_slow_path(now, ticket, sample),
        }
    }

    /// Returns the last known phase and override, or the twin's while degraded, without I/O.
    pub fn cached_phase(&self) -> (Phase, Option<Override>) {
        let state = self.0.state.lock();
        let now = self.0.store.clock.now();
        let phase = state.last_known.map_or(Phase::Closed, |last_known| last_known.snapshot.phase);
        let last_known = (phase, state.overridden(now));
        let (phase, overridden) = match &state.twin {
            Some((_, twin)) if self.0.is_degraded() => twin.glance(),
            _ => last_known,
        };
        let held_open = state.held_open.is_some_and(|until| now < until);
        (if held_open { Phase::Open } else { phase }, overridden)
    }

    /// Records the latency quantile.
    pub fn observe_quantile(&self, now: Time, value: Option<Duration>) -> Option<Transition> {
        let shared = &self.0;
        let mut state = shared.state.lock();
        let trip = state.spec.latency_trip()?;
        if shared.is_degraded() {
            let twin = shared.twin(&mut state, now);
            drop(state);
            return twin.observe_quantile(now, value);
        }
        // A replica that knows no quantile has nothing to say about the fleet's.
        let over = value? > trip.threshold;
        state.pending.runs.push(Run::quantile(over));
        drop(state);
        if !shared.used.load(Ordering::Relaxed) {
            shared.mark_used();
        }
        None
    }
}

impl Shared {
    /// Returns whether the next sync round visits it.
    pub(crate) fn is_noted(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns whether it rejects calls, or holds something that Redis has to receive.
    pub(crate) fn matters(&self) -> bool {
        let state = self.state.lock();
        let decides = |last_known: &LastKnown| {
            last_known.snapshot.phase != Phase::Closed || last_known.snapshot.overridden.is_some()
        };
        state.last_known.as_ref().is_some_and(decides) || state.held_open.is_some() || !state.pending.is_empty()
    }

    #[cold]
    fn mark_used(self: &Arc<Self>) {
        if !self.used.swap(true, Ordering::Relaxed) {
            self.store.background.breakers.note_use(self);
        }
    }

    pub(crate) fn is_degraded(&self) -> bool {
        self.store.dispatcher(self.redis_key.slot).latch.is_down()
    }

    /// Decides what the fast path cannot: by the last known override, and by the twin while degraded.
    #[cold]
    fn admit_from_last_known(&self, now: Time) -> Option<AdmitReply> {
        if self.is_degraded() {
            let (reply, change) = self.admit_degraded(now);
            if let Some(change) = change {
                self.emit(change);
            }
            return Some(reply);
        }
        let mut state = self.state.lock();
        let overridden = state.overridden(now);
        if overridden.is_none() && state.known_override.is_some() {
            self.update_fast_path(&mut state, now); // the override may have ended by itself
        }
        let last_known = state.last_known?;
        let passes = Admission::Admitted(Ticket { epoch: last_known.snapshot.epoch, lease: None });
        match overridden {
            None => Some(AdmitReply { admission: state.admit_in_recovery(now)?, source: Source::Fleet }),
            Some(Override::Open) => {
                let rejected = Admission::Rejected { code: RejectionCode::ForcedOpen, until: Time::NEVER };
                Some(AdmitReply { admission: rejected, source: Source::Forced })
            }
            Some(Override::Closed | Override::Disabled) => {
                Some(AdmitReply { admission: passes, source: Source::Forced })
            }
            Some(Override::MetricsOnly) => {
                let known = last_known.decides(now) || state.admit_in_recovery(now).is_some();
                known.then_some(AdmitReply { admission: passes, source: Source::Shadow })
            }
        }
    }

    /// Records what the fast path does not count: failures, slow calls, probes, and tickets of another epoch.
    #[cold]
    fn record_slow_path(self: &Arc<Self>, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        let mut state = self.state.lock();
        if is_twin_ticket(ticket) || self.is_degraded() {
            return self.record_in_twin(state, now, ticket, sample);
        }
        if state.last_known.is_some_and(|last_known| ticket.epoch < last_known.snapshot.epoch) {
            return None; // an earlier epoch: does not count
        }
        let slow = state.spec.is_slow(sample.latency);
        if let Some(lease) = ticket.lease {
            let expires = now.after(state.spec.lease());
            state.pending.settled.push(Settled::new(ticket.epoch, lease, sample.outcome, slow, expires));
            drop(state);
            self.enqueue(Urgency::Caller);
            return None;
        }
        self.drain_fast_path(&mut state, now);
        let run = Run::outcome(ticket.epoch, sample.outcome, slow, self.fast_path.slice_of(now));
        let is_bad_news = run.is_some_and(|run| state.pending.runs.push(run));
        drop(state);
        if is_bad_news {
            self.send_bad_news();
        }
        None
    }
}

impl State {
    /// Decides a call of a breaker that recovers, by what Redis replied a moment ago; `None` if Redis has to be asked.
    fn admit_in_recovery(&mut self, now: Time) -> Option<Admission> {
        let snapshot = self.last_known?.snapshot;
        let no_probe = Admission::Rejected { code: RejectionCode::ProbeQuota, until: Time::NEVER };
        match snapshot.phase {
            Phase::Closed if snapshot.ramping => {
                self.ramp.filter(|ramp| ramp.epoch == snapshot.epoch && ramp.is_known(now))?;
                let passes = Admission::Admitted(Ticket { epoch: snapshot.epoch, lease: None });
                Some(if self.ramp_admits(snapshot.epoch) { passes } else { no_probe })
            }
            Phase::HalfOpen if now < self.no_probe_until => Some(no_probe),
            Phase::Closed | Phase::Open | Phase::HalfOpen => None,
        }
    }

    /// Decides the next call of the ramp of this epoch, by the step that is known, or by the first one.
    fn ramp_admits(&mut self, epoch: u64) -> bool {
        let steps = self.spec.ramp.map_or(0, |ramp| u64::from(ramp.steps));
        let known = self.ramp.filter(|ramp| ramp.epoch == epoch);
        self.ramp.insert(known.unwrap_or_else(|| LocalRamp::first_step(epoch))).admits(steps)
    }

    /// The next call of a ramp asks Redis, and in another epoch that of a half-open breaker too.
    fn ask_again(&mut self, another_epoch: bool) {
        if another_epoch {
            self.no_probe_until = Time::ZERO;
        }
        if let Some(ramp) = &mut self.ramp {
            ramp.expire();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let last_known = self.state.get_mut().last_known;
        self.store.count_half_open(last_known.is_some_and(|known| known.snapshot.phase == Phase::HalfOpen), false);
    }
}

impl Coalesce for Shared {
    type Request = Request;
    type Reply = Option<AdmitOutcome>;

    fn submit(self: &Arc<Self>, request: Request, waker: &Waker) -> (Joined<Self>, Option<InlineRequest>) {
        let joined = self.state.lock().batches.join(request, waker);
        self.enqueue(Urgency::Caller);
        (joined, None)
    }

    /// Frees the lease of a probe that its caller will not make.
    fn reclaim(self: &Arc<Self>, outcome: Option<AdmitOutcome>) {
        let Some((reply, change)) = outcome else { return };
        if let Some(change) = change {
            self.emit(change);
        }
        if let Admission::Admitted(Ticket { epoch, lease: Some(lease) }) = reply.admission {
            let mut state = self.state.lock();
            let expires = self.store.clock.now().after(state.spec.lease());
            state.pending.settled.push(Settled::unused(epoch, lease, expires));
            drop(state);
            self.enqueue(Urgency::Caller);
        }
    }
}

/// The state lock of a breaker.
type StateGuard<'a> = MutexGuard<'a, State>;

//! A breaker shared by the fleet: calls are admitted and counted in this process, phases are decided in Redis.
//!
//! The last known phase is held in the fast path, so that a closed or open breaker admits or rejects from one atomic
//! word, and successes are summed per thread and stay here. Failures and slow calls are sent at once, with the successes
//! before them, and so is everything when the fleet is asked for evidence. Probes, ramps and the end of a break ask Redis,
//! with all concurrent callers in one round trip.
//! Every reply, and every message pushed by another replica's change, carries a snapshot of the breaker
//! ([`Shared::apply`]).
//!
//! While Redis is unreachable the twin decides: a breaker of this process that continues from the last known phase. Its
//! tickets are marked, so that they do not count once Redis decides again. If the twin is open at that moment, this
//! replica keeps rejecting until the twin's break ends.

mod alone;
pub(crate) mod codec;
mod inbound;
mod outbound;
mod overrides;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use phalanx_core::breaker::{
    Admission, BreakerSpec, BreakerView, FastPath, Override, OverrideRequest, Phase, Recorded,
};
use phalanx_core::breaker::{Sample, Ticket, Transition};
use phalanx_core::clock::Time;
use phalanx_core::key::StateKey;
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::store::AdmitReply;
use phalanx_core::table::{Entry, Retention};
use phalanx_lua as lua;
use phalanx_store_memory::BreakerCell;
use tokio::time::Instant;

use self::alone::{OwnWindow, is_own_ticket, is_twin_ticket};
use self::codec::{BreakerReply, Snapshot, spec_text};
use self::inbound::LocalRamp;
pub(crate) use self::inbound::Provenance;
pub(crate) use self::outbound::answer_span;
use self::outbound::{Pending, Run, Settled};
use self::overrides::{KnownOverride, NO_ENTRY, OverrideEntry};
use crate::batch::{Batch, BatchRequest, Batches, Coalesce, Joined, PendingRequest};
use crate::dispatcher::{InlineRequest, Queued, Urgency};
use crate::invocation::Invocation;
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
    /// The last second in which bad news was sent.
    troubled_in: u64,
    /// Bad news waits until then.
    paced_until: Option<Instant>,
    /// A task sends the bad news that waits.
    flush_planned: bool,
    /// The call for evidence that the next request answers; 0 if none.
    answers_call: u64,
    /// When the fast path was last drained.
    drained_at: Time,
    /// This replica has opened a call for evidence, and comes back to close it.
    closes_call: bool,
    /// The twin, and the number of the outage it was created in.
    twin: Option<(u64, Arc<BreakerCell>)>,
    /// What this replica has seen itself.
    own_window: OwnWindow,
    /// The circuit that this replica has opened without the fleet.
    own_circuit: Option<Arc<BreakerCell>>,
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
        let own = state.twin.is_some() || state.held_open.is_some() || state.own_circuit.is_some();
        if known || own || state.overridden(now).is_some() {
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
            shared.poll();
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
            troubled_in: 0,
            paced_until: None,
            flush_planned: false,
            answers_call: 0,
            drained_at: Time::ZERO,
            closes_call: false,
            twin: None,
            held_open: None,
            own_window: OwnWindow::default(),
            own_circuit: None,
        };
        let redis_key = store.keys.of(Kind::Breaker, key);
        store.background.changes.use_partition(redis_key.partition);
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
            state.own_window.retune(spec);
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
                self.0.add_successes(&mut state, successes, now);
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
        let held_open = state.held_open.is_some_and(|until| now < until) || state.own_circuit.is_some();
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
        state.pending.observe_quantile(over, now);
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
        state.last_known.as_ref().is_some_and(decides) || state.held_open.is_some() || state.pending.is_due()
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
            None if last_known.snapshot.phase == Phase::Closed && !last_known.snapshot.ramping => {
                self.admit_alone(&state, now)
            }
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
        let ticket = if is_own_ticket(ticket) { self.record_alone(&mut state, now, ticket, sample) } else { ticket };
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
        if state.overridden(now) != Some(Override::Disabled) {
            let State { own_window, spec, pending, .. } = &mut *state;
            own_window.begin(now, spec, pending.runs.iter());
            own_window.count(now, sample);
        }
        let run = Run::outcome(ticket.epoch, sample.outcome, slow, self.fast_path.slice_of(now), now);
        let is_bad_news = run.is_some_and(|run| state.pending.runs.push(run));
        drop(state);
        if is_bad_news {
            self.send_bad_news();
        }
        None
    }
}

// Override, reset and inspect: each is a call of its own; if Redis is unreachable, it applies to the twin.

impl SharedBreaker {
    /// Sets the override of the fleet's breaker, or releases it.
    pub async fn force(&self, overridden: Option<Override>) {
        self.force_with(&OverrideRequest::new(overridden)).await;
    }

    /// Sets the override of the fleet's breaker, or releases it, with an author, a reason and an end. If Redis does not
    /// answer, this replica sends it until Redis holds it, or a newer one.
    pub async fn force_with(&self, request: &OverrideRequest) {
        let shared = &self.0;
        let now = shared.store.clock.now();
        let server_time = shared.store.server_time(now);
        let known = shared.state.lock().claimed_override(now).map_or(0, |known| known.sequence);
        let sequence = (known + 1).max(server_time.unwrap_or(0));
        let entry = OverrideEntry::of(request, shared.store.owner, sequence, now);
        let call = shared.operation(&lua::BREAKER_FORCE, true, |call| {
            call.arg(entry.text(now)).arg(1);
        });
        if shared.operate(call, Provenance::Reply).await.is_none() {
            shared.force_degraded(entry, server_time.is_none());
        }
    }

    /// Closes the breaker and clears its counts. Returns the transition, if the phase changed.
    pub async fn reset(&self, now: Time) -> Option<Transition> {
        let call = self.0.operation(&lua::BREAKER_RESET, true, |_| {});
        {
            let mut state = self.0.state.lock();
            state.held_open = None;
            self.0.close_alone(&mut state, now);
        }
        let Some(reply) = self.0.operate(call, Provenance::CallerReply).await else {
            return self.0.reset_degraded(now);
        };
        reply.transitions.last().copied()
    }

    /// Returns the phase, the override and the counts of the window.
    pub async fn inspect(&self, now: Time) -> BreakerView {
        // Without a claim of the override: the script writes nothing, so its reply must not confirm one.
        let call = self.0.operation(&lua::BREAKER_INSPECT, false, |_| {});
        let reply = self.0.operate(call, Provenance::Reply).await;
        reply.as_ref().and_then(breaker_view).unwrap_or_else(|| self.0.inspect_degraded(now))
    }
}

impl Shared {
    /// Builds a call with the common arguments and `args`.
    fn operation(
        &self,
        script: &'static lua::Script,
        claims_override: bool,
        args: impl FnOnce(&mut Invocation),
    ) -> Invocation {
        let mut call = self.invocation(script);
        let state = self.state.lock();
        if claims_override {
            self.push_common_args(&mut call, &state);
        } else {
            self.push_args_with_claim(&mut call, &state, NO_ENTRY);
        }
        drop(state);
        args(&mut call);
        call
    }

    async fn operate(self: &Arc<Self>, call: Invocation, provenance: Provenance) -> Option<BreakerReply> {
        self.store.ensure_background();
        let reply = self.store.dispatcher(self.redis_key.slot).call(call).await.ok()?;
        let reply = BreakerReply::of(&reply)?;
        self.apply(reply.snapshot, &reply.entry, &reply.transitions, provenance);
        if let Some(published) = reply.published {
            self.store.push_health.published(&self.store.observers, published);
        }
        Some(reply)
    }
}

fn breaker_view(reply: &BreakerReply) -> Option<BreakerView> {
    let [calls, failures, slow, streak, probes, ..] = reply.tail[..] else { return None };
    let count = |n: i64| u64::try_from(n).ok();
    let snapshot = reply.snapshot;
    Some(BreakerView {
        phase: snapshot.phase,
        overridden: snapshot.overridden,
        epoch: snapshot.epoch,
        calls: count(calls)?,
        failures: count(failures)?,
        slow: count(slow)?,
        streak: u32::try_from(streak).ok()?,
        probes: u32::try_from(probes).ok()?,
        break_left: (snapshot.phase == Phase::Open).then_some(snapshot.left),
        ramping: snapshot.ramping,
    })
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
        if self.state.get_mut().own_circuit.is_some() {
            self.store.odd_breakers.fetch_sub(1, Ordering::Relaxed);
        }
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

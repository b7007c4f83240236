//! What a replica decides without the fleet: by the twin while Redis is unreachable, and by the circuit of its own while its
//! calls fail and those of the others do not.
//!
//! **The twin** continues from the last known phase with an empty window. Its tickets carry [`TWIN_EPOCH_BIT`], so that they
//! do not count in the fleet's epochs, and its counts are not sent to Redis afterwards. If it is open when Redis is
//! reachable again, this replica keeps rejecting until the twin's break ends.
//!
//! **The circuit of its own**: with a quorum, one replica whose calls fail (a broken egress, a bad node) does not open the
//! breaker of the fleet. It opens a circuit of its own instead: a call is admitted by the fleet's breaker and by this one. The
//! same protects a replica that is over the threshold while too few of the others can be heard. The circuit is a breaker of
//! the memory store with the same spec; it goes when its probes succeed. Its tickets carry [`OWN_EPOCH_BIT`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::breaker::{
    Admission, Breaker, BreakerSpec, BreakerView, LastState, Phase, Sample, Ticket, Transition,
};
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::store::AdmitReply;
use phalanx_store_memory::BreakerCell;

use super::outbound::Run;
use super::overrides::{KnownOverride, OverrideEntry};
use super::{Shared, State, StateGuard};

/// Marks a ticket of the twin. No breaker reaches this epoch.
const TWIN_EPOCH_BIT: u64 = 1 << 61;

/// Samples of one lost run that the twin counts at most.
const MAX_SAMPLES_PER_RUN: u64 = 1_000;

pub(super) const fn is_twin_ticket(ticket: Ticket) -> bool {
    ticket.epoch & TWIN_EPOCH_BIT != 0
}

const fn with_twin_bit(admission: Admission) -> Admission {
    match admission {
        Admission::Admitted(ticket) => Admission::Admitted(Ticket { epoch: ticket.epoch | TWIN_EPOCH_BIT, ..ticket }),
        rejected @ Admission::Rejected { .. } => rejected,
    }
}

impl Shared {
    /// Returns the twin of the current outage, created from the last known state.
    pub(super) fn twin(&self, state: &mut State, now: Time) -> Arc<BreakerCell> {
        let outage = self.store.dispatcher(self.redis_key.slot).latch.trips();
        if let Some((made_in, twin)) = &state.twin
            && *made_in == outage
        {
            return twin.clone();
        }
        let machine = restored(state, now);
        let twin = Arc::new(BreakerCell::over(self.store.clock.clone(), &state.spec, self.store.rng.fork(), machine));
        state.twin = Some((outage, twin.clone()));
        twin
    }

    /// Decides without Redis: by the twin while the latch is down, by the last known phase if only this reply is
    /// missing.
    pub(super) fn admit_degraded(&self, now: Time) -> (AdmitReply, Option<Transition>) {
        self.store.dispatcher(self.redis_key.slot).count_degraded_decision();
        if !self.is_degraded() {
            return (self.admit_after_missed_reply(now), None);
        }
        let twin = self.twin(&mut self.state.lock(), now);
        let (reply, change) = twin.admit_now(now).map_or_else(|| twin.admit(now), |reply| (reply, None));
        let source = if reply.source == Source::Local { Source::Degraded } else { reply.source };
        (AdmitReply { admission: with_twin_bit(reply.admission), source }, change)
    }

    /// Admits if the breaker was closed, and its share during a ramp. Rejects what would need a lease: probes are limited for the whole fleet, and
    /// only Redis can lease one.
    fn admit_after_missed_reply(&self, now: Time) -> AdmitReply {
        let mut state = self.state.lock();
        let last_known = state.last_known;
        let epoch = last_known.map_or(0, |last_known| last_known.snapshot.epoch);
        let admission = match last_known {
            Some(last_known) if last_known.snapshot.phase == Phase::Open && now < last_known.until => {
                Admission::Rejected { code: RejectionCode::CircuitOpen, until: last_known.until }
            }
            Some(last_known) if last_known.snapshot.phase != Phase::Closed => {
                Admission::Rejected { code: RejectionCode::ProbeQuota, until: Time::NEVER }
            }
            Some(last_known) if last_known.snapshot.ramping && !state.ramp_admits(epoch) => {
                Admission::Rejected { code: RejectionCode::ProbeQuota, until: Time::NEVER }
            }
            _ => Admission::Admitted(Ticket { epoch, lease: None }),
        };
        AdmitReply { admission, source: Source::Degraded }
    }

    pub(super) fn record_in_twin(
        &self,
        mut state: StateGuard<'_>,
        now: Time,
        ticket: Ticket,
        sample: Sample,
    ) -> Option<Transition> {
        let twin = if self.is_degraded() { self.twin(&mut state, now) } else { state.twin.as_ref()?.1.clone() };
        drop(state);
        // A probe that Redis leased does not count in the twin.
        let own = Ticket { epoch: ticket.epoch & !TWIN_EPOCH_BIT, ..ticket };
        let leased_elsewhere = !is_twin_ticket(ticket) && ticket.lease.is_some();
        if leased_elsewhere { None } else { twin.record(now, own, sample) }
    }

    /// Counts outcomes that could not be sent in the twin, if the latch is down.
    pub(super) fn count_in_twin(&self, runs: &[Run]) {
        if !self.is_degraded() {
            return;
        }
        let now = self.store.clock.now();
        let (twin, slow) = {
            let mut state = self.state.lock();
            (self.twin(&mut state, now), state.spec.slow_call_threshold.unwrap_or_default())
        };
        for (epoch, sample) in runs.iter().flat_map(|run| run.samples(slow, MAX_SAMPLES_PER_RUN)) {
            if let Some(change) = twin.record(now, Ticket { epoch, lease: None }, sample) {
                self.emit(change);
            }
        }
    }

    /// Applies an override in this process, unless a newer one is known, and sends it until Redis holds it.
    pub(super) fn force_degraded(self: &Arc<Self>, entry: OverrideEntry, unordered: bool) {
        let now = self.store.clock.now();
        let mut state = self.state.lock();
        let newer = state.claimed_override(now).is_some_and(|known| known.is_newer_than(&entry));
        if newer {
            return;
        }
        state.known_override = Some(KnownOverride::unsent(entry, unordered, now));
        if self.is_degraded() {
            let (overridden, ends) = (state.overridden(now), state.override_ends());
            self.twin(&mut state, now).force_until(overridden, ends);
        }
        self.update_fast_path(&mut state, now);
    }

    pub(super) fn reset_degraded(&self, now: Time) -> Option<Transition> {
        let mut state = self.state.lock();
        if self.is_degraded() { self.twin(&mut state, now).reset(now) } else { None }
    }

    pub(super) fn inspect_degraded(&self, now: Time) -> BreakerView {
        let mut state = self.state.lock();
        let machine =
            if self.is_degraded() { return self.twin(&mut state, now).inspect(now) } else { restored(&state, now) };
        BreakerCell::over(self.store.clock.clone(), &state.spec, self.store.rng.fork(), machine).inspect(now)
    }

    /// The latch tripped: clears the fast path, so that callers reach the twin. The twin counts failures that were not sent:
    /// after the outage they would open the breaker of the fleet for something that is long over.
    pub(crate) fn enter_degraded(&self) {
        let now = self.store.clock.now();
        let unsent = {
            let mut state = self.state.lock();
            self.drain_fast_path(&mut state, now);
            self.update_fast_path(&mut state, now);
            state.pending.take_bad_news()
        };
        self.count_in_twin(&unsent);
    }

    /// Pushes are no longer received: clears the fast path, so that the next caller asks Redis.
    pub(crate) fn forget_phase(&self) {
        let state = self.state.lock();
        self.fast_path.publish(
            state.last_known.map_or(0, |last_known| last_known.snapshot.epoch),
            phalanx_core::breaker::FastAnswer::Ask,
        );
    }

    /// Drops the twin after an outage. If it is open, this replica rejects until its break ends.
    pub(super) fn retire_twin(&self, state: &mut State, now: Time) {
        if self.is_degraded() {
            return;
        }
        if let Some((_, twin)) = state.twin.take() {
            let left = twin.inspect(now).break_left.unwrap_or_default();
            state.held_open = (!left.is_zero()).then(|| now.after(left));
        }
    }

    /// Redis decides again: drops the twin. What is pending is sent as part of the catch-up.
    pub(crate) fn leave_degraded(&self) {
        let now = self.store.clock.now();
        let mut state = self.state.lock();
        self.retire_twin(&mut state, now);
        self.update_fast_path(&mut state, now);
    }
}

/// A breaker that continues from the last known state. What this replica holds open, since an earlier outage or by the
/// circuit of its own, stays open until its break ends.
fn restored(state: &State, now: Time) -> Breaker {
    let (overridden, ends) = (state.overridden(now), state.override_ends());
    let mut breaker = restored_phase(state, now);
    breaker.force_until(overridden, ends);
    breaker
}

fn restored_phase(state: &State, now: Time) -> Breaker {
    let held_open = state.held_open.map_or(Duration::ZERO, |until| until.since(now));
    let held_open = held_open.max(state.own_break_left(now));
    let Some(last_known) = &state.last_known else {
        return if held_open.is_zero() {
            Breaker::new(now, &state.spec)
        } else {
            let last = LastState {
                epoch: 1,
                phase: Phase::Open,
                left: held_open,
                age: Duration::ZERO,
                escalation: 0,
                overridden: None,
            };
            Breaker::restore(now, &state.spec, &last)
        };
    };
    let (snapshot, left) = (&last_known.snapshot, last_known.until.since(now).max(held_open));
    let phase = if held_open.is_zero() { snapshot.phase } else { Phase::Open };
    let (epoch, age, escalation) = (snapshot.epoch, now.since(last_known.since), snapshot.escalation);
    Breaker::restore(now, &state.spec, &LastState { epoch, phase, left, age, escalation, overridden: None })
}

/// Marks a ticket of the circuit of this replica. No breaker reaches this epoch.
const OWN_EPOCH_BIT: u64 = 1 << 60;

/// The epoch of a machine that only counts.
const COUNTING: Ticket = Ticket { epoch: 1, lease: None };

/// The window of this replica, from the first bad news or call for evidence until a window without any.
#[derive(Debug, Default)]
pub(super) struct OwnWindow(Option<Box<Window>>);

#[derive(Debug)]
struct Window {
    counts: Breaker,
    /// The spec without what trips: whether the counts are enough depends on the others.
    spec: BreakerSpec,
    needed_at: Time,
}

fn without_trips(spec: &BreakerSpec) -> BreakerSpec {
    BreakerSpec { failure_ratio: None, consecutive_failures: None, slow_call_ratio: None, ..spec.clone() }
}

impl OwnWindow {
    /// Begins the window, with the good news that was not sent yet, or notes that it is still needed.
    pub(super) fn begin<'a>(&mut self, now: Time, spec: &BreakerSpec, good_news: impl Iterator<Item = &'a Run>) {
        if let Some(window) = &mut self.0 {
            window.needed_at = now;
            return;
        }
        let spec = without_trips(spec);
        self.0 = Some(Box::new(Window { counts: Breaker::new(now, &spec), spec, needed_at: now }));
        good_news.for_each(|run| self.count_successes(now, run));
    }

    pub(super) fn count(&mut self, now: Time, sample: Sample) {
        if let Some(window) = &mut self.0 {
            window.counts.record(now, &window.spec, COUNTING, sample, 0.0);
        }
    }

    /// Counts successes that the fast path has summed up.
    pub(super) fn count_successes(&mut self, now: Time, run: &Run) {
        if let (Some(window), Some((slice, count))) = (&mut self.0, run.good_news()) {
            window.counts.record_successes(now, &window.spec, COUNTING.epoch, slice, count);
        }
    }

    pub(super) fn retune(&mut self, spec: &BreakerSpec) {
        if let Some(window) = &mut self.0 {
            window.spec = without_trips(spec);
            window.counts.retune(&window.spec);
        }
    }

    /// Forgets it, if it was not needed for a window.
    pub(super) fn forget_unneeded(&mut self, now: Time) {
        if self.0.as_ref().is_some_and(|window| now.since(window.needed_at) > window.spec.sampling_window) {
            self.0 = None;
        }
    }

    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    /// Calls, failures, slow calls and failures in a row, for `breaker_sync.lua`.
    pub(super) fn text(&self, now: Time) -> String {
        let Some(window) = &self.0 else { return "0 0 0 0".to_owned() };
        let view = window.counts.inspect(now);
        format!("{} {} {} {}", view.calls, view.failures, view.slow, view.streak)
    }
}

pub(super) const fn is_own_ticket(ticket: Ticket) -> bool {
    ticket.epoch & OWN_EPOCH_BIT != 0
}

impl State {
    /// How long the circuit of this replica still rejects.
    pub(super) fn own_break_left(&self, now: Time) -> Duration {
        let view = self.own_circuit.as_ref().map(|circuit| circuit.inspect(now));
        view.and_then(|view| view.break_left).unwrap_or_default()
    }
}

impl Shared {
    /// Opens the circuit of this replica: it is over the threshold, and the fleet is not.
    pub(super) fn open_alone(&self, state: &mut State, now: Time) -> Option<Duration> {
        if state.own_circuit.is_some() {
            return None;
        }
        let break_for = state.spec.break_duration;
        let last = LastState {
            epoch: 1,
            phase: Phase::Open,
            left: break_for,
            age: Duration::ZERO,
            escalation: 0,
            overridden: None,
        };
        let machine = Breaker::restore(now, &state.spec, &last);
        let cell = BreakerCell::over(self.store.clock.clone(), &state.spec, self.store.rng.fork(), machine);
        state.own_circuit = Some(Arc::new(cell));
        self.store.odd_breakers.fetch_add(1, Ordering::Relaxed);
        self.update_fast_path(state, now);
        Some(break_for)
    }

    /// Emits that this replica is the odd one.
    pub(super) fn emit_odd(&self, break_for: Duration) {
        self.store.observers.emit(&self.key, EventKind::OddReplica { break_for });
    }

    /// Decides a call that the fleet admits by the circuit of this replica; `None` if it has none.
    pub(super) fn admit_alone(&self, state: &State, now: Time) -> Option<AdmitReply> {
        let circuit = state.own_circuit.as_ref()?;
        let reply = circuit.admit_now(now).unwrap_or_else(|| circuit.admit(now).0);
        let admission = match reply.admission {
            Admission::Admitted(ticket) => {
                Admission::Admitted(Ticket { epoch: ticket.epoch | OWN_EPOCH_BIT, ..ticket })
            }
            rejected @ Admission::Rejected { .. } => rejected,
        };
        Some(AdmitReply { admission, source: Source::Local })
    }

    /// Records the outcome of a call that the circuit of this replica has admitted. Returns the ticket by which it counts in
    /// the breaker of the fleet: of no epoch, if the circuit is gone, because then the fleet's epoch may be another one (I-7).
    pub(super) fn record_alone(&self, state: &mut State, now: Time, ticket: Ticket, sample: Sample) -> Ticket {
        let Some(circuit) = &state.own_circuit else { return Ticket { epoch: 0, lease: None } };
        circuit.record(now, Ticket { epoch: ticket.epoch & !OWN_EPOCH_BIT, ..ticket }, sample);
        if circuit.glance().0 == Phase::Closed {
            self.close_alone(state, now);
        }
        Ticket { epoch: state.last_known.map_or(0, |last_known| last_known.snapshot.epoch), lease: None }
    }

    /// Gives up the circuit of this replica.
    pub(super) fn close_alone(&self, state: &mut State, now: Time) {
        if state.own_circuit.take().is_some() {
            self.store.odd_breakers.fetch_sub(1, Ordering::Relaxed);
            state.own_window.clear();
            self.update_fast_path(state, now);
        }
    }
}

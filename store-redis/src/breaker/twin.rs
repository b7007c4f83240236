//! The twin: the in-process breaker that decides while Redis is unreachable.
//!
//! It continues from the last known phase with an empty window. Its tickets carry [`TWIN_EPOCH_BIT`], so that they do
//! not count in the fleet's epochs, and its counts are not sent to Redis afterwards. If it is open when Redis is
//! reachable again, this replica keeps rejecting until the twin's break ends.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{Admission, Breaker, BreakerView, LastState, Phase, Sample, Ticket, Transition};
use phalanx_core::clock::Time;
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::store::AdmitReply;
use phalanx_store_memory::BreakerCell;

use super::entry::OverrideEntry;
use super::known_override::KnownOverride;
use super::pending::Run;
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

    /// The latch tripped: clears the fast path, so that callers reach the twin.
    pub(crate) fn enter_degraded(&self) {
        let now = self.store.clock.now();
        let mut state = self.state.lock();
        self.drain_fast_path(&mut state, now);
        self.update_fast_path(&mut state, now);
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

/// A breaker that continues from the last known state. What this replica holds open since an earlier outage stays open
/// until its break ends.
fn restored(state: &State, now: Time) -> Breaker {
    let (overridden, ends) = (state.overridden(now), state.override_ends());
    let mut breaker = restored_phase(state, now);
    breaker.force_until(overridden, ends);
    breaker
}

fn restored_phase(state: &State, now: Time) -> Breaker {
    let held_open = state.held_open.map_or(Duration::ZERO, |until| until.since(now));
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

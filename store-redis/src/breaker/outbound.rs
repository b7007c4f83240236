//! The outbound queue of a breaker: sends overrides first, then settled probes, then outcomes in order, then the
//! callers that wait for admission.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use phalanx_core::breaker::Override;
use phalanx_core::breaker::Successes;
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_lua as lua;

use super::codec::{BreakerReply, override_number, phase_number};
use super::pending::Run;
use super::{AdmitBatch, Provenance, Request, Shared, State};
use crate::dispatcher::{BatchSource, Outgoing, ScriptResult, Urgency};
use crate::invocation::{Invocation, integers};

impl Shared {
    /// Queues successes that the fast path has summed up.
    pub(super) fn add_successes(&self, state: &mut State, successes: Successes) {
        let Some(last_known) = &state.last_known else { return };
        let epoch = last_known.snapshot.epoch;
        if successes.belong_to(epoch) {
            let (count, slice) = (successes.count, successes.slice);
            state.pending.runs.push(Run::successes(epoch, count, slice));
        }
    }

    /// Drains the fast path into the queue, so that its successes are sent before what happens next.
    pub(super) fn drain_fast_path(&self, state: &mut State, now: Time) {
        for successes in self.fast_path.drain(now) {
            self.add_successes(state, successes);
        }
    }

    /// Queues this cell for the next round trip of this kind, unless it is queued.
    pub(super) fn enqueue(self: &Arc<Self>, urgency: Urgency) {
        if self.queued.mark(urgency) {
            self.store.dispatcher(self.redis_key.slot).enqueue(self.clone(), urgency);
        }
    }

    /// One round of the sync loop: sends what is pending, and polls the state if the breaker was used since the last
    /// round or `force_poll` is set.
    pub(crate) fn tick(self: &Arc<Self>, force_poll: bool) {
        let used = self.used.swap(false, Ordering::Relaxed);
        let now = self.store.clock.now();
        let mut state = self.state.lock();
        self.retire_twin(&mut state, now);
        self.drain_fast_path(&mut state, now);
        state.pending.poll |= used || force_poll;
        let nothing_pending = state.pending.is_empty();
        drop(state);
        if !nothing_pending && !self.is_degraded() {
            self.enqueue(Urgency::Background);
        }
    }

    /// Drains the fast path and returns whether anything is pending.
    pub(crate) fn needs_flush(&self) -> bool {
        let mut state = self.state.lock();
        self.drain_fast_path(&mut state, self.store.clock.now());
        !state.pending.is_empty()
    }

    /// Appends the arguments that all breaker scripts begin with.
    pub(super) fn push_common_args(&self, call: &mut Invocation, state: &State) {
        let now = self.store.clock.now();
        let claim = match &state.last_known {
            None => "0 1 0 0 0".to_owned(),
            Some(last_known) => format!(
                "{} {} {} {} {}",
                last_known.snapshot.epoch,
                phase_number(last_known.snapshot.phase),
                last_known.until.since(now).as_micros(),
                last_known.snapshot.escalation,
                override_number(last_known.snapshot.overridden),
            ),
        };
        call.arg(&state.spec_text).arg(claim).arg(&self.store.channel).arg(&self.signature).arg(self.store.rng.unit());
    }

    fn fill_settled(self: &Arc<Self>, outgoing: &mut Outgoing, state: &mut State) {
        let settled = std::mem::take(&mut state.pending.settled);
        let mut call = self.store.invocation(&lua::BREAKER_SETTLE, &[&self.redis_key]);
        self.push_common_args(&mut call, state);
        call.arg(settled.len());
        for one in settled {
            call.arg(one.epoch).arg(one.lease).arg(one.kind());
        }
        self.fill_call(outgoing, state, call);
    }

    fn fill_runs(self: &Arc<Self>, outgoing: &mut Outgoing, state: &mut State) {
        let (now, slice_micros) = (self.store.clock.now(), self.fast_path.slice_micros());
        let runs = state.pending.runs.take();
        let mut call = self.store.invocation(&lua::BREAKER_SYNC, &[&self.redis_key]);
        self.push_common_args(&mut call, state);
        call.arg(runs.len());
        for run in &runs {
            call.arg(run.epoch).arg(run.kind()).arg(run.count).arg(run.age(now, slice_micros));
        }
        state.in_flight += 1;
        let shared = self.clone();
        outgoing.add(call, move |reply| {
            if shared.apply_reply(reply).is_none() {
                shared.count_in_twin(&runs);
            }
            shared.call_finished();
        });
    }

    fn fill_override(self: &Arc<Self>, outgoing: &mut Outgoing, state: &mut State, overridden: Option<Override>) {
        let mut call = self.store.invocation(&lua::BREAKER_FORCE, &[&self.redis_key]);
        self.push_common_args(&mut call, state);
        call.arg(override_number(overridden));
        self.fill_call(outgoing, state, call);
    }

    fn fill_call(self: &Arc<Self>, outgoing: &mut Outgoing, state: &mut State, call: Invocation) {
        state.in_flight += 1;
        let shared = self.clone();
        outgoing.add(call, move |reply| {
            shared.apply_reply(reply);
            shared.call_finished();
        });
    }

    fn fill_callers(self: &Arc<Self>, outgoing: &mut Outgoing, state: &mut State, batch: Arc<AdmitBatch>) {
        let requests = batch.close();
        let callers = requests.iter().filter(|request| **request == Request::Admit).count();
        if callers == 0 {
            return; // a probe must not be leased if no caller is left to make it
        }
        state.in_flight += 1;
        let mut call = self.store.invocation(&lua::BREAKER_ADMIT, &[&self.redis_key]);
        self.push_common_args(&mut call, state);
        call.arg(callers).arg(self.store.owner);
        let steps = state.spec.ramp.map_or(0, |ramp| u64::from(ramp.steps));
        let shared = self.clone();
        outgoing.add_waiting(batch.opened, call, move |reply| {
            shared.complete_batch(&batch, &requests, steps, reply);
            shared.call_finished();
        });
    }

    /// Decodes and applies a reply that no caller waits for.
    fn apply_reply(&self, reply: ScriptResult) -> Option<BreakerReply> {
        let reply = BreakerReply::decode(&integers(&reply.ok()?))?;
        self.apply(reply.snapshot, &reply.transitions, Provenance::Reply);
        self.emit_anomalies(&reply);
        Some(reply)
    }

    pub(super) fn emit_anomalies(&self, reply: &BreakerReply) {
        if reply.repaired {
            self.store.observers.emit(&self.key, EventKind::StateRepaired);
        }
        if reply.mixed {
            self.store.report_mismatch(&self.key);
        }
    }

    /// Counts one call as finished. After the last one, sends what was queued meanwhile.
    fn call_finished(self: &Arc<Self>) {
        let more = {
            let mut state = self.state.lock();
            state.in_flight = state.in_flight.saturating_sub(1);
            let urgent = !state.batches.is_empty() || !state.pending.settled.is_empty();
            state.in_flight == 0 && (urgent || state.pending.runs.any_urgent())
        };
        if more {
            self.enqueue(Urgency::Caller);
        }
    }
}

impl BatchSource for Shared {
    fn fill(self: Arc<Self>, outgoing: &mut Outgoing) {
        self.queued.clear();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.in_flight > 0 {
            return; // `call_finished` enqueues again
        }
        self.drain_fast_path(state, self.store.clock.now());
        let batches = state.batches.take();
        if let Some(provenance) = state.pending.override_update.take() {
            self.fill_override(outgoing, state, provenance);
        }
        if !state.pending.settled.is_empty() {
            self.fill_settled(outgoing, state);
        }
        if !state.pending.runs.is_empty() || state.pending.poll {
            state.pending.poll = false;
            self.fill_runs(outgoing, state);
        }
        for batch in batches {
            self.fill_callers(outgoing, state, batch);
        }
    }
}

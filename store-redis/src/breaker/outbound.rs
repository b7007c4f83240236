//! The outbound queue of a breaker: sends overrides first, then settled probes, then outcomes in order, then the
//! callers that wait for admission.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::breaker::Successes;
use phalanx_core::clock::Time;
use phalanx_core::event::EventKind;
use phalanx_lua as lua;
use tokio::time::{Instant, sleep_until};

use super::codec::{BreakerReply, phase_number};
use super::entry::NO_ENTRY;
use super::pending::Run;
use super::quota::LocalRamp;
use super::{AdmitBatch, Provenance, Request, Shared, State};
use crate::dispatcher::{BatchSource, Outgoing, ScriptResult, Urgency};
use crate::failure::Failure;
use crate::invocation::Invocation;

/// Bad news that follows other bad news waits for this long, or for this long for each replica.
const MIN_PACE: Duration = Duration::from_millis(10);
const PACE_PER_REPLICA: Duration = Duration::from_micros(200);

/// Higher than any lease.
const EVERY_LEASE: u64 = (1 << 53) - 1;

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

    /// Sends failures and slow calls: the first at once, the next ones paced, so that a dependency that fails often does
    /// not cost a script each. Without a runtime the sync loop sends them.
    pub(super) fn send_bad_news(self: &Arc<Self>) {
        let until = {
            let mut state = self.state.lock();
            match state.paced_until {
                Some(until) if Instant::now() < until => {
                    if std::mem::replace(&mut state.flush_planned, true) {
                        return;
                    }
                    until
                }
                _ => {
                    drop(state);
                    return self.enqueue(Urgency::Caller);
                }
            }
        };
        let weak = Arc::downgrade(self);
        self.store.dispatcher(self.redis_key.slot).spawn(async move {
            sleep_until(until).await;
            if let Some(shared) = weak.upgrade()
                && shared.is_flush_due()
            {
                shared.enqueue(Urgency::Caller);
            }
        });
    }

    /// Whether bad news still waits, and its time has come: it may have been sent with other requests.
    fn is_flush_due(&self) -> bool {
        let state = self.state.lock();
        state.flush_planned && state.paced_until.is_none_or(|until| until <= Instant::now())
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
        let nothing_pending = state.pending.is_empty() && !state.puts_back(now);
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

    /// Drains the fast path and returns whether anything would be lost if it were not sent.
    pub(super) fn has_news(&self) -> bool {
        let mut state = self.state.lock();
        self.drain_fast_path(&mut state, self.store.clock.now());
        state.pending.has_news()
    }

    /// Appends the arguments that all breaker scripts begin with, with a claim of what this replica knows.
    pub(super) fn push_common_args(&self, call: &mut Invocation, state: &State) {
        let now = self.store.clock.now();
        let entry = state.claimed_override(now).map_or_else(|| NO_ENTRY.to_owned(), |entry| entry.text(now));
        self.push_args_with_claim(call, state, &entry);
    }

    /// Appends them with the claim of this entry.
    pub(super) fn push_args_with_claim(&self, call: &mut Invocation, state: &State, entry: &str) {
        let now = self.store.clock.now();
        let claim = match &state.last_known {
            None => format!("0 1 0 0 0 {entry}"),
            Some(last_known) => format!(
                "{} {} {} {} {} {entry}",
                last_known.snapshot.epoch,
                phase_number(last_known.snapshot.phase),
                last_known.until.since(now).as_micros(),
                last_known.snapshot.escalation,
                now.since(last_known.since).as_micros(),
            ),
        };
        call.arg(&state.spec_text).arg(claim).arg(&self.store.channel).arg(&self.signature).arg(self.store.rng.unit());
    }

    fn fill_settled(self: &Arc<Self>, outgoing: &mut Outgoing, state: &mut State) {
        let settled = std::mem::take(&mut state.pending.settled);
        let mut call = self.store.invocation(&lua::BREAKER_SETTLE, &[&self.redis_key]);
        self.push_common_args(&mut call, state);
        call.arg(settled.len());
        for one in &settled {
            call.arg(one.epoch).arg(one.lease).arg(one.kind());
        }
        state.in_flight += 1;
        let shared = self.clone();
        outgoing.add(call, move |reply| {
            let failed = shared.apply_reply(&reply).is_none();
            let mut state = shared.state.lock();
            state.no_probe_until = Time::ZERO; // it has freed a probe
            if failed {
                let now = shared.store.clock.now();
                let epoch = state.last_known.map_or(0, |last_known| last_known.snapshot.epoch);
                state.pending.put_back_settled(settled, epoch, now);
            }
            drop(state);
            shared.call_finished(failed);
        });
    }

    fn fill_runs(self: &Arc<Self>, outgoing: &mut Outgoing, state: &mut State) {
        let (now, slice_micros) = (self.store.clock.now(), self.fast_path.slice_micros());
        let (runs, polls) = (state.pending.runs.take(), std::mem::take(&mut state.pending.poll));
        state.flush_planned = false;
        if runs.iter().any(Run::is_urgent) {
            let replicas = self.store.replicas.load(Ordering::Relaxed);
            state.paced_until = Some(Instant::now() + MIN_PACE.max(PACE_PER_REPLICA * replicas));
        }
        let mut call = self.store.invocation(&lua::BREAKER_SYNC, &[&self.redis_key]);
        self.push_common_args(&mut call, state);
        call.arg(runs.len());
        for run in &runs {
            call.arg(run.epoch).arg(run.kind()).arg(run.count).arg(run.age(now, slice_micros));
        }
        state.in_flight += 1;
        let shared = self.clone();
        outgoing.add(call, move |reply| {
            let decoded = shared.apply_reply(&reply);
            match &decoded {
                Some(decoded) => shared.note_probes(decoded),
                None => shared.keep_unsent(runs, polls, &reply),
            }
            shared.call_finished(decoded.is_none());
        });
    }

    /// Lets the next call ask for a probe, if the reply of a poll shows that one is free.
    fn note_probes(&self, reply: &BreakerReply) {
        let mut state = self.state.lock();
        if reply.tail.first().is_some_and(|probes| *probes < i64::from(state.spec.half_open_max_calls)) {
            state.no_probe_until = Time::ZERO;
        }
    }

    /// Keeps what a failed request carried: outcomes that were not sent are sent later, or counted by the twin while it
    /// decides. Outcomes that may have been counted already are not sent twice.
    fn keep_unsent(&self, runs: Vec<Run>, polls: bool, reply: &ScriptResult) {
        if self.is_degraded() {
            self.count_in_twin(&runs);
        } else if *reply == Err(Failure::NotSent) {
            let mut state = self.state.lock();
            state.pending.runs.put_back(runs);
            state.pending.poll |= polls;
        }
    }

    /// Puts back the override that Redis has lost or has not received yet.
    fn fill_override(self: &Arc<Self>, outgoing: &mut Outgoing, state: &mut State) {
        let now = self.store.clock.now();
        state.stop_putting_back();
        let Some(entry) = state.claimed_override(now).map(|entry| entry.text(now)) else { return };
        let mut call = self.store.invocation(&lua::BREAKER_FORCE, &[&self.redis_key]);
        self.push_common_args(&mut call, state);
        call.arg(entry).arg(0);
        state.in_flight += 1;
        let shared = self.clone();
        outgoing.add(call, move |reply| {
            let failed = shared.apply_reply(&reply).is_none();
            if failed {
                shared.state.lock().put_back_override(shared.store.clock.now());
            }
            shared.call_finished(failed);
        });
    }

    fn fill_callers(
        self: &Arc<Self>,
        outgoing: &mut Outgoing,
        state: &mut State,
        batch: Arc<AdmitBatch>,
        received: u64,
    ) {
        let requests = batch.close();
        let callers = requests.iter().filter(|request| **request == Request::Admit).count();
        if callers == 0 {
            return; // a probe must not be leased if no caller is left to make it
        }
        state.in_flight += 1;
        let mut call = self.store.invocation(&lua::BREAKER_ADMIT, &[&self.redis_key]);
        self.push_common_args(&mut call, state);
        let (decided, step) = state.ramp.as_mut().map_or((0, 0), LocalRamp::report);
        call.arg(callers).arg(self.store.owner).arg(received).arg(decided).arg(step);
        let steps = state.spec.ramp.map_or(0, |ramp| u64::from(ramp.steps));
        let shared = self.clone();
        outgoing.add_waiting(batch.opened, call, move |reply| {
            let failed = shared.complete_batch(&batch, &requests, steps, &reply);
            shared.call_finished(failed);
        });
    }

    /// Decodes and applies a reply that no caller waits for.
    fn apply_reply(&self, reply: &ScriptResult) -> Option<BreakerReply> {
        let reply = BreakerReply::of(reply.as_ref().ok()?)?;
        self.apply(reply.snapshot, &reply.entry, &reply.transitions, Provenance::Reply);
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
        if let Some(published) = reply.published {
            self.store.push_health.published(&self.store.observers, published);
        }
    }

    /// Counts one call as finished. After the last one, sends what was queued meanwhile; what has failed waits for the
    /// next caller or round.
    fn call_finished(self: &Arc<Self>, failed: bool) {
        let (now, bad_news) = {
            let mut state = self.state.lock();
            state.in_flight = state.in_flight.saturating_sub(1);
            state.failed |= failed;
            if state.in_flight > 0 {
                return;
            }
            let failed = std::mem::take(&mut state.failed);
            let settled = !failed && !state.pending.settled.is_empty();
            (settled || !state.batches.is_empty(), !failed && state.pending.runs.any_urgent())
        };
        if now {
            self.enqueue(Urgency::Caller);
        } else if bad_news {
            self.send_bad_news();
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
        if state.puts_back(self.store.clock.now()) {
            self.fill_override(outgoing, state);
        }
        if !state.pending.settled.is_empty() {
            self.fill_settled(outgoing, state);
        }
        if !state.pending.runs.is_empty() || state.pending.poll {
            self.fill_runs(outgoing, state);
        }
        // Only the first batch gets leases again that were not received: the second one would get those of the first.
        let mut received = state.received_leases;
        for batch in batches {
            self.fill_callers(outgoing, state, batch, received);
            received = EVERY_LEASE;
        }
    }
}

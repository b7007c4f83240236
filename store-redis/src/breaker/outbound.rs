//! The outbound queue of a breaker: overrides first, then settled probes, then outcomes in order, then the callers that wait
//! for admission.
//!
//! Successes are kept here until there is bad news, or the fleet is asked for evidence: a breaker whose calls all succeed
//! costs Redis nothing. Outcomes are sent with a number, and those whose reply was lost are sent again under theirs, so
//! that Redis counts each once. If bad news would trip a breaker of several replicas, Redis asks all of them for what
//! they know (`breaker_evidence.lua`): each answers after a random wait, and the replica that sent the bad news comes back to
//! close the call, because a script has no timer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::breaker::{Phase, Sample, Successes};
use phalanx_core::clock::Time;
use phalanx_core::estimate::ring::SLICES;
use phalanx_core::event::EventKind;
use phalanx_core::kind::Outcome;
use phalanx_lua as lua;
use tokio::time::{Instant, sleep_until};

use super::codec::{BreakerReply, phase_number};
use super::inbound::LocalRamp;
use super::overrides::NO_ENTRY;
use super::{AdmitBatch, Provenance, Request, Shared, State};
use crate::dispatcher::{BatchSource, Outgoing, ScriptResult, Urgency};
use crate::invocation::Invocation;
use crate::keys::{Key, Keys};

/// Bad news that follows other bad news waits for this long, or for this long for each replica and each breaker that it has
/// bad news of: all of them together send at most two thousand requests a second, a tenth of what Redis can do.
const MIN_PACE: Duration = Duration::from_millis(10);
const PACE: Duration = Duration::from_micros(500);
const MAX_PACE: Duration = Duration::from_millis(500);

/// Over how long the replicas spread their answers to a call for evidence, as in `breaker_evidence.lua`.
const MIN_ANSWER_SPAN: Duration = Duration::from_millis(5);
const ANSWER_PACE: Duration = Duration::from_micros(100);
const MAX_ASKED: u32 = 64;
/// The round trip of the replica that answers last.
const ANSWER_SLACK: Duration = Duration::from_millis(5);

pub(crate) fn answer_span(asked: u32) -> Duration {
    MIN_ANSWER_SPAN.max(ANSWER_PACE.saturating_mul(asked.min(MAX_ASKED)))
}

/// Higher than any lease.
const EVERY_LEASE: u64 = (1 << 53) - 1;

impl Shared {
    /// Queues successes that the fast path has summed up.
    pub(super) fn add_successes(&self, state: &mut State, successes: Successes, now: Time) {
        let Some(last_known) = &state.last_known else { return };
        let epoch = last_known.snapshot.epoch;
        if successes.belong_to(epoch) {
            let (count, slice) = (successes.count, successes.slice);
            let end_of_slice = slice.saturating_add(1).saturating_mul(self.fast_path.slice_micros()) - 1;
            let last = now.min(Time::from_micros(end_of_slice));
            let start_of_slice = Time::from_micros(slice.saturating_mul(self.fast_path.slice_micros()));
            let run = Run::successes(epoch, count, slice, state.drained_at.max(start_of_slice).min(last), last);
            state.own_window.count_successes(now, &run);
            state.pending.runs.push(run);
        }
    }

    /// Drains the fast path into the queue, so that its successes are sent before what happens next.
    pub(super) fn drain_fast_path(&self, state: &mut State, now: Time) {
        for successes in self.fast_path.drain(now) {
            self.add_successes(state, successes, now);
        }
        state.drained_at = now;
        state.pending.forget_old(self.fast_path.slice_of(now), SLICES as u64);
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

    /// One round of the sync loop: sends what is due. Good news stays here.
    pub(crate) fn tick(self: &Arc<Self>) {
        self.used.store(false, Ordering::Relaxed);
        let now = self.store.clock.now();
        let mut state = self.state.lock();
        self.retire_twin(&mut state, now);
        self.drain_fast_path(&mut state, now);
        state.own_window.forget_unneeded(now);
        let due = state.pending.is_due() || state.puts_back(now);
        drop(state);
        if due && !self.is_degraded() {
            self.enqueue(Urgency::Background);
        }
    }

    /// Polls the state and sends everything that is pending: a change was missed, or this replica leaves.
    pub(crate) fn poll(self: &Arc<Self>) {
        self.state.lock().pending.poll = true;
        self.tick();
    }

    /// Answers a call for evidence after a random wait, so that the answers of a fleet do not arrive at once.
    pub(crate) fn answer_call(self: &Arc<Self>, call: u64, asked: u32) {
        self.state.lock().answers_call = call;
        let wait = self.store.rng.between(Duration::ZERO, answer_span(asked));
        self.flush_after(Instant::now() + wait);
    }

    /// Sends all outcomes at this moment.
    fn flush_after(self: &Arc<Self>, at: Instant) {
        let weak = Arc::downgrade(self);
        self.store.dispatcher(self.redis_key.slot).spawn(async move {
            sleep_until(at).await;
            if let Some(shared) = weak.upgrade()
                && !shared.is_degraded()
            {
                shared.state.lock().pending.asked = true;
                shared.enqueue(Urgency::Caller);
            }
        });
    }

    /// Whether other replicas were asked for evidence and this replica comes back for their answers.
    pub(crate) fn waits_for_evidence(&self) -> bool {
        self.state.lock().closes_call
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

    /// Builds a call of a script on this breaker and the log of its partition.
    pub(super) fn invocation(&self, script: &'static lua::Script) -> Invocation {
        self.store.invocation(script, &[&self.redis_key, self.log()])
    }

    fn log(&self) -> &Key {
        &self.store.logs[usize::from(self.redis_key.partition) % self.store.logs.len()]
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
        let mut call = self.invocation(&lua::BREAKER_SETTLE);
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
        let now = self.store.clock.now();
        let polls = state.pending.poll || state.pending.asked;
        let (replicas, live) = (self.store.replicas.load(Ordering::Relaxed), self.store.shares.live());
        state.own_window.begin(now, &state.spec, state.pending.runs.iter());
        let request = state.pending.take_request(now);
        state.flush_planned = false;
        if request.iter().any(|(_, run)| run.is_urgent()) {
            let troubled = self.store.troubled.note(&mut state.troubled_in);
            let pace = PACE.saturating_mul(replicas).saturating_mul(troubled).clamp(MIN_PACE, MAX_PACE);
            state.paced_until = Some(Instant::now() + pace);
        }
        let evidence = Keys::evidence(&self.redis_key);
        let mut call = self.store.invocation(&lua::BREAKER_SYNC, &[&self.redis_key, self.log(), &evidence]);
        self.push_common_args(&mut call, state);
        let answer_time = self.store.background.changes.heard_within(&self.store) + answer_span(live) + ANSWER_SLACK;
        let answers = std::mem::take(&mut state.answers_call);
        call.arg(live)
            .arg(answer_time.as_micros() as u64)
            .arg(answers)
            .arg(state.own_window.text(now))
            .arg(request.len());
        for (number, run) in &request {
            call.arg(number).arg(run.epoch).arg(run.kind()).arg(run.count).arg(run.age(now)).arg(run.span());
        }
        state.in_flight += 1;
        let shared = self.clone();
        outgoing.add(call, move |reply| {
            let decoded = shared.apply_reply(&reply);
            match &decoded {
                Some(decoded) => shared.after_sync(decoded, live),
                None => shared.keep_unsent(request, polls),
            }
            shared.call_finished(decoded.is_none());
        });
    }

    /// Lets the next call ask for a probe, if the reply shows that one is free, and comes back to close a call for evidence
    /// that this replica has opened: when all can have answered, and when their time is over. The tail of the reply is
    /// `probes, left, opened, odd`.
    fn after_sync(self: &Arc<Self>, reply: &BreakerReply, live: u32) {
        let [probes, left, opened, odd, ..] = reply.tail[..] else { return };
        let now = self.store.clock.now();
        let mut state = self.state.lock();
        let still_closed = state.last_known.is_some_and(|known| known.snapshot.phase == Phase::Closed);
        let alone_for = if odd == 1 && still_closed { self.open_alone(&mut state, now) } else { None };
        if probes < i64::from(state.spec.half_open_max_calls) {
            state.no_probe_until = Time::ZERO;
        }
        let left = u64::try_from(left).ok().map(Duration::from_micros);
        let comes_back_in = match left {
            Some(left) if opened == 1 => Some(left.min(answer_span(live) + ANSWER_SLACK)),
            Some(left) if state.closes_call => Some(left),
            _ => None,
        };
        state.closes_call = comes_back_in.is_some();
        drop(state);
        if let Some(break_for) = alone_for {
            self.emit_odd(break_for);
        }
        if let Some(wait) = comes_back_in {
            self.flush_after(Instant::now() + wait);
        }
    }

    /// Keeps what a failed request carried: outcomes are sent again, under their numbers if they may have been counted, or
    /// counted by the twin while it decides.
    fn keep_unsent(&self, request: Vec<(u64, Run)>, polls: bool) {
        if self.is_degraded() {
            let runs: Vec<Run> = request.into_iter().map(|(_, run)| run).collect();
            return self.count_in_twin(&runs);
        }
        let mut state = self.state.lock();
        state.pending.poll |= polls;
        state.pending.keep_unconfirmed(request);
    }

    /// Puts back the override that Redis has lost or has not received yet.
    fn fill_override(self: &Arc<Self>, outgoing: &mut Outgoing, state: &mut State) {
        let now = self.store.clock.now();
        state.stop_putting_back();
        let Some(entry) = state.claimed_override(now).map(|entry| entry.text(now)) else { return };
        let mut call = self.invocation(&lua::BREAKER_FORCE);
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
        let mut call = self.invocation(&lua::BREAKER_ADMIT);
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
        if state.pending.is_due() {
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

/// Runs in one call of `breaker_sync.lua`; the rest is sent with the next round trip.
const MAX_RUNS_PER_CALL: usize = 128;
/// Ends of probes queued at most; there are at most 100 leases at a time.
const MAX_QUEUED_SETTLED: usize = 1_024;
/// Runs queued at most. Above that, an outcome is added to the last run of the same epoch and kind, whatever its slice.
const MAX_QUEUED_RUNS: usize = 1_024;

/// What has not been sent yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) runs: Runs,
    /// Runs that were sent without a reply, under the number of their request.
    unconfirmed: Vec<(u64, Run)>,
    /// The number of the last request.
    last_number: u64,
    /// The latency quantile over its threshold, or within it again, has to be sent in the next round.
    quantile_changed: bool,
    /// The last quantile that this replica has observed was over its threshold.
    quantile_over: bool,
    /// Redis has asked for what this replica knows.
    pub(super) asked: bool,
    pub(super) settled: Vec<Settled>,
    /// Poll the state even if there is nothing else to send.
    pub(super) poll: bool,
}

impl Pending {
    pub(super) const fn is_empty(&self) -> bool {
        !self.has_news() && !self.poll && !self.asked
    }

    /// Returns whether anything would be lost if it were not sent.
    pub(super) const fn has_news(&self) -> bool {
        !self.runs.0.is_empty() || !self.settled.is_empty() || !self.unconfirmed.is_empty()
    }

    /// Returns whether there is more than good news, so that the next round has to send it.
    pub(super) fn is_due(&self) -> bool {
        let bad_news = self.runs.any_urgent() || self.quantile_changed || !self.unconfirmed.is_empty();
        bad_news || !self.settled.is_empty() || self.poll || self.asked
    }

    /// Takes all runs, if some are bad news.
    pub(super) fn take_bad_news(&mut self) -> Vec<Run> {
        if !self.runs.any_urgent() && self.unconfirmed.is_empty() {
            return Vec::new();
        }
        let unconfirmed = std::mem::take(&mut self.unconfirmed).into_iter().map(|(_, run)| run);
        unconfirmed.chain(std::mem::take(&mut self.runs.0)).collect()
    }

    /// Notes the latency quantile. Only one that is over its threshold, or the first one that no longer is, is news.
    pub(super) fn observe_quantile(&mut self, over: bool, now: Time) {
        self.runs.0.retain(|run| !run.kind.is_quantile());
        self.runs.push(Run::quantile(over, now));
        self.quantile_changed |= over || self.quantile_over;
        self.quantile_over = over;
    }

    /// Takes the runs of the next request, with their numbers: first those whose reply was lost, then as many of the others as fit.
    pub(super) fn take_request(&mut self, now: Time) -> Vec<(u64, Run)> {
        self.last_number = now.as_micros().max(self.last_number + 1);
        (self.poll, self.asked, self.quantile_changed) = (false, false, false);
        let mut request = std::mem::take(&mut self.unconfirmed);
        let runs = self.runs.take(MAX_RUNS_PER_CALL.saturating_sub(request.len()));
        request.extend(runs.into_iter().map(|run| (self.last_number, run)));
        request
    }

    /// Keeps runs whose reply was lost.
    pub(super) fn keep_unconfirmed(&mut self, mut request: Vec<(u64, Run)>) {
        request.append(&mut self.unconfirmed);
        self.unconfirmed = request;
    }

    /// Forgets good news that has left a window of this many slices, except the latest: it ends failures in a row.
    pub(super) fn forget_old(&mut self, slice: u64, slices: u64) {
        let latest = self.runs.0.iter().rposition(|run| run.kind == OutcomeCode::Success);
        let mut index = 0;
        self.runs.0.retain(|run| {
            let keeps = run.kind != OutcomeCode::Success || run.slice + slices > slice || Some(index) == latest;
            index += 1;
            keeps
        });
    }

    /// Puts back ends of probes whose request may have been lost: a lease is settled once, so they can be sent again.
    /// Those of an earlier epoch, and of a lease that has expired, would change nothing.
    pub(super) fn put_back_settled(&mut self, mut settled: Vec<Settled>, epoch: u64, now: Time) {
        settled.retain(|one| one.epoch >= epoch && now < one.expires);
        settled.append(&mut self.settled);
        settled.truncate(MAX_QUEUED_SETTLED);
        self.settled = settled;
    }
}

/// Consecutive outcomes of one kind, epoch and slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) epoch: u64,
    kind: OutcomeCode,
    pub(super) count: u64,
    /// The slice of the window, on this replica's clock.
    slice: u64,
    /// When the first and the last outcome ended, on this replica's clock; of successes, between which moments they did.
    first: Time,
    last: Time,
}

/// The outcome codes of the scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum OutcomeCode {
    Success = 0,
    SlowSuccess = 1,
    Failure = 2,
    SlowFailure = 3,
    QuantileWithin = 4,
    QuantileOver = 5,
    Neutral = 6,
}

impl OutcomeCode {
    const fn of(outcome: Outcome, slow: bool) -> Self {
        match (outcome, slow) {
            (Outcome::Success, false) => Self::Success,
            (Outcome::Success, true) => Self::SlowSuccess,
            (Outcome::Failure, false) => Self::Failure,
            (Outcome::Failure, true) => Self::SlowFailure,
            (Outcome::Neutral | Outcome::Cancelled, _) => Self::Neutral,
        }
    }

    const fn is_urgent(self) -> bool {
        matches!(self, Self::SlowSuccess | Self::Failure | Self::SlowFailure)
    }

    const fn is_quantile(self) -> bool {
        matches!(self, Self::QuantileWithin | Self::QuantileOver)
    }

    const fn is_slow(self) -> bool {
        matches!(self, Self::SlowSuccess | Self::SlowFailure)
    }

    const fn outcome(self) -> Option<Outcome> {
        match self {
            Self::Success | Self::SlowSuccess => Some(Outcome::Success),
            Self::Failure | Self::SlowFailure => Some(Outcome::Failure),
            Self::QuantileWithin | Self::QuantileOver | Self::Neutral => None,
        }
    }
}

impl Run {
    pub(super) const fn outcome(epoch: u64, outcome: Outcome, slow: bool, slice: u64, now: Time) -> Option<Self> {
        match OutcomeCode::of(outcome, slow) {
            OutcomeCode::Neutral => None,
            kind => Some(Self { epoch, kind, count: 1, slice, first: now, last: now }),
        }
    }

    /// Successes of a slice, none of them before `first` or after `last`.
    pub(super) const fn successes(epoch: u64, count: u64, slice: u64, first: Time, last: Time) -> Self {
        Self { epoch, kind: OutcomeCode::Success, count, slice, first, last }
    }

    pub(super) const fn kind(&self) -> u8 {
        self.kind as u8
    }

    /// The slice and the number of successes, if it is good news.
    pub(super) fn good_news(&self) -> Option<(u64, u64)> {
        (self.kind == OutcomeCode::Success).then_some((self.slice, self.count))
    }

    pub(super) const fn is_urgent(&self) -> bool {
        self.kind.is_urgent()
    }

    const fn quantile(over: bool, now: Time) -> Self {
        let kind = if over { OutcomeCode::QuantileOver } else { OutcomeCode::QuantileWithin };
        Self { epoch: 0, kind, count: 0, slice: 0, first: now, last: now }
    }

    /// Expands the run into single samples with their epoch, at most `max`.
    pub(super) fn samples(&self, slow: Duration, max: u64) -> impl Iterator<Item = (u64, Sample)> {
        let latency = if self.kind.is_slow() { slow } else { Duration::ZERO };
        let (epoch, count) = (self.epoch, self.count.min(max));
        self.kind
            .outcome()
            .into_iter()
            .flat_map(move |outcome| (0..count).map(move |_| (epoch, Sample { outcome, latency })))
    }

    /// How long ago the last outcome ended, in microseconds.
    pub(super) fn age(&self, now: Time) -> u64 {
        now.since(self.last).as_micros() as u64
    }

    /// How long before the last outcome the first one ended, in microseconds.
    pub(super) fn span(&self) -> u64 {
        self.last.since(self.first).as_micros() as u64
    }
}

/// Runs in the order of their outcomes.
#[derive(Debug, Default)]
pub(super) struct Runs(Vec<Run>);

impl Runs {
    /// Adds a run. Returns whether it must be sent at once.
    pub(super) fn push(&mut self, run: Run) -> bool {
        let full = self.0.len() >= MAX_QUEUED_RUNS;
        let alike = |last: &Run| last.epoch == run.epoch && last.kind == run.kind && (last.slice == run.slice || full);
        let existing = if full { self.0.iter_mut().rev().find(|last| alike(last)) } else { self.0.last_mut() };
        match existing.filter(|last| alike(last)) {
            Some(last) => {
                last.count = last.count.saturating_add(run.count);
                last.last = last.last.max(run.last);
            }
            None if full => {}
            None => self.0.push(run),
        }
        run.kind.is_urgent()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.0.iter()
    }

    pub(super) fn any_urgent(&self) -> bool {
        self.0.iter().any(Run::is_urgent)
    }

    /// Takes at most this many.
    fn take(&mut self, most: usize) -> Vec<Run> {
        let rest = self.0.split_off(self.0.len().min(most));
        std::mem::replace(&mut self.0, rest)
    }
}

/// The outcome of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) epoch: u64,
    pub(super) lease: u64,
    kind: OutcomeCode,
    /// When the lease has expired in any case, on this replica's clock.
    expires: Time,
}

impl Settled {
    pub(super) const fn new(epoch: u64, lease: u64, outcome: Outcome, slow: bool, expires: Time) -> Self {
        Self { epoch, lease, kind: OutcomeCode::of(outcome, slow), expires }
    }

    pub(super) const fn kind(&self) -> u8 {
        self.kind as u8
    }

    pub(super) const fn unused(epoch: u64, lease: u64, expires: Time) -> Self {
        Self { epoch, lease, kind: OutcomeCode::Neutral, expires }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(slice: u64, count: usize) -> impl Iterator<Item = Run> {
        (0..count).filter_map(move |_| Run::outcome(1, Outcome::Failure, false, slice, Time::ZERO))
    }

    #[test]
    fn a_request_without_a_reply_is_repeated_under_its_number_before_the_next() {
        let mut pending = Pending::default();
        failures(1, 1).for_each(|run| {
            pending.runs.push(run);
        });
        let first = pending.take_request(Time::from_micros(7));
        pending.keep_unconfirmed(first.clone());
        assert!(pending.is_due() && pending.has_news());
        failures(2, 1).for_each(|run| {
            pending.runs.push(run);
        });
        let second = pending.take_request(Time::from_micros(7));
        assert_eq!(second.iter().map(|(number, run)| (*number, run.slice)).collect::<Vec<_>>(), [(7, 1), (8, 2)]);
        assert!(!pending.has_news());
    }

    #[test]
    fn good_news_is_kept_for_a_window_and_the_latest_for_longer() {
        let mut pending = Pending::default();
        (1..=3).for_each(|slice| {
            pending.runs.push(Run::successes(1, 1, slice, Time::ZERO, Time::ZERO));
        });
        assert!(!pending.is_due() && pending.has_news());
        pending.forget_old(12, 10);
        assert_eq!(pending.runs.0.iter().map(|run| run.slice).collect::<Vec<_>>(), [3]);
        pending.forget_old(100, 10);
        assert_eq!(pending.runs.0.len(), 1);
    }

    #[test]
    fn a_quantile_within_its_threshold_is_news_only_after_one_over_it() {
        let mut pending = Pending::default();
        let due = [false, true, true, false, false].map(|over| {
            pending.observe_quantile(over, Time::ZERO);
            let due = pending.is_due();
            pending.take_request(Time::ZERO);
            due
        });
        assert_eq!(due, [false, true, true, true, false]);
    }

    #[test]
    fn the_end_of_a_probe_is_kept_until_its_lease_or_its_epoch_is_over() {
        let time = Time::from_micros;
        let mut pending = Pending::default();
        let ends = [(6, 1, 100), (7, 2, 100), (7, 3, 50), (8, 4, 100)];
        let ends = ends.map(|(epoch, lease, expires)| Settled::unused(epoch, lease, time(expires)));
        pending.settled.push(Settled::unused(8, 5, time(100)));
        pending.put_back_settled(ends.to_vec(), 7, time(50));
        let leases: Vec<_> = pending.settled.iter().map(|one| one.lease).collect();
        assert_eq!(leases, [2, 4, 5]);
    }
}

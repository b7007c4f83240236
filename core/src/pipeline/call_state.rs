//! The state of one call: what it holds, its present attempt, and what is noted about it.
//!
//! ```text
//!   CallState
//!     ├─ held      gate ticket · permits · bulkhead slot · admission of the breaker · guards   given back exactly once
//!     ├─ attempt   number · limit · start and end                                              reset for every attempt
//!     └─ notes     attempts · outcome · stage · code · source · …                              the decision record
//!
//!   call_state/gate.rs           enters and leaves the drain gate; cancellation by a drain
//!   call_state/admission.rs      asks deadline, rate limit, breaker or throttle, and guards
//!   call_state/bulkhead_slot.rs  takes a slot of the bulkhead, or waits for one
//!   call_state/fleet_slot.rs     takes a slot of the fleet
//!   call_state/settlement.rs     records one outcome with every stage that admitted the call
//! ```
//!
//! Everything a stage hands out is kept in `held` and given back exactly once: by [`CallState::settle_attempt`] and
//! [`CallState::settle_call`] when there is an answer, and by `Drop` when there is none (a rejection by a later stage, a
//! caller that dropped the future, a panic). The state is filled in place and never moved: moving it would cost as much
//! as the rest of a call.

mod admission;
mod bulkhead_slot;
mod fleet_slot;
mod gate;
mod settlement;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use self::bulkhead_slot::BulkheadSlot;
use super::CallOptions;
use super::cost::PaidCost;
use super::limits::HeldSet;
use super::stages::{Circuit, Stages};
use super::trace::Trace;
use crate::breaker::{Ticket, Transition};
use crate::clock::Time;
use crate::context::{self, CallTags, Context};
use crate::decision::{Decision, Verdict};
use crate::drain::GateTicket;
use crate::error::Error;
use crate::event::EventKind;
use crate::key::LimitName;
use crate::kind::{Kind, Outcome};
use crate::policy::Stage;
use crate::rate_limit::Level;
use crate::rejection::{Rejection, RejectionCode, Source, UNKNOWN};
use crate::retry::nested::Mark;
use crate::store::{Store, Withdrawal};

/// Whether a call may continue with the next stage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Continue,
    /// Continue after this delay.
    Wait(Duration),
    /// Rejected; [`CallState::rejection`] is the reason.
    Reject,
    /// The reply has to be awaited: from the store, or from the queue of the bulkhead.
    Await,
}

impl Step {
    #[inline]
    pub(super) fn or_wait(self, wait: Duration) -> Self {
        if self == Self::Continue && !wait.is_zero() { Self::Wait(wait) } else { self }
    }
}

/// The stage that watches outcomes and admitted the call: exactly one outcome is recorded for it.
#[derive(Clone, Copy)]
enum AdmittedBy {
    None,
    Breaker(Ticket),
    /// At this time.
    Throttle(Time),
}

/// One call under way.
pub(crate) struct CallState<'a, S: Store> {
    pub(super) stages: &'a Stages<S>,
    pub(super) context: Context,
    /// Whether the context is tighter than the task's, so that the operation must run with it bound.
    pub(super) binds_context: bool,
    cost: u32,
    /// The call's own tags.
    pub(super) tags: &'a CallTags<'a>,
    /// The operation may be started once: no retry, no hedge.
    pub(super) once: bool,
    needs_clock: bool,
    /// Whether the exact latency is needed, to the microsecond.
    pub(super) needs_latency: bool,
    /// The call's spans, if it is traced.
    pub(crate) trace: Trace,
    held: Held<'a, S>,
    pub(super) attempt: AttemptState,
    pub(super) notes: Notes,
}

/// What the stages handed out and get back.
struct Held<'a, S: Store> {
    gate_ticket: GateTicket,
    /// Permits of the rate limit, given back unless the operation starts.
    permits: u32,
    /// The time the permits are for, on the clock of the state that granted them, and that state.
    permits_due: Time,
    permits_source: Source,
    /// Whether permits were granted: a call that was admitted without, because the store is away, has nothing to settle.
    was_granted: bool,
    /// Permits of several limits, held or spent, instead of those of one.
    set: Option<HeldSet<'a, S>>,
    bulkhead_slot: BulkheadSlot,
    /// Whether the call has a slot of the fleet; only beside one of the bulkhead.
    fleet_slot: bool,
    admitted_by: AdmittedBy,
    /// The mark of a retry in the fleet's budget, put back unless the retry starts.
    retry_mark: Option<Withdrawal>,
    /// How many guards have admitted the call, and the present attempt.
    call_guards: u16,
    attempt_guards: u16,
    /// The `Finished` event has not been emitted yet.
    unreported: bool,
    /// The caller has dropped the future.
    caller_gone: bool,
}

/// The attempt being admitted or under way.
pub(super) struct AttemptState {
    /// From 1; 0 before the first.
    number: u32,
    /// How long it may run.
    pub(super) limit: Option<Duration>,
    /// Whether the limit is the caller's deadline rather than the policy's timeout.
    pub(super) limited_by_deadline: bool,
    /// When the walk looks at it again: at its limit, or earlier to start a hedge.
    pub(super) wake_after: Option<Duration>,
    pub(super) started: Time,
    pub(super) ended: Time,
    /// Set while the operation's own code runs: a drop meanwhile is its panic, not a caller that left.
    running: AtomicBool,
    /// Ended by an injected error, not by its limit.
    #[cfg(feature = "chaos")]
    pub(super) fault_injected: bool,
    /// Left behind by nested calls that gave up.
    pub(super) nested: Mark,
}

/// What is noted for the decision record and for the answer.
pub(super) struct Notes {
    started: Time,
    /// How often the operation was started.
    pub(super) attempts: u32,
    /// How many hedges were started, and whether one of them answered.
    pub(super) hedges: u32,
    pub(super) hedge_won: bool,
    probe: bool,
    /// Retries were exhausted or not allowed: a policy around this one should not retry either.
    pub(super) gave_up: bool,
    /// The outcome of the last attempt.
    outcome: Option<Outcome>,
    pub(super) kind: Option<Kind>,
    /// Whether that outcome is the call's too: no other attempt follows.
    pub(super) decided: bool,
    pub(super) stage: Option<Stage>,
    source: Source,
    /// The limit that rejected the call, or that has the fewest permits left, if the policy has several.
    pub(super) limit: LimitName,
    /// The code of the last rejection and its retry-after in microseconds; meaningful after a rejection only.
    code: RejectionCode,
    retry_after: u64,
    /// What the rate limit's bucket held; a price of zero without a rate limit.
    pub(super) level: Level,
}

#[cfg(feature = "chaos")]
impl Notes {
    /// Notes the failure of an attempt that chaos injected: by none of the stages.
    #[cold]
    pub(super) fn reject_injected(&mut self) {
        self.stage = None;
        (self.code, self.retry_after, self.source) = (RejectionCode::InjectedFault, UNKNOWN, Source::Local);
    }
}

impl<'a, S: Store> CallState<'a, S> {
    #[inline(always)] // otherwise it is built elsewhere and moved
    pub(super) fn new(stages: &'a Stages<S>, options: &'a CallOptions<'a>) -> Self {
        let needs_clock = stages.needs_clock || options.recorded;
        let now = if needs_clock { stages.clock.now() } else { Time::ZERO };
        let trace = Trace::begin(&stages.span_names);
        Self {
            stages,
            context: options.context,
            binds_context: false,
            cost: options.cost,
            tags: &options.tags,
            once: options.once,
            needs_clock,
            needs_latency: stages.needs_latency || options.recorded,
            held: Held {
                gate_ticket: GateTicket::none(),
                permits: 0,
                permits_due: now,
                permits_source: Source::Local,
                was_granted: false,
                set: None,
                bulkhead_slot: BulkheadSlot::None,
                fleet_slot: false,
                admitted_by: AdmittedBy::None,
                retry_mark: None,
                call_guards: 0,
                attempt_guards: 0,
                unreported: stages.observers.any() || trace.is_live(),
                caller_gone: false,
            },
            trace,
            attempt: AttemptState {
                number: 0,
                limit: None,
                limited_by_deadline: false,
                wake_after: None,
                started: now,
                ended: now,
                running: AtomicBool::new(false),
                #[cfg(feature = "chaos")]
                fault_injected: false,
                nested: Mark::default(),
            },
            notes: Notes {
                started: now,
                attempts: 0,
                hedges: 0,
                hedge_won: false,
                probe: false,
                gave_up: false,
                outcome: None,
                kind: None,
                decided: false,
                stage: None,
                source: Source::Local,
                limit: LimitName::NONE,
                code: RejectionCode::GuardRejected,
                retry_after: UNKNOWN,
                level: Level { units: 0, price: 0 },
            },
        }
    }

    /// Reads the clock, if any stage needs it.
    #[inline(always)]
    pub(super) fn read_clock(&self) -> Time {
        if self.needs_clock { self.stages.clock.now() } else { Time::ZERO }
    }

    /// Restarts the attempt's clock after a wait for admission, which is not part of the latency.
    pub(super) fn restart_clock(&mut self) {
        self.attempt.started = self.read_clock();
        self.attempt.ended = self.attempt.started;
    }

    /// Counts the start of the operation. From here on the permits are spent.
    #[inline(always)]
    pub(super) fn start_attempt(&mut self) {
        self.held.permits = 0;
        if let Some(set) = &mut self.held.set {
            set.is_spent = true;
        }
        self.held.retry_mark = None;
        self.notes.stage = None;
        self.attempt.ended = self.attempt.started;
        self.notes.attempts += 1;
        self.trace.begin_attempt(self.notes.attempts, self.attempt.limit);
        if self.notes.attempts == 1 {
            if self.stages.has_retry_budget {
                self.stages.state.retry_budget.call(self.attempt.started);
            }
            if self.stages.hedge.is_some() {
                self.stages.state.hedge_budget.call(self.attempt.started);
            }
        }
    }

    /// Runs the operation's own code with the call's context bound, inside the span of the attempt.
    #[inline(always)] // every poll goes through here
    pub(super) fn run_operation<T>(&self, work: impl FnOnce() -> T) -> T {
        self.run_operation_in(&self.trace, work)
    }

    /// As [`run_operation`](Self::run_operation), inside the span of a hedge.
    #[inline(always)]
    pub(super) fn run_operation_in<T>(&self, trace: &Trace, work: impl FnOnce() -> T) -> T {
        let _in_span = trace.enter();
        let bound = || match self.binds_context {
            false => work(),
            true => context::bind(self.context, work),
        };
        self.attempt.running.store(true, Ordering::Relaxed);
        let done = self.attempt.nested.during(bound);
        self.attempt.running.store(false, Ordering::Relaxed);
        done
    }

    /// Notes a rejection by one of the stages.
    #[inline]
    pub(super) fn reject(&mut self, stage: Stage, code: RejectionCode) {
        self.notes.stage = Some(stage);
        (self.notes.code, self.notes.retry_after, self.notes.source) = (code, UNKNOWN, Source::Local);
    }

    /// Returns the last rejection, of the call or of its last attempt.
    #[inline]
    pub(super) fn rejection<E>(&self) -> Error<E> {
        Error::Rejected(self.reason())
    }

    #[inline]
    pub(super) fn reason(&self) -> Rejection {
        let Notes { stage, code, retry_after, source, limit, .. } = self.notes;
        let limit = if stage == Some(Stage::RateLimit) { limit } else { LimitName::NONE };
        Rejection::by(self.stages.name, code, retry_after, source).by_limit(limit)
    }

    /// Whether the call has spent permits: it ran, and was not admitted without because the store is away.
    pub(crate) const fn has_paid(&self) -> bool {
        self.held.was_granted && self.notes.attempts > 0
    }

    /// Settles the cost of a call that has spent permits; none lets the estimate stand.
    pub(crate) fn settle_cost(&self, actual: Option<u32>) {
        let Held { permits_due: due, permits_source: source, .. } = self.held;
        let (stages, Some(actual)) = (self.stages, actual) else { return };
        if let Some(limit) = &stages.rate_limit {
            PaidCost { cost: self.cost, due, source }.settle(&stages.store, &limit.bucket, actual);
        }
        if let Some(set) = &self.held.set {
            set.paid(self.cost, source).for_each(|(bucket, paid)| paid.settle(&stages.store, bucket, actual));
        }
    }

    /// Takes out the permits that the call holds, so that they are not given back, and ends it without a report.
    pub(super) fn take_permits(&mut self) -> Vec<(Arc<S::Bucket>, PaidCost)> {
        self.held.unreported = false;
        let Held { permits_due: due, permits_source: source, .. } = self.held;
        if let Some(set) = self.held.set.take() {
            return set.paid(self.cost, source).map(|(bucket, paid)| (bucket.clone(), paid)).collect();
        }
        let paid = PaidCost { cost: std::mem::take(&mut self.held.permits), due, source };
        self.stages.rate_limit.iter().map(|limit| (limit.bucket.clone(), paid)).collect()
    }

    /// Returns how long the present attempt took.
    #[inline(always)]
    pub(super) fn latency(&self) -> Duration {
        self.attempt.ended.since(self.attempt.started)
    }

    /// Returns the kind of failure that a call with this result ended in.
    #[inline(always)]
    pub(crate) fn failure_kind<T, E>(&self, result: &Result<T, Error<E>>) -> Option<Kind> {
        let rejection = result.as_ref().err().and_then(Error::rejection);
        rejection.map(Rejection::kind).or(self.notes.kind)
    }

    /// Whether retries were exhausted or not allowed, so that a policy around this one should not retry either.
    #[inline(always)]
    pub(crate) const fn gave_up(&self) -> bool {
        self.notes.gave_up
    }

    #[inline]
    pub(super) fn emit_transition(&self, change: Option<Transition>) {
        if let Some(change) = change {
            self.emit(EventKind::Transition(change));
        }
    }

    pub(super) fn emit(&self, kind: EventKind<'_>) {
        let _in_call = self.trace.enter_call();
        self.stages.observers.emit(&self.stages.key, kind);
    }

    /// Returns the decision record of the call so far.
    pub(crate) fn decision(&self, rejection: Option<&Rejection>) -> Decision {
        let notes = &self.notes;
        Decision {
            verdict: if notes.attempts > 0 { Verdict::Admitted } else { Verdict::Rejected },
            stage: notes.stage,
            reason: rejection.map(Rejection::code),
            limit: notes.limit.get(),
            source: notes.source,
            remaining: (notes.level.price > 0).then(|| notes.level.permits()),
            retry_after: rejection.and_then(Rejection::retry_after),
            policy_version: self.stages.version,
            attempts: notes.attempts,
            hedges: notes.hedges,
            hedge_won: notes.hedge_won,
            probe: notes.probe,
            elapsed: self.attempt.ended.since(notes.started),
            deadline_remaining: if self.needs_latency { self.context.remaining() } else { None },
            degraded: None,
        }
    }

    /// Whether the `Finished` event is still to be emitted.
    #[inline]
    pub(super) const fn is_unreported(&self) -> bool {
        self.held.unreported
    }

    /// Emits the `Finished` event and ends the span, the first time it is called.
    pub(crate) fn report(&mut self, kind: Option<Kind>, decision: &Decision) {
        if std::mem::take(&mut self.held.unreported) {
            let outcome = self.notes.outcome;
            let has_breaker = matches!(self.stages.circuit, Circuit::Breaker { .. });
            self.trace.end(outcome, kind, decision, has_breaker);
            self.emit(EventKind::Finished { outcome, kind, decision });
        }
    }

    /// Holds the permits of several limits until the operation starts.
    pub(super) fn hold_set(&mut self, set: HeldSet<'a, S>, source: Source) {
        self.held.set = Some(set);
        self.held.permits_source = source;
        self.held.was_granted = true;
    }

    /// Returns the cost that the call names.
    pub(super) const fn cost(&self) -> u32 {
        self.cost
    }

    /// Holds the mark of a retry until the retry starts.
    pub(super) const fn hold_retry_mark(&mut self, mark: Withdrawal) {
        self.held.retry_mark = Some(mark);
    }

    /// Puts back the mark of a retry that does not start.
    #[cold]
    fn put_back_retry_mark(&mut self) {
        if let (Some(mark), Some(tally)) = (self.held.retry_mark.take(), &self.stages.retry_tally) {
            self.stages.store.put_back(tally, mark);
        }
    }

    /// Gives back whatever is still held by a call that has no answer.
    #[cold]
    fn release_held(&mut self) {
        let Held { permits, permits_due, permits_source, .. } = self.held;
        if let (Some(limit), 1..) = (&self.stages.rate_limit, permits) {
            self.stages.store.refund(&limit.bucket, permits, permits_due, permits_source);
        }
        if let Some(set) = self.held.set.take().filter(|set| !set.is_spent) {
            self.refund_set(&set, self.cost, permits_source);
        }
        if self.is_unsettled() {
            self.abandon();
        }
    }

    /// Whether a stage that admitted the call, or an observer, still waits for the outcome.
    #[inline(always)]
    const fn is_unsettled(&self) -> bool {
        let held = &self.held;
        let admitted = !matches!((&held.admitted_by, &held.bulkhead_slot), (AdmittedBy::None, BulkheadSlot::None));
        admitted || held.call_guards + held.attempt_guards > 0 || held.unreported
    }
}

impl<S: Store> Drop for CallState<'_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        let holds_set = self.held.set.as_ref().is_some_and(|set| !set.is_spent);
        if self.held.permits > 0 || holds_set || self.is_unsettled() {
            self.release_held();
        }
        if self.held.retry_mark.is_some() {
            self.put_back_retry_mark();
        }
        if self.held.gate_ticket.is_held() {
            self.leave_gate();
        }
    }
}

//! Settlement: exactly one outcome for every stage that admitted the call, innermost first, however the call ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::{AdmittedBy, BulkheadSlot, CallState};
use crate::breaker::{CountBy, Sample, Ticket};
use crate::clock::Time;
use crate::guard::{CallInfo, Guard};
use crate::kind::{Kind, Outcome};
use crate::pipeline::stages::{Circuit, GuardPosition};
use crate::policy::Stage;
use crate::store::{Addition, Store};
use crate::throttle::Acceptance;

impl<'a, S: Store> CallState<'a, S> {
    /// Returns what a guard at this position sees of the call.
    pub(super) fn call_info(&self, position: GuardPosition) -> CallInfo<'a> {
        CallInfo {
            key: &self.stages.key,
            criticality: self.context.criticality(),
            attempt: if position == GuardPosition::Attempts { self.attempt.number } else { 0 },
        }
    }

    /// Numbers the attempt that is about to be admitted.
    #[inline(always)]
    pub(in crate::pipeline) fn number_attempt(&mut self) {
        self.attempt.number = self.notes.attempts + 1;
    }

    /// The first attempt was rejected before it started.
    #[inline]
    pub(in crate::pipeline) fn cancel_first_attempt(&mut self) {
        if self.held.attempt_guards > 0 {
            self.settle_attempt_guards(Outcome::Cancelled);
        }
    }

    /// A retry was rejected before it started. The attempt before it was the last, so the record keeps that one's stage.
    #[cold]
    pub(in crate::pipeline) fn cancel_retry(&mut self, stage_before: Option<Stage>) {
        self.put_back_retry_mark();
        self.notes.stage = stage_before;
        self.attempt.ended = self.read_clock();
        self.settle_attempt_guards(Outcome::Cancelled);
        if self.stages.counts(CountBy::Attempts) {
            self.settle_admission(Outcome::Cancelled);
        }
    }

    /// Records the outcome of an attempt with its guards, and with the breaker if that counts attempts.
    #[inline(always)]
    pub(in crate::pipeline) fn settle_attempt(&mut self, outcome: Outcome, kind: Option<Kind>) {
        self.notes.outcome = Some(outcome);
        self.notes.decided = true;
        self.notes.kind = kind;
        self.trace.end_attempt(outcome, kind);
        if self.held.attempt_guards > 0 {
            self.settle_attempt_guards(outcome);
        }
        if !matches!(self.held.admitted_by, AdmittedBy::None) && self.stages.counts(CountBy::Attempts) {
            self.settle_admission(outcome);
        }
    }

    /// Records the outcome of the call with every stage that admitted it.
    #[inline(always)]
    pub(in crate::pipeline) fn settle_call(&mut self) {
        if !matches!(self.held.admitted_by, AdmittedBy::None) {
            self.settle_admission(self.notes.outcome.unwrap_or(Outcome::Cancelled));
        }
        if !matches!(self.held.bulkhead_slot, BulkheadSlot::None) {
            self.release_bulkhead();
        }
        if self.held.call_guards > 0 {
            self.settle_call_guards(self.notes.outcome.unwrap_or(Outcome::Cancelled));
        }
    }

    /// Whether the call is a probe of a half-open breaker.
    pub(in crate::pipeline) const fn is_probe(&self) -> bool {
        matches!(self.held.admitted_by, AdmittedBy::Breaker(Ticket { lease: Some(_), .. }))
    }

    /// Replaces the attempt's admission by that of the hedge that answered, which is then the one to settle.
    #[cold]
    pub(in crate::pipeline) fn replace_admission(&mut self, ticket: Option<Ticket>) {
        self.held.admitted_by = ticket.map_or(AdmittedBy::None, AdmittedBy::Breaker);
    }

    /// Records an outcome with the breaker or throttle, if it admitted the call and has no outcome yet.
    #[inline]
    pub(in crate::pipeline) fn settle_admission(&mut self, outcome: Outcome) {
        let stages = self.stages;
        match (std::mem::replace(&mut self.held.admitted_by, AdmittedBy::None), &stages.circuit) {
            (AdmittedBy::Breaker(ticket), Circuit::Breaker { breaker, .. }) => {
                let sample = Sample { outcome, latency: self.latency() };
                self.emit_transition(stages.store.record(breaker, self.attempt.ended, ticket, sample));
            }
            (AdmittedBy::Throttle(admitted_at), Circuit::Throttle { tally: Some(tally), .. }) => {
                let acceptance = appetite(outcome, self.notes.kind);
                self.settle_with_fleet(tally, admitted_at, acceptance);
            }
            (AdmittedBy::Throttle(_), _) => {
                if let Some(throttle) = stages.state.throttle.lock().as_mut() {
                    throttle.record(self.attempt.ended, appetite(outcome, self.notes.kind));
                }
            }
            _ => {}
        }
    }

    /// Records the outcome of a call with the fleet's throttle.
    fn settle_with_fleet(&self, tally: &S::Tally, admitted_at: Time, acceptance: Acceptance) {
        let (store, now) = (&self.stages.store, self.attempt.ended);
        match acceptance {
            Acceptance::Accepted => store.add(tally, now, Addition { at: now, calls: 0, marks: 1 }),
            Acceptance::NotAccepted => store.watch(tally, now),
            Acceptance::Unknown => store.add(tally, now, Addition { at: admitted_at, calls: -1, marks: 0 }),
        }
    }

    /// Settles the guards of the attempt, innermost first. Each is counted down before it is called, so that one that
    /// panics is not called again.
    #[cold]
    fn settle_attempt_guards(&mut self, outcome: Outcome) {
        let stages = self.stages;
        while let (Some(guards), 1..) = (&stages.guards, self.held.attempt_guards) {
            self.held.attempt_guards -= 1;
            let info = self.call_info(GuardPosition::Attempts);
            self.settle_guard(guards.of_attempt(self.held.attempt_guards.into()), &info, outcome);
        }
    }

    /// Settles the guards of the call, as [`settle_attempt_guards`](Self::settle_attempt_guards) does.
    #[cold]
    fn settle_call_guards(&mut self, outcome: Outcome) {
        let stages = self.stages;
        while let (Some(guards), 1..) = (&stages.guards, self.held.call_guards) {
            self.held.call_guards -= 1;
            let info = self.call_info(GuardPosition::BeforeRateLimit);
            self.settle_guard(guards.of_call(self.held.call_guards.into()), &info, outcome);
        }
    }

    /// Settles one guard. Its panic reaches the caller; if the caller is gone it is caught, so that the other stages are
    /// still settled.
    fn settle_guard(&self, guard: &dyn Guard, info: &CallInfo<'_>, outcome: Outcome) {
        if self.held.caller_gone {
            let _ = catch_unwind(AssertUnwindSafe(|| guard.settle(info, outcome)));
        } else {
            guard.settle(info, outcome);
        }
    }

    /// Settles a call that will never have an answer: the operation panicked, or the caller dropped the future, perhaps
    /// because of a deadline of its own.
    #[cold]
    pub(super) fn abandon(&mut self) {
        let stages = self.stages;
        self.attempt.ended = stages.clock.now();
        let started = self.notes.attempts > 0;
        let overdue = started && self.context.deadline().is_some_and(|deadline| deadline <= Instant::now());
        let ran_enough = self.attempt.ended.since(self.attempt.started) >= stages.deadline.failure_floor;
        let panicked = self.attempt.running.load(Ordering::Relaxed);
        let undecided = if panicked || overdue && ran_enough { Outcome::Failure } else { Outcome::Cancelled };
        let outcome = self.notes.outcome.filter(|_| self.notes.decided).unwrap_or(undecided);
        self.held.caller_gone = true;
        self.trace.end_attempt(outcome, None);
        if started && !self.notes.decided {
            stages.observe_completion(self.attempt.ended, self.latency(), outcome);
        }
        self.settle_attempt_guards(outcome);
        self.settle_admission(outcome);
        self.release_bulkhead();
        self.settle_call_guards(outcome);
        self.notes.outcome = Some(outcome);
        if self.held.unreported {
            let decision = self.decision(None);
            self.report(self.notes.kind, &decision);
        }
    }
}

/// What an outcome means to the throttle. A rejection by an overloaded dependency counts as declined, although a breaker
/// ignores it.
const fn appetite(outcome: Outcome, kind: Option<Kind>) -> Acceptance {
    match (outcome, kind) {
        (Outcome::Success, _) => Acceptance::Accepted,
        (Outcome::Failure, _) | (Outcome::Neutral, Some(Kind::Throttled)) => Acceptance::NotAccepted,
        (Outcome::Neutral | Outcome::Cancelled, _) => Acceptance::Unknown,
    }
}

//! How a ride is settled: exactly one outcome for everybody who admitted it, innermost first, whatever becomes of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::{Pass, Ride, Seat};
use crate::breaker::{CountBy, Sample, Ticket};
use crate::guard::{CallInfo, Guard};
use crate::kind::{Kind, Outcome};
use crate::pipeline::stages::{Circuit, Place};
use crate::policy::Stage;
use crate::store::Store;
use crate::throttle::Acceptance;

impl<'a, S: Store> Ride<'a, S> {
    pub(super) fn info(&self, place: Place) -> CallInfo<'a> {
        CallInfo {
            key: &self.stages.key,
            criticality: self.context.criticality(),
            attempt: if place == Place::Attempts { self.number } else { 0 },
        }
    }

    /// Another attempt is being prepared.
    #[inline(always)]
    pub(in crate::pipeline) fn prepare_attempt(&mut self) {
        self.number = self.attempts + 1;
    }

    /// It was rejected before it started, and it was the first.
    #[inline]
    pub(in crate::pipeline) fn cancel_attempt_guards(&mut self) {
        if self.attempt_guards > 0 {
            self.settle_attempt_guards(Outcome::Cancelled);
        }
    }

    /// It was rejected before it started: the attempt before it was the last, and the record is of that one.
    #[cold]
    pub(in crate::pipeline) fn cancel_attempt(&mut self, stage: Option<Stage>) {
        self.stage = stage;
        self.ended = self.read_clock();
        self.settle_attempt_guards(Outcome::Cancelled);
        if self.stages.counts(CountBy::Attempts) {
            self.settle_pass(Outcome::Cancelled);
        }
    }

    /// An attempt is over: whoever admitted it is told.
    #[inline(always)]
    pub(in crate::pipeline) fn settle_attempt(&mut self, outcome: Outcome, kind: Option<Kind>) {
        self.outcome = Some(outcome);
        self.decided = true;
        self.kind = kind;
        self.trace.end_attempt(outcome, kind);
        if self.attempt_guards > 0 {
            self.settle_attempt_guards(outcome);
        }
        if !matches!(self.pass, Pass::None) && self.stages.counts(CountBy::Attempts) {
            self.settle_pass(outcome);
        }
    }

    /// The call is over: whoever admitted it is told.
    #[inline(always)]
    pub(in crate::pipeline) fn settle_call(&mut self) {
        if !matches!(self.pass, Pass::None) {
            self.settle_pass(self.outcome.unwrap_or(Outcome::Cancelled));
        }
        if !matches!(self.seat, Seat::None) {
            self.stand_up();
        }
        if self.call_guards > 0 {
            self.settle_call_guards(self.outcome.unwrap_or(Outcome::Cancelled));
        }
    }

    /// Whether it tries out a half-open circuit.
    pub(in crate::pipeline) const fn is_probe(&self) -> bool {
        matches!(self.pass, Pass::Breaker(Ticket { lease: Some(_), .. }))
    }

    /// A copy answers in the attempt's place: its admission is the one that will be settled.
    #[cold]
    pub(in crate::pipeline) fn take_over(&mut self, ticket: Option<Ticket>) {
        self.pass = ticket.map_or(Pass::None, Pass::Breaker);
    }

    #[inline]
    pub(in crate::pipeline) fn settle_pass(&mut self, outcome: Outcome) {
        let stages = self.stages;
        match (std::mem::replace(&mut self.pass, Pass::None), &stages.circuit) {
            (Pass::Breaker(ticket), Circuit::Breaker { breaker, .. }) => {
                let sample = Sample { outcome, latency: self.latency() };
                self.tell_change(stages.store.record(breaker, self.ended, ticket, sample));
            }
            (Pass::Throttle, _) => {
                if let Some(throttle) = stages.kept.throttle.lock().as_mut() {
                    throttle.record(self.ended, appetite(outcome, self.kind));
                }
            }
            _ => {}
        }
    }

    /// Innermost first; each is counted out before it is told, so that one that panics is not told again.
    #[cold]
    fn settle_attempt_guards(&mut self, outcome: Outcome) {
        let stages = self.stages;
        while let (Some(placed), 1..) = (&stages.guards, self.attempt_guards) {
            self.attempt_guards -= 1;
            let info = self.info(Place::Attempts);
            self.tell_guard(placed.of_attempts(self.attempt_guards.into()), &info, outcome);
        }
    }

    #[cold]
    fn settle_call_guards(&mut self, outcome: Outcome) {
        let stages = self.stages;
        while let (Some(placed), 1..) = (&stages.guards, self.call_guards) {
            self.call_guards -= 1;
            let info = self.info(Place::BeforeRateLimit);
            self.tell_guard(placed.of_calls(self.call_guards.into()), &info, outcome);
        }
    }

    /// A guard's panic is the caller's, unless the caller has gone: then everybody else still has to be told.
    fn tell_guard(&self, guard: &dyn Guard, info: &CallInfo<'_>, outcome: Outcome) {
        if self.abandoned {
            let _ = catch_unwind(AssertUnwindSafe(|| guard.settle(info, outcome)));
        } else {
            guard.settle(info, outcome);
        }
    }

    /// There is no answer and there will be none: a panic of the operation, a deadline that somebody else enforced, or
    /// a caller that lost interest.
    #[cold]
    pub(super) fn abandon(&mut self) {
        let stages = self.stages;
        self.ended = stages.clock.now();
        let deadline = self.context.deadline();
        let overdue = self.attempts > 0 && deadline.is_some_and(|deadline| deadline <= Instant::now());
        let ran_enough = self.ended.since(self.now) >= stages.deadline.failure_floor;
        let panicked = self.running.load(Ordering::Relaxed);
        let unheard_of = if panicked || overdue && ran_enough { Outcome::Failure } else { Outcome::Cancelled };
        let outcome = self.outcome.filter(|_| self.decided).unwrap_or(unheard_of);
        self.abandoned = true;
        self.trace.end_attempt(outcome, None); // if one was under way
        if self.attempts > 0 && !self.decided {
            stages.learn_limit(self.ended, self.latency(), outcome);
        }
        self.settle_attempt_guards(outcome);
        self.settle_pass(outcome);
        self.stand_up();
        self.settle_call_guards(outcome);
        self.outcome = Some(outcome);
        if self.untold {
            let decision = self.decision(None);
            self.finish(self.kind, &decision);
        }
    }
}

/// A rejection for load is no accept, whatever the breaker thinks of it.
const fn appetite(outcome: Outcome, kind: Option<Kind>) -> Acceptance {
    match (outcome, kind) {
        (Outcome::Success, _) => Acceptance::Accepted,
        (Outcome::Failure, _) | (Outcome::Neutral, Some(Kind::Throttled)) => Acceptance::NotAccepted,
        (Outcome::Neutral | Outcome::Cancelled, _) => Acceptance::Unknown,
    }
}

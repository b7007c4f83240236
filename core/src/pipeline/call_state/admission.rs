//! Admission: the gate, the deadline, the rate limit, the breaker or throttle, and the guards.

use std::time::Duration;

use tokio::time::Instant;

use super::{AdmittedBy, CallState, Step};
use crate::breaker::Admission;
use crate::clock::Time;
use crate::context::Context;
use crate::event::EventKind;
use crate::pipeline::stages::{Circuit, GuardPosition, RateLimitStage};
use crate::policy::{OnDegraded, Stage};
use crate::rate_limit::Take;
use crate::rejection::{RejectionCode, Source, UNKNOWN};
use crate::store::{AcquireRequest, Addition, AdmitReply, Counts, Grant, Store};
use crate::throttle::{Throttle, ThrottleSpec};

impl<S: Store> CallState<'_, S> {
    /// Passes everything before the rate limit: the drain gate, a lever that forces the route open, the deadline, and the
    /// guards on both sides of it. False if one of them rejects.
    #[inline(always)]
    pub(in crate::pipeline) fn enter_pipeline(&mut self) -> bool {
        let total = self.stages.deadline.total;
        let current = Context::current();
        if !self.enter_gate(current) || self.stages.forced_open && self.reject_forced_open() {
            return false;
        }
        let unbounded = total.is_none() && self.context == Context::EMPTY && current == Context::EMPTY;
        unbounded && self.stages.guards.is_none() || self.check_deadline_and_guards(current, total)
    }

    /// A lever forces the route open. Always true: the call is rejected.
    #[cold]
    fn reject_forced_open(&mut self) -> bool {
        self.notes.stage = None; // the lever is above all stages
        (self.notes.code, self.notes.retry_after, self.notes.source) =
            (RejectionCode::ForcedOpen, UNKNOWN, Source::Forced);
        true
    }

    #[cold]
    fn check_deadline_and_guards(&mut self, current: Context, total: Option<Duration>) -> bool {
        // First, so that guards outside the deadline see the criticality of the task.
        self.binds_context = total.is_some() || self.context != Context::EMPTY;
        self.context = current.tightened_by(self.context);
        let passed = self.ask_guards(GuardPosition::BeforeDeadline)
            && self.check_deadline(total)
            && self.ask_guards(GuardPosition::BeforeRateLimit);
        if passed && self.stages.guards.is_some() {
            // A guard may take its time, and a leased permit is valid until a time.
            self.restart_clock();
        }
        passed
    }

    /// Starts the policy's total time, and rejects a call whose deadline has passed: it must not take anything.
    fn check_deadline(&mut self, total: Option<Duration>) -> bool {
        if let Some(total) = total {
            self.context = self.context.with_timeout(total);
        }
        let late = self.time_left().is_some_and(|left| left.is_zero());
        if late {
            self.reject(Stage::Deadline, RejectionCode::DeadlineExceeded);
        }
        !late
    }

    /// Returns what is left until the deadline, minus the safety margin; none without a deadline.
    #[inline]
    pub(in crate::pipeline) fn time_left(&self) -> Option<Duration> {
        let left = self.context.deadline()?.saturating_duration_since(Instant::now());
        Some(left.saturating_sub(self.stages.deadline.safety_margin))
    }

    /// Returns the request to the rate limit.
    #[inline]
    pub(in crate::pipeline) fn permit_request(&self, limit: &RateLimitStage<S>) -> AcquireRequest {
        let time_left = self.time_left().unwrap_or(Duration::MAX);
        AcquireRequest { cost: self.cost, max_wait: limit.max_wait.min(time_left) }
    }

    /// Acquires the call's permits, if the store can decide without awaiting. A cost that the bucket can never hold is
    /// rejected here, whatever the store would answer.
    #[inline]
    pub(in crate::pipeline) fn acquire_permits(&mut self, limit: &RateLimitStage<S>) -> Step {
        if u64::from(self.cost) > limit.max_cost {
            self.stages.state.rejected.count(&self.stages.key);
            self.reject(Stage::RateLimit, RejectionCode::CostAboveBurst);
            return Step::Reject;
        }
        let request = self.permit_request(limit);
        match self.stages.store.acquire_now(&limit.bucket, self.attempt.started, request) {
            Some(grant) => self.apply_grant(&grant),
            None => Step::Await,
        }
    }

    /// Takes the permits that the rate limit granted, or its rejection.
    #[inline]
    pub(in crate::pipeline) fn apply_grant(&mut self, grant: &Grant) -> Step {
        self.notes.level = grant.left;
        self.note_near_limit(grant);
        match grant.take {
            Take::Granted { wait } => {
                self.held.permits = self.cost;
                self.held.was_granted = true;
                self.held.permits_source = grant.source;
                self.held.permits_due = grant.due;
                self.accept_reply(Stage::RateLimit, grant.source).or_wait(wait)
            }
            Take::Rejected { until } => {
                let step = self.reject_reply(Stage::RateLimit, RejectionCode::RateLimited, until, grant.source);
                if step == Step::Reject {
                    self.stages.state.rejected.count(&self.stages.key);
                }
                step
            }
        }
    }

    /// Emits `near_limit`, if the bucket that decided holds so little. A block of leased permits, or a replica's share
    /// without Redis, says nothing about the limit.
    #[inline]
    fn note_near_limit(&self, grant: &Grant) {
        if let Some(limit) = &self.stages.rate_limit
            && grant.left.units <= limit.near
            && matches!(grant.source, Source::Fleet | Source::Local)
            && self.stages.observers.any()
        {
            self.emit_near_limit(limit, grant);
        }
    }

    #[cold]
    fn emit_near_limit(&self, limit: &RateLimitStage<S>, grant: &Grant) {
        if self.stages.state.claim_near_limit(self.attempt.started, limit.per) {
            self.emit(EventKind::NearLimit { remaining: grant.left.permits(), burst: limit.max_cost });
        }
    }

    /// Asks the breaker or the throttle, if it can decide without awaiting.
    #[inline(always)]
    pub(in crate::pipeline) fn ask_breaker(&mut self) -> Step {
        let stages = self.stages;
        match stages.circuit_for(self.notes.attempts) {
            Circuit::None => Step::Continue,
            Circuit::Throttle { spec, tally } => self.ask_throttle(spec, tally.as_deref()),
            Circuit::Breaker { breaker, .. } => match stages.store.admit_now(breaker, self.attempt.started) {
                Some(reply) => self.apply_admit_reply(&reply),
                None => Step::Await,
            },
        }
    }

    /// Takes the admission of the breaker, or its rejection.
    #[inline]
    pub(in crate::pipeline) fn apply_admit_reply(&mut self, reply: &AdmitReply) -> Step {
        match reply.admission {
            Admission::Admitted(ticket) => {
                self.held.admitted_by = AdmittedBy::Breaker(ticket);
                self.notes.probe |= ticket.lease.is_some();
                self.accept_reply(Stage::Circuit, reply.source)
            }
            Admission::Rejected { code, until } => self.reject_reply(Stage::Circuit, code, until, reply.source),
        }
    }

    /// The store admits the call. A degraded decision is rejected all the same if the policy fails closed.
    #[inline]
    pub(in crate::pipeline) fn accept_reply(&mut self, stage: Stage, source: Source) -> Step {
        if source == Source::Degraded && self.stages.on_degraded == OnDegraded::Closed {
            self.reject(stage, RejectionCode::StoreUnavailable);
            self.notes.source = source;
            return Step::Reject;
        }
        if self.notes.source != Source::Degraded {
            self.notes.source = source;
        }
        Step::Continue
    }

    /// The store rejects the call. A degraded decision is overruled if the policy fails open.
    #[inline]
    pub(in crate::pipeline) fn reject_reply(
        &mut self,
        stage: Stage,
        code: RejectionCode,
        until: Time,
        source: Source,
    ) -> Step {
        if source == Source::Degraded && self.stages.on_degraded != OnDegraded::Local {
            return self.accept_reply(stage, source);
        }
        self.reject(stage, code);
        self.notes.retry_after = until.micros_from(self.attempt.started);
        self.notes.source = source;
        Step::Reject
    }

    /// Asks the throttle, which decides by what this process knows: of its own calls, or of the fleet's.
    fn ask_throttle(&mut self, spec: &ThrottleSpec, tally: Option<&S::Tally>) -> Step {
        let (stages, now) = (self.stages, self.attempt.started);
        let admitted = match tally {
            None => {
                let mut throttle = stages.state.throttle.lock();
                let throttle = throttle.get_or_insert_with(|| Throttle::new(spec));
                throttle.admit(now, spec, stages.state.rng.unit())
            }
            Some(tally) => self.ask_throttle_of_fleet(spec, tally, now),
        };
        if admitted {
            self.held.admitted_by = AdmittedBy::Throttle(now);
            Step::Continue
        } else {
            self.reject(Stage::Circuit, RejectionCode::AdaptiveThrottle);
            Step::Reject
        }
    }

    /// Asks the throttle that the fleet shares. Never waits: a shed call only makes the store watch the fleet's counts.
    fn ask_throttle_of_fleet(&self, spec: &ThrottleSpec, tally: &S::Tally, now: Time) -> bool {
        let stages = self.stages;
        let Counts { calls, marks } = stages.store.sum(tally, now);
        let admitted = stages.state.rng.unit() >= spec.shedding(calls, marks);
        stages.store.add(tally, now, Addition { at: now, calls: 1, marks: 0 });
        if !admitted {
            stages.store.watch(tally, now);
        }
        admitted
    }

    /// Asks the custom guards at a position, outermost first. False if one rejects.
    #[inline(always)]
    pub(in crate::pipeline) fn ask_guards(&mut self, position: GuardPosition) -> bool {
        self.stages.guards.is_none() || self.ask_each_guard(position)
    }

    #[cold]
    fn ask_each_guard(&mut self, position: GuardPosition) -> bool {
        let stages = self.stages;
        let Some(guards) = &stages.guards else { return true };
        for guard in guards.at(position) {
            if let Err(rejection) = guard.admit(&self.call_info(position)) {
                let notes = &mut self.notes;
                (notes.code, notes.retry_after, notes.source) =
                    (rejection.code(), rejection.wait(), rejection.source());
                return false;
            }
            match position {
                GuardPosition::Attempts => self.held.attempt_guards += 1,
                _ => self.held.call_guards += 1,
            }
        }
        true
    }
}

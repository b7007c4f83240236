//! How a ride is admitted: it takes the answers of gate, rate limit, circuit and guards, and notes what they gave.

use std::time::Duration;

use tokio::time::Instant;

use super::{Pass, Ride, Step};
use crate::breaker::Admission;
use crate::clock::Time;
use crate::context::Context;
use crate::pipeline::stages::{Circuit, Place, RateLimit};
use crate::policy::{OnDegraded, Stage};
use crate::rate_limit::Take;
use crate::rejection::{RejectionCode, Source, UNKNOWN};
use crate::store::{AcquireRequest, AdmitReply, Grant, Store};
use crate::throttle::{Throttle, ThrottleSpec};

impl<S: Store> Ride<'_, S> {
    /// Comes in by the gate, unless an operator lets nobody in, takes the caller's time into account, and asks the
    /// outermost guards.
    #[inline(always)]
    pub(in crate::pipeline) fn passes_gate(&mut self) -> bool {
        let total = self.stages.deadline.total;
        let current = Context::current();
        if !self.comes_in(current) || self.stages.shut && self.is_shut_out() {
            return false;
        }
        let plain = total.is_none() && self.context == Context::EMPTY && current == Context::EMPTY;
        (plain || self.is_in_time(current, total)) && self.passes_guards(Place::BeforeRateLimit)
    }

    /// An operator lets nobody in.
    #[cold]
    fn is_shut_out(&mut self) -> bool {
        self.stage = None; // before all stages
        (self.code, self.wait, self.source) = (RejectionCode::ForcedOpen, UNKNOWN, Source::Override);
        true
    }

    #[cold]
    fn is_in_time(&mut self, current: Context, total: Option<Duration>) -> bool {
        self.binds = total.is_some() || self.context != Context::EMPTY;
        self.context = current.tightened_by(self.context);
        if let Some(total) = total {
            self.context = self.context.with_timeout(total);
        }
        let late = self.time_left().is_some_and(|left| left.is_zero());
        if late {
            self.reject(Stage::Deadline, RejectionCode::DeadlineExceeded);
        }
        !late
    }

    /// What is left of the caller's time, minus the margin kept for the way home.
    #[inline]
    pub(in crate::pipeline) fn time_left(&self) -> Option<Duration> {
        let left = self.context.deadline()?.saturating_duration_since(Instant::now());
        Some(left.saturating_sub(self.stages.deadline.safety_margin))
    }

    /// What the rate limit is asked for.
    #[inline]
    pub(in crate::pipeline) fn ask(&self, limit: &RateLimit<S>) -> AcquireRequest {
        let patience = self.time_left().unwrap_or(Duration::MAX);
        AcquireRequest { cost: self.cost, max_wait: limit.max_wait.min(patience) }
    }

    /// Takes the call's permits if that can be decided without waiting.
    #[inline]
    pub(in crate::pipeline) fn takes_now(&mut self, limit: &RateLimit<S>) -> Step {
        let ask = self.ask(limit);
        match self.stages.store.acquire_now(&limit.bucket, self.now, ask) {
            Some(grant) => self.takes(&grant),
            None => Step::AskStore,
        }
    }

    /// Takes the rate limit's answer.
    #[inline]
    pub(in crate::pipeline) fn takes(&mut self, grant: &Grant) -> Step {
        self.left = grant.left;
        match grant.take {
            Take::Granted { wait } => {
                self.permits = self.cost;
                self.granted_by = grant.source;
                self.due = if wait.is_zero() { self.now } else { self.now.after(wait) };
                self.accepts(Stage::RateLimit, grant.source).or_wait(wait)
            }
            Take::Rejected { until } => {
                self.declines(Stage::RateLimit, RejectionCode::RateLimited, until, grant.source)
            }
        }
    }

    /// Asks the circuit, if it can answer without waiting.
    #[inline(always)]
    pub(in crate::pipeline) fn passes_now(&mut self) -> Step {
        let stages = self.stages;
        match stages.circuit_for(self.attempts) {
            Circuit::None => Step::Go,
            Circuit::Throttle(spec) => self.passes_throttle(spec),
            Circuit::Breaker { breaker, .. } => match stages.store.admit_now(breaker, self.now) {
                Some(answer) => self.passes(&answer),
                None => Step::AskStore,
            },
        }
    }

    /// Takes the circuit's answer.
    #[inline]
    pub(in crate::pipeline) fn passes(&mut self, answer: &AdmitReply) -> Step {
        match answer.admission {
            Admission::Admitted(ticket) => {
                self.pass = Pass::Breaker(ticket);
                self.probe |= ticket.lease.is_some();
                self.accepts(Stage::Circuit, answer.source)
            }
            Admission::Rejected { code, until } => self.declines(Stage::Circuit, code, until, answer.source),
        }
    }

    /// A store said yes. If it is only its twin's word, the policy may want no decision made on that.
    #[inline]
    fn accepts(&mut self, stage: Stage, source: Source) -> Step {
        if source == Source::Degraded && self.stages.on_degraded == OnDegraded::Closed {
            self.reject(stage, RejectionCode::StoreUnavailable);
            self.source = source;
            return Step::Stop;
        }
        if self.source != Source::Degraded {
            self.source = source;
        }
        Step::Go
    }

    /// A store said no. If it is only its twin's word, the policy may want the call let through all the same.
    #[inline]
    fn declines(&mut self, stage: Stage, code: RejectionCode, until: Time, source: Source) -> Step {
        if source == Source::Degraded && self.stages.on_degraded != OnDegraded::Local {
            return self.accepts(stage, source);
        }
        self.reject(stage, code);
        self.wait = until.micros_from(self.now);
        self.source = source;
        Step::Stop
    }

    /// Asks the throttle, whose state is always this process' own.
    fn passes_throttle(&mut self, spec: &ThrottleSpec) -> Step {
        let stages = self.stages;
        let mut throttle = stages.kept.throttle.lock();
        let throttle = throttle.get_or_insert_with(|| Throttle::new(spec));
        if throttle.admit(self.now, spec, stages.kept.rng.unit()) {
            self.pass = Pass::Throttle;
            Step::Go
        } else {
            self.reject(Stage::Circuit, RejectionCode::AdaptiveThrottle);
            Step::Stop
        }
    }

    /// Asks the custom guards of a place, outermost first.
    #[inline(always)]
    pub(in crate::pipeline) fn passes_guards(&mut self, place: Place) -> bool {
        self.stages.guards.is_none() || self.passes_each(place)
    }

    #[cold]
    fn passes_each(&mut self, place: Place) -> bool {
        let stages = self.stages;
        let Some(placed) = &stages.guards else { return true };
        for guard in placed.at(place) {
            if let Err(rejection) = guard.admit(&self.info(place)) {
                (self.code, self.wait, self.source) = (rejection.code(), rejection.wait(), rejection.source());
                return false;
            }
            match place {
                Place::Attempts => self.attempt_guards += 1,
                _ => self.call_guards += 1,
            }
        }
        true
    }
}

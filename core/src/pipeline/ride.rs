//! One call on its way: what it holds, and what is noted about it.
//!
//! Everything a stage gave is written down here and given back exactly once: by [`Ride::settle_attempt`] and
//! [`Ride::settle_call`] when there is an answer, and by dropping the ride when there is none (a refusal further in, a
//! caller that went away at any await, a panic). It is filled in place and never moved, which is half of why a call is
//! cheap.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Terms;
use super::stages::{Circuit, Place, RateLimit, Stages};
use crate::breaker::{Admission, Count, Sample, Ticket, Transition};
use crate::clock::Time;
use crate::context::Context;
use crate::decision::{Decision, Verdict};
use crate::error::Error;
use crate::event::What;
use crate::guard::{CallInfo, Guard};
use crate::kind::{Kind, Outcome};
use crate::policy::{OnDegraded, Stage};
use crate::rate_limit::{Level, Take};
use crate::rejection::{Code, Rejection, Source, UNKNOWN};
use crate::store::{Answer, Ask, Grant, Store};
use crate::throttle::{Appetite, Throttle, ThrottleSpec};

/// Whether a call may go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Go,
    /// After a wait.
    Wait(Duration),
    /// Refused; [`Ride::refusal`] says why.
    Stop,
    /// It takes a round trip to know.
    Ask,
}

impl Step {
    #[inline]
    fn or_wait(self, wait: Duration) -> Self {
        if self == Self::Go && !wait.is_zero() { Self::Wait(wait) } else { self }
    }
}

/// The admission by breaker or throttle: exactly one outcome is recorded for it.
#[derive(Clone, Copy)]
enum Pass {
    None,
    Breaker(Ticket),
    Throttle,
}

/// One call on its way.
pub(crate) struct Ride<'a, S: Store> {
    pub(super) stages: &'a Stages<S>,
    cost: u32,
    pub(super) context: Context,
    /// Whether the context is tighter than the task's, so that the operation must be told.
    pub(super) binds: bool,
    timed: bool,
    /// Whether somebody wants to know how long things take, to the microsecond.
    pub(super) measured: bool,
    /// How long the present attempt may run, and whether that is the caller's time rather than its own.
    pub(super) limit: Option<Duration>,
    pub(super) by_deadline: bool,

    // Held.
    permits: u32,
    pass: Pass,
    call_guards: u16,
    attempt_guards: u16,
    /// Raised while the operation's own code runs: a drop meanwhile is its panic, not a caller that went away.
    running: AtomicBool,
    /// Observers have yet to be told how it ended.
    untold: bool,
    /// Nobody waits for the answer any more.
    abandoned: bool,

    // Noted.
    /// How often the operation was started.
    pub(crate) attempts: u32,
    /// The attempt being admitted or under way, from 1; 0 before the first.
    number: u32,
    pub(crate) kind: Option<Kind>,
    probe: bool,
    /// The last attempt's.
    outcome: Option<Outcome>,
    /// Whether that is the call's too: no other attempt follows.
    pub(super) decided: bool,
    pub(super) stage: Option<Stage>,
    source: Source,
    /// The last refusal's reason and microseconds to wait; meaningful once there was one.
    code: Code,
    wait: u64,
    /// What the rate limit's bucket held; a price of zero where there is none.
    left: Level,
    started: Time,
    /// The start of the present attempt.
    pub(super) now: Time,
    pub(super) ended: Time,
}

impl<'a, S: Store> Ride<'a, S> {
    #[inline]
    pub(crate) fn new(stages: &'a Stages<S>, terms: &Terms) -> Self {
        let timed = stages.timed || terms.recorded;
        let now = if timed { stages.clock.now() } else { Time::ZERO };
        Self {
            stages,
            cost: terms.cost,
            context: terms.context,
            binds: false,
            timed,
            measured: stages.measured || terms.recorded,
            limit: None,
            by_deadline: false,
            permits: 0,
            pass: Pass::None,
            call_guards: 0,
            attempt_guards: 0,
            running: AtomicBool::new(false),
            untold: stages.observers.any(),
            abandoned: false,
            attempts: 0,
            number: 0,
            kind: None,
            probe: false,
            outcome: None,
            decided: false,
            stage: None,
            source: Source::Local,
            code: Code::GuardRefused,
            wait: UNKNOWN,
            left: Level { units: 0, price: 0 },
            started: now,
            now,
            ended: now,
        }
    }

    /// The time, if anybody wants to know it.
    #[inline]
    pub(super) fn read_clock(&self) -> Time {
        if self.timed { self.stages.clock.now() } else { Time::ZERO }
    }

    /// Takes the caller's time into account, and asks the outermost guards.
    #[inline]
    pub(super) fn passes_gate(&mut self) -> bool {
        let total = self.stages.deadline.total;
        let current = Context::current();
        let plain = total.is_none() && self.context == Context::EMPTY && current == Context::EMPTY;
        (plain || self.is_in_time(current, total)) && self.passes_guards(Place::BeforeRateLimit)
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
            self.refuse(Stage::Deadline, Code::DeadlineExceeded);
        }
        !late
    }

    /// What is left of the caller's time, minus the margin kept for the way home.
    #[inline]
    pub(super) fn time_left(&self) -> Option<Duration> {
        let left = self.context.deadline()?.saturating_duration_since(Instant::now());
        Some(left.saturating_sub(self.stages.deadline.safety_margin))
    }

    /// What the rate limit is asked for.
    #[inline]
    pub(super) fn ask(&self, limit: &RateLimit<S>) -> Ask {
        let patience = self.time_left().unwrap_or(Duration::MAX);
        Ask { cost: self.cost, max_wait: limit.max_wait.min(patience) }
    }

    /// Takes the call's permits if that can be decided without waiting.
    #[inline]
    pub(super) fn takes_now(&mut self, limit: &RateLimit<S>) -> Step {
        let ask = self.ask(limit);
        match self.stages.store.acquire_now(&limit.bucket, self.now, ask) {
            Some(grant) => self.takes(&grant),
            None => Step::Ask,
        }
    }

    /// Takes the rate limit's answer.
    #[inline]
    pub(super) fn takes(&mut self, grant: &Grant) -> Step {
        self.left = grant.left;
        match grant.take {
            Take::Granted { wait } => {
                self.permits = self.cost;
                self.accepts(Stage::RateLimit, grant.source).or_wait(wait)
            }
            Take::Refused { until } => self.declines(Stage::RateLimit, Code::RateLimited, until, grant.source),
        }
    }

    /// Asks the circuit, if it can answer without waiting.
    #[inline]
    pub(super) fn passes_now(&mut self) -> Step {
        let stages = self.stages;
        match stages.circuit_for(self.attempts) {
            Circuit::None => Step::Go,
            Circuit::Throttle(spec) => self.passes_throttle(spec),
            Circuit::Breaker { breaker, .. } => match stages.store.admit_now(breaker, self.now) {
                Some(answer) => self.passes(&answer),
                None => Step::Ask,
            },
        }
    }

    /// Takes the circuit's answer.
    #[inline]
    pub(super) fn passes(&mut self, answer: &Answer) -> Step {
        match answer.admission {
            Admission::Admitted(ticket) => {
                self.pass = Pass::Breaker(ticket);
                self.probe |= ticket.lease.is_some();
                self.accepts(Stage::Circuit, answer.source)
            }
            Admission::Refused { code, until } => self.declines(Stage::Circuit, code, until, answer.source),
        }
    }

    /// A store said yes. If it is only its twin's word, the policy may want no decision made on that.
    #[inline]
    fn accepts(&mut self, stage: Stage, source: Source) -> Step {
        if source == Source::Degraded && self.stages.on_degraded == OnDegraded::Closed {
            self.refuse(stage, Code::StoreUnavailable);
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
    fn declines(&mut self, stage: Stage, code: Code, until: Time, source: Source) -> Step {
        if source == Source::Degraded && self.stages.on_degraded != OnDegraded::Local {
            return self.accepts(stage, source);
        }
        self.refuse(stage, code);
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
            self.refuse(Stage::Circuit, Code::AdaptiveThrottle);
            Step::Stop
        }
    }

    /// Asks the custom guards of a place, outermost first.
    #[inline]
    pub(super) fn passes_guards(&mut self, place: Place) -> bool {
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

    fn info(&self, place: Place) -> CallInfo<'a> {
        CallInfo {
            key: &self.stages.key,
            criticality: self.context.criticality(),
            attempt: if place == Place::Attempts { self.number } else { 0 },
        }
    }

    /// Another attempt is being prepared.
    #[inline]
    pub(super) fn prepare_attempt(&mut self) {
        self.number = self.attempts + 1;
    }

    /// It was refused before it started, and it was the first.
    #[inline]
    pub(super) fn cancel_attempt_guards(&mut self) {
        if self.attempt_guards > 0 {
            self.settle_attempt_guards(Outcome::Cancelled);
        }
    }

    /// It was refused before it started: the attempt before it was the last, and the record is of that one.
    #[cold]
    pub(super) fn cancel_attempt(&mut self, stage: Option<Stage>) {
        self.stage = stage;
        self.ended = self.read_clock();
        self.settle_attempt_guards(Outcome::Cancelled);
        if self.stages.counts(Count::Attempts) {
            self.settle_pass(Outcome::Cancelled);
        }
    }

    /// A wait for permits is over.
    pub(super) fn waited(&mut self) {
        self.now = self.read_clock();
        self.ended = self.now;
    }

    /// The operation is about to start: the permits are spent.
    #[inline]
    pub(super) fn depart(&mut self) {
        self.permits = 0;
        self.stage = None;
        self.ended = self.now;
        self.attempts += 1;
        if self.attempts == 1 && self.stages.budgeted {
            self.stages.kept.budget.call(self.now);
        }
    }

    /// Runs the operation's own code.
    #[inline]
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.running.store(true, Ordering::Relaxed);
        let done = work();
        self.running.store(false, Ordering::Relaxed);
        done
    }

    /// An attempt is over: whoever admitted it is told.
    #[inline]
    pub(super) fn settle_attempt(&mut self, outcome: Outcome, kind: Option<Kind>) {
        self.outcome = Some(outcome);
        self.decided = true;
        self.kind = kind;
        if self.attempt_guards > 0 {
            self.settle_attempt_guards(outcome);
        }
        if !matches!(self.pass, Pass::None) && self.stages.counts(Count::Attempts) {
            self.settle_pass(outcome);
        }
    }

    /// The call is over: whoever admitted it is told.
    #[inline]
    pub(super) fn settle_call(&mut self) {
        if !matches!(self.pass, Pass::None) {
            self.settle_pass(self.outcome.unwrap_or(Outcome::Cancelled));
        }
        if self.call_guards > 0 {
            self.settle_call_guards(self.outcome.unwrap_or(Outcome::Cancelled));
        }
    }

    #[inline]
    fn settle_pass(&mut self, outcome: Outcome) {
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

    /// Notes who refused, and why.
    #[inline]
    pub(super) fn refuse(&mut self, stage: Stage, code: Code) {
        self.stage = Some(stage);
        (self.code, self.wait, self.source) = (code, UNKNOWN, Source::Local);
    }

    /// Why the call or its last attempt was refused.
    #[inline]
    pub(super) fn refusal<E>(&self) -> Error<E> {
        Error::Rejected(Rejection::by(self.stages.name, self.code, self.wait, self.source))
    }

    /// How long the present attempt took.
    #[inline]
    pub(super) fn latency(&self) -> Duration {
        self.ended.since(self.now)
    }

    #[inline]
    pub(super) fn tell_change(&self, change: Option<Transition>) {
        if let Some(change) = change {
            self.tell(What::Transition(change));
        }
    }

    pub(super) fn tell(&self, what: What<'_>) {
        self.stages.observers.tell(&self.stages.key, what);
    }

    /// The record of the call so far.
    pub(crate) fn decision(&self, rejection: Option<&Rejection>) -> Decision {
        Decision {
            verdict: if self.attempts > 0 { Verdict::Admitted } else { Verdict::Refused },
            stage: self.stage,
            reason: rejection.map(Rejection::code),
            source: self.source,
            remaining: (self.left.price > 0).then(|| self.left.permits()),
            retry_after: rejection.and_then(Rejection::retry_after),
            policy_version: self.stages.version,
            attempts: self.attempts,
            probe: self.probe,
            elapsed: self.ended.since(self.started),
            degraded: None,
        }
    }

    /// Whether observers have yet to be told how it ended.
    #[inline]
    pub(crate) const fn is_untold(&self) -> bool {
        self.untold
    }

    /// Tells observers how it ended; once.
    pub(crate) fn finish(&mut self, kind: Option<Kind>, decision: &Decision) {
        if std::mem::take(&mut self.untold) {
            let outcome = self.outcome;
            self.tell(What::Finished { outcome, kind, decision });
        }
    }

    /// There is no answer and there will be none: a panic of the operation, a deadline that somebody else enforced, or
    /// a caller that lost interest.
    #[cold]
    fn abandon(&mut self) {
        let stages = self.stages;
        self.ended = stages.clock.now();
        let deadline = self.context.deadline();
        let overdue = self.attempts > 0 && deadline.is_some_and(|deadline| deadline <= Instant::now());
        let ran_enough = self.ended.since(self.now) >= stages.deadline.failure_floor;
        let panicked = self.running.load(Ordering::Relaxed);
        let unheard_of = if panicked || overdue && ran_enough { Outcome::Failure } else { Outcome::Cancelled };
        let outcome = self.outcome.filter(|_| self.decided).unwrap_or(unheard_of);
        self.abandoned = true;
        self.settle_attempt_guards(outcome);
        self.settle_pass(outcome);
        self.settle_call_guards(outcome);
        self.outcome = Some(outcome);
        if self.untold {
            let decision = self.decision(None);
            self.finish(self.kind, &decision);
        }
    }
}

impl<S: Store> Drop for Ride<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if let (Some(limit), 1..) = (&self.stages.rate_limit, self.permits) {
            self.stages.store.refund(&limit.bucket, self.permits);
        }
        let holds_pass = !matches!(self.pass, Pass::None);
        if holds_pass || self.call_guards + self.attempt_guards > 0 || self.untold {
            self.abandon();
        }
    }
}

/// A refusal for load is no accept, whatever the breaker thinks of it.
const fn appetite(outcome: Outcome, kind: Option<Kind>) -> Appetite {
    match (outcome, kind) {
        (Outcome::Success, _) => Appetite::Accepted,
        (Outcome::Failure, _) | (Outcome::Neutral, Some(Kind::Throttled)) => Appetite::Declined,
        (Outcome::Neutral | Outcome::Cancelled, _) => Appetite::Unknown,
    }
}

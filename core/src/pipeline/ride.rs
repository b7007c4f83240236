//! One call on its way: what it holds, and what is noted about it.
//!
//! Everything a stage gave is written down here and given back exactly once: by [`Ride::settle_attempt`] and
//! [`Ride::settle_call`] when there is an answer, and by dropping the ride when there is none (a rejection further in, a
//! caller that went away at any await, a panic). It is filled in place and never moved, which is half of why a call is
//! cheap.

mod admission;
mod drain;
mod seat;
mod settlement;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use self::seat::Seat;
use super::Terms;
use super::stages::{Circuit, Stages};
use super::trace::Trace;
use crate::breaker::{Ticket, Transition};
use crate::clock::Time;
use crate::context::{self, Context};
use crate::decision::{Decision, Verdict};
use crate::drain::Stay;
use crate::error::Error;
use crate::event::EventKind;
use crate::kind::{Kind, Outcome};
use crate::policy::Stage;
use crate::rate_limit::Level;
use crate::rejection::{Rejection, RejectionCode, Source, UNKNOWN};
use crate::retry::nested::Mark;
use crate::store::Store;

/// Whether a call may go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Go,
    /// After a wait.
    Wait(Duration),
    /// Rejected; [`Ride::rejection`] says why.
    Stop,
    /// Somebody has to be asked and waited for: a store, or a queue.
    AskStore,
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
    /// Nothing is tried again, no copy is sent.
    pub(super) once: bool,
    /// Whether somebody wants to know how long things take, to the microsecond.
    pub(super) measured: bool,
    /// How long the present attempt may run, and whether that is the caller's time rather than its own.
    pub(super) limit: Option<Duration>,
    pub(super) by_deadline: bool,
    /// When to look after it: at its limit, or before that to send a copy.
    pub(super) alarm: Option<Duration>,

    // Held.
    /// Being inside the gate.
    stay: Stay,
    permits: u32,
    /// The moment the permits are for, and who gave them.
    due: Time,
    granted_by: Source,
    seat: Seat,
    pass: Pass,
    call_guards: u16,
    attempt_guards: u16,
    /// Raised while the operation's own code runs: a drop meanwhile is its panic, not a caller that went away.
    running: AtomicBool,
    /// Observers have yet to be told how it ended.
    untold: bool,
    /// Nobody waits for the answer any more.
    abandoned: bool,
    /// Its spans, if somebody wants to see them.
    pub(crate) trace: Trace,

    // Noted.
    /// How often the operation was started.
    pub(crate) attempts: u32,
    /// How many copies were sent, and whether one answered.
    pub(super) hedges: u32,
    pub(super) hedge_won: bool,
    /// The attempt being admitted or under way, from 1; 0 before the first.
    number: u32,
    pub(crate) kind: Option<Kind>,
    probe: bool,
    /// What calls inside the present attempt left behind.
    pub(super) mark: Mark,
    /// It tried again in vain, or would have and might not: a policy around it should not either.
    pub(crate) gave_up: bool,
    /// The last attempt's.
    outcome: Option<Outcome>,
    /// Whether that is the call's too: no other attempt follows.
    pub(super) decided: bool,
    pub(super) stage: Option<Stage>,
    source: Source,
    /// The last rejection's reason and microseconds to wait; meaningful once there was one.
    code: RejectionCode,
    wait: u64,
    /// What the rate limit's bucket held; a price of zero where there is none.
    left: Level,
    started: Time,
    /// The start of the present attempt.
    pub(super) now: Time,
    pub(super) ended: Time,
}

impl<'a, S: Store> Ride<'a, S> {
    #[inline(always)] // or it is built elsewhere and moved
    pub(crate) fn new(stages: &'a Stages<S>, terms: &Terms) -> Self {
        let timed = stages.timed || terms.recorded;
        let now = if timed { stages.clock.now() } else { Time::ZERO };
        let trace = Trace::begin(&stages.traced);
        Self {
            stages,
            cost: terms.cost,
            context: terms.context,
            binds: false,
            timed,
            once: terms.once,
            measured: stages.measured || terms.recorded,
            limit: None,
            by_deadline: false,
            stay: Stay::none(),
            alarm: None,
            permits: 0,
            due: now,
            granted_by: Source::Local,
            seat: Seat::None,
            pass: Pass::None,
            call_guards: 0,
            attempt_guards: 0,
            running: AtomicBool::new(false),
            untold: stages.observers.any() || trace.is_live(),
            abandoned: false,
            trace,
            attempts: 0,
            hedges: 0,
            hedge_won: false,
            number: 0,
            kind: None,
            probe: false,
            mark: Mark::default(),
            gave_up: false,
            outcome: None,
            decided: false,
            stage: None,
            source: Source::Local,
            code: RejectionCode::GuardRejected,
            wait: UNKNOWN,
            left: Level { units: 0, price: 0 },
            started: now,
            now,
            ended: now,
        }
    }

    /// The time, if anybody wants to know it.
    #[inline(always)]
    pub(super) fn read_clock(&self) -> Time {
        if self.timed { self.stages.clock.now() } else { Time::ZERO }
    }

    /// A wait for permits or for a store's word is over: it was not the operation's.
    pub(super) fn waited(&mut self) {
        self.now = self.read_clock();
        self.ended = self.now;
    }

    /// The operation is about to start: the permits are spent.
    #[inline(always)]
    pub(super) fn depart(&mut self) {
        self.permits = 0;
        self.stage = None;
        self.ended = self.now;
        self.attempts += 1;
        self.trace.begin_attempt(self.attempts, self.limit);
        if self.attempts == 1 {
            if self.stages.budgeted {
                self.stages.kept.retry_budget.call(self.now);
            }
            if self.stages.hedge.is_some() {
                self.stages.kept.hedge_budget.call(self.now);
            }
        }
    }

    /// Runs the operation's own code, bound to the call's context and inside its span.
    #[inline(always)] // it is the way of every poll
    pub(super) fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        self.inside_of(&self.trace, work)
    }

    /// The same inside the span of one copy.
    #[inline(always)]
    pub(super) fn inside_of<T>(&self, trace: &Trace, work: impl FnOnce() -> T) -> T {
        let _in_span = trace.enter();
        let bound = || match self.binds {
            false => work(),
            true => context::bind(self.context, work),
        };
        self.running.store(true, Ordering::Relaxed);
        let done = self.mark.during(bound);
        self.running.store(false, Ordering::Relaxed);
        done
    }

    /// Notes who rejected, and why.
    #[inline]
    pub(super) fn reject(&mut self, stage: Stage, code: RejectionCode) {
        self.stage = Some(stage);
        (self.code, self.wait, self.source) = (code, UNKNOWN, Source::Local);
    }

    /// Why the call or its last attempt was rejected.
    #[inline]
    pub(super) fn rejection<E>(&self) -> Error<E> {
        Error::Rejected(Rejection::by(self.stages.name, self.code, self.wait, self.source))
    }

    /// How long the present attempt took.
    #[inline(always)]
    pub(super) fn latency(&self) -> Duration {
        self.ended.since(self.now)
    }

    #[inline]
    pub(super) fn tell_change(&self, change: Option<Transition>) {
        if let Some(change) = change {
            self.emit(EventKind::Transition(change));
        }
    }

    pub(super) fn emit(&self, kind: EventKind<'_>) {
        let _in_call = self.trace.enter_call();
        self.stages.observers.emit(&self.stages.key, kind);
    }

    /// The record of the call so far.
    pub(crate) fn decision(&self, rejection: Option<&Rejection>) -> Decision {
        Decision {
            verdict: if self.attempts > 0 { Verdict::Admitted } else { Verdict::Rejected },
            stage: self.stage,
            reason: rejection.map(Rejection::code),
            source: self.source,
            remaining: (self.left.price > 0).then(|| self.left.permits()),
            retry_after: rejection.and_then(Rejection::retry_after),
            policy_version: self.stages.version,
            attempts: self.attempts,
            hedges: self.hedges,
            hedge_won: self.hedge_won,
            probe: self.probe,
            elapsed: self.ended.since(self.started),
            deadline_remaining: if self.measured { self.context.remaining() } else { None },
            degraded: None,
        }
    }

    /// Whether observers have yet to be told how it ended.
    #[inline]
    pub(crate) const fn is_untold(&self) -> bool {
        self.untold
    }

    /// Tells observers how it ended, and writes it on its span; once.
    pub(crate) fn finish(&mut self, kind: Option<Kind>, decision: &Decision) {
        if std::mem::take(&mut self.untold) {
            let outcome = self.outcome;
            let guarded = matches!(self.stages.circuit, Circuit::Breaker { .. });
            self.trace.end(outcome, kind, decision, guarded);
            self.emit(EventKind::Finished { outcome, kind, decision });
        }
    }
}

impl<S: Store> Ride<'_, S> {
    /// Gives back whatever is still held: the call has no answer.
    #[cold]
    fn give_back(&mut self) {
        if let (Some(limit), 1..) = (&self.stages.rate_limit, self.permits) {
            self.stages.store.refund(&limit.bucket, self.permits, self.due, self.granted_by);
        }
        if self.is_unsettled() {
            self.abandon();
        }
    }

    /// Whether somebody who admitted it, or an observer, has yet to learn of its end.
    #[inline(always)]
    const fn is_unsettled(&self) -> bool {
        let holds = !matches!((&self.pass, &self.seat), (Pass::None, Seat::None));
        holds || self.call_guards + self.attempt_guards > 0 || self.untold
    }
}

impl<S: Store> Drop for Ride<'_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.permits > 0 || self.is_unsettled() {
            self.give_back();
        }
        if self.stay.is_held() {
            self.leave();
        }
    }
}

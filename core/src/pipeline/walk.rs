//! The walk of one call through its pipeline: gate, admit, attempt, settle.
//!
//! One straight line: every stage is an `if`, nothing is boxed, nothing is composed per call. The clock is read once
//! before and once after the operation, and only if a stage wants to know.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task;
use std::time::Duration;

use super::race::race;
use super::ride::{Ride, Step};
use super::stages::{Circuit, Place, Stages};
use super::{Current, Terms};
use crate::call::Classifier;
use crate::classify::Class;
use crate::error::Error;
use crate::event::EventKind;
use crate::hedge::HedgeSpec;
use crate::kind::{Kind, Outcome};
use crate::policy::Stage;
use crate::rejection::RejectionCode;
use crate::store::Store;
use crate::timeout::{Elapsed, Timer, poll_within};

/// Without a deadline, a `Retry-After` longer than this is not waited for: the caller gets the error now.
const LONGEST_UNBOUNDED_WAIT: Duration = Duration::from_secs(60);

/// Runs one call and hands the ride and the result to `end`, whose answer is the caller's.
///
/// One flat future on purpose: awaiting one `async fn` inside another moves the inner one's whole state, and moving
/// costs more than most stages do. What does not wait is in [`Ride`].
#[allow(clippy::manual_async_fn)] // an `async fn` would keep its arguments twice
pub(crate) fn walk<'a, S, T, E, F, Fut, C, R>(
    stages: Current<'a, S>,
    terms: &'a Terms,
    classifier: C,
    operation: F,
    end: impl FnOnce(&mut Ride<'_, S>, Result<T, Error<E>>) -> R,
) -> impl Future<Output = R>
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    C: Classifier<T, E>,
{
    async move {
        let stages: &Stages<S> = &stages;
        let mut ride = Ride::new(stages, terms);
        let mut timer = Timer::default(); // one for all that is waited for: a future is moved, and every byte costs
        let result = 'call: {
            // 1 gate: a call that is late already must not take anything from anybody.
            if !ride.passes_gate() {
                break 'call Err(ride.rejection());
            }

            // 2 admit: cheap and certain rejections first, then what has to be held. Whatever a later stage rejects, the
            //   earlier ones get back, because dropping the ride gives it back.
            if let Some(limit) = &stages.rate_limit {
                let mut step = ride.takes_now(limit);
                if step == Step::AskStore {
                    let ask = ride.ask(limit);
                    let within = ride.time_left();
                    let mut asking = pin!(stages.store.acquire(&limit.bucket, ride.now, ask));
                    let poll =
                        |cx: &mut task::Context<'_>| poll_within(&mut timer, within, cx, |cx| asking.as_mut().poll(cx));
                    let grant = poll_fn(poll).await;
                    timer.disarm();
                    ride.waited();
                    step = match grant {
                        Ok(grant) => ride.takes(&grant),
                        Err(Elapsed) => ride.is_late(),
                    };
                }
                if let Step::Wait(wait) = step {
                    ride.waits(&mut timer, wait).await;
                    ride.waited();
                }
                if step == Step::Stop {
                    break 'call Err(ride.rejection());
                }
            }
            if !ride.passes_guards(Place::BeforeBulkhead) {
                break 'call Err(ride.rejection());
            }
            if let Some(slots) = &stages.bulkhead {
                let mut step = ride.enters(slots);
                if step == Step::AskStore {
                    let within = ride.patience();
                    let poll = |cx: &mut task::Context<'_>| {
                        let polled = poll_within(&mut timer, within, cx, |cx| ride.poll_seat(slots, cx));
                        ride.unless_cancelled(polled, cx)
                    };
                    let heard = poll_fn(poll).await;
                    timer.disarm();
                    ride.waited();
                    step = ride.sits_down(slots, heard);
                }
                if step == Step::Stop {
                    break 'call Err(ride.rejection());
                }
            }
            if !ride.passes_guards(Place::BeforeCircuit) {
                break 'call Err(ride.rejection());
            }

            // 3 attempt, as often as the policy says. The circuit is asked for the call, or for each attempt.
            let mut delay = Duration::ZERO;
            let mut last = None;
            loop {
                let stage_before = ride.stage;
                let admitted = {
                    let mut step = ride.passes_now();
                    if let (Step::AskStore, Circuit::Breaker { breaker, .. }) = (step, &stages.circuit) {
                        let within = ride.time_left();
                        let mut asking = pin!(stages.store.admit(breaker, ride.now));
                        let poll = |cx: &mut task::Context<'_>| {
                            poll_within(&mut timer, within, cx, |cx| asking.as_mut().poll(cx))
                        };
                        let answer = poll_fn(poll).await;
                        timer.disarm();
                        ride.waited();
                        step = match answer {
                            Ok((answer, change)) => {
                                ride.tell_change(change);
                                ride.passes(&answer)
                            }
                            Err(Elapsed) => ride.is_late(),
                        };
                    }
                    step == Step::Go && ride.may_attempt()
                };
                if !admitted {
                    break 'call match last {
                        None => {
                            ride.cancel_attempt_guards();
                            Err(ride.rejection())
                        }
                        // The error of the attempt before says more than why there was no other.
                        Some(error) => {
                            ride.cancel_attempt(stage_before);
                            error
                        }
                    };
                }
                ride.depart();

                let (result, next) = {
                    let mut waited = false;
                    let answer = {
                        let mut running = pin!(Some(ride.inside(&operation)));
                        let mut answer = poll_fn(|cx| {
                            // Not by a function that the race would share: with two callers it would not be in line here.
                            let poll = |cx: &mut task::Context<'_>| match running.as_mut().as_pin_mut() {
                                Some(running) => ride.inside(|| running.poll(cx)),
                                None => task::Poll::Pending,
                            };
                            let polled = ride.unless_cancelled(poll_within(&mut timer, ride.alarm, cx, poll), cx);
                            waited |= polled.is_pending();
                            polled
                        })
                        .await;
                        // It takes longer than most: copies race it from here on. Boxed, so that calls which need none
                        // do not carry the room for them.
                        if answer.is_err() && ride.alarm != ride.limit && !ride.is_cancelled() {
                            timer.disarm();
                            let mut race = Box::pin(race(&mut ride, &mut timer, running, &operation, &classifier));
                            answer = poll_fn(|cx| poll_apart(race.as_mut(), cx)).await;
                        }
                        answer
                    };
                    let class = match &answer {
                        Ok(result) => classifier.class(result),
                        Err(Elapsed) => ride.cut_off(),
                    };
                    // A good answer that was there at once ended when it began, unless somebody wants to know exactly.
                    if waited || class.kind.is_some() || ride.measured {
                        ride.ended = ride.read_clock();
                    }
                    ride.read(class, answer.is_err());
                    let next = ride.next_delay(class, delay);
                    match answer {
                        // The way of nearly all calls, and worth a line of its own: the answer is moved once.
                        Ok(Ok(value)) if next.is_none() => {
                            ride.settle_call();
                            return end(&mut ride, Ok(value));
                        }
                        Ok(result) => (result.map_err(Error::Inner), next),
                        Err(Elapsed) => (Err(ride.rejection()), next),
                    }
                };
                timer.disarm();
                let Some(next) = next else { break result };
                (last, delay) = (Some(result), next);
                ride.waits(&mut timer, delay).await;
                ride.now = ride.read_clock();
            }
        };

        // 4 settle.
        ride.settle_call();
        end(&mut ride, result)
    }
}

/// Polls what is rare, out of line: inlined, it would make the walk so large that its common steps are not.
#[cold]
#[inline(never)]
fn poll_apart<Fut: Future>(rare: Pin<&mut Fut>, cx: &mut task::Context<'_>) -> task::Poll<Fut::Output> {
    rare.poll(cx)
}

impl<S: Store> Ride<'_, S> {
    /// Asks whoever admits before an attempt, and sets how long it may take.
    #[inline(always)]
    fn may_attempt(&mut self) -> bool {
        if self.is_cancelled() || self.attempts == 0 && !self.passes_guards(Place::BeforeRetry) {
            return false;
        }
        self.prepare_attempt();
        self.limit = self.stages.timeout;
        if self.context.deadline().is_some() && !self.has_time() {
            return false;
        }
        self.alarm = self.limit;
        if let Some(hedge) = self.stages.hedge.as_ref().filter(|_| !self.once) {
            self.set_alarm(hedge);
        }
        self.passes_guards(Place::Attempts)
    }

    /// Looks after the attempt when a copy is due, if that is before its limit.
    #[inline(never)] // or whoever has no hedge pays for the room it takes
    fn set_alarm(&mut self, hedge: &HedgeSpec) {
        let delay = self.stages.hedge_delay(hedge, self.now);
        if self.limit.is_none_or(|limit| delay < limit) {
            self.alarm = Some(delay);
        }
    }

    /// The attempt gets its own timeout, or what is left of the caller's time if that is less.
    #[cold]
    fn has_time(&mut self) -> bool {
        let left = self.time_left().unwrap_or(Duration::MAX);
        self.by_deadline = self.limit.is_none_or(|limit| left <= limit);
        if self.by_deadline {
            self.limit = Some(left);
        }
        if left.is_zero() {
            self.reject(Stage::Deadline, RejectionCode::DeadlineExceeded);
        }
        !left.is_zero()
    }

    /// The caller's time ran out while a store was being asked.
    #[cold]
    fn is_late(&mut self) -> Step {
        self.reject(Stage::Deadline, RejectionCode::DeadlineExceeded);
        Step::Stop
    }

    /// Reads what an attempt's end means, and tells whoever admitted it.
    #[inline(always)]
    fn read(&mut self, class: Class, cut_off: bool) {
        let cut_by_caller = cut_off && self.by_deadline;
        let outcome = match class.kind {
            None => Outcome::Success,
            // Too short to blame the dependency for it.
            Some(_) if cut_by_caller && self.latency() < self.stages.deadline.failure_floor => Outcome::Neutral,
            Some(kind) => kind.outcome(),
        };
        self.settle_attempt(outcome, class.kind);
        if cut_by_caller {
            // What the caller cut short would look fast in the digest. To the limit it was too slow or says nothing.
            self.stages.learn_limit(self.ended, self.latency(), outcome);
        } else if self.stages.measured {
            self.stages.learn(self.ended, self.latency(), outcome);
        }
    }

    /// The attempt's time ran out: its own, or the caller's.
    #[cold]
    fn cut_off(&mut self) -> Class {
        if self.is_cancelled() {
            self.by_deadline = true; // not the dependency's doing
            return Class::from(RejectionCode::Draining.kind());
        }
        let (stage, code) = if self.by_deadline {
            (Stage::Deadline, RejectionCode::DeadlineExceeded)
        } else {
            self.tell_timeout();
            (Stage::Timeout, RejectionCode::AttemptTimeout)
        };
        self.reject(stage, code);
        Class::from(code.kind())
    }

    #[cold]
    pub(super) fn tell_timeout(&self) {
        let (attempt, limit) = (self.attempts, self.stages.timeout.unwrap_or_default());
        self.emit(EventKind::AttemptTimeout { attempt, limit });
    }

    /// The wait before the next attempt; none if this one is final.
    #[inline(always)]
    fn next_delay(&mut self, class: Class, before: Duration) -> Option<Duration> {
        let kind = class.kind?;
        let spec = self.stages.retry.as_ref().filter(|_| !self.once)?;
        let inside = self.mark.is(kind) && !spec.retry_exhausted;
        if !spec.retry_on.contains(kind) || inside || self.attempts >= spec.max_attempts || self.is_cancelled() {
            self.gave_up = inside || self.attempts > 1;
            return None;
        }
        let next = self.back_off(kind, class.retry_after, before);
        self.gave_up = next.is_none();
        self.mark.wipe();
        next
    }

    #[cold]
    fn back_off(&mut self, kind: Kind, asked_for: Option<Duration>, before: Duration) -> Option<Duration> {
        let stages = self.stages;
        let spec = stages.retry.as_ref()?;
        let delay = spec.backoff.delay_asked(self.attempts, before, asked_for, &stages.kept.rng);
        // A wait that would outlive the caller is pointless: the real error now is worth more.
        let patience = self.time_left().unwrap_or(LONGEST_UNBOUNDED_WAIT.max(spec.backoff.max));
        if delay > patience || delay == patience && self.context.deadline().is_some() {
            self.emit(EventKind::RetryAbandoned { delay });
            return None;
        }
        if let Some(budget) = &spec.budget
            && !stages.kept.retry_budget.withdraw(self.ended, budget)
        {
            self.emit(EventKind::RetryBudgetExhausted);
            return None;
        }
        (self.decided, self.hedge_won) = (false, false);
        self.emit(EventKind::Retry { attempt: self.attempts, delay, kind });
        Some(delay)
    }
}

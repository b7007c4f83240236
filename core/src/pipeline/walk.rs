//! The walk of one call through its stages: gate, admit, attempt, settle, answer.
//!
//! One straight function: every stage is an `if`, nothing is boxed, nothing is composed per call. The clock is read once
//! before and once after the operation, and only if a stage needs it.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task;
use std::time::Duration;

use super::call_state::{CallState, Step};
#[cfg(feature = "chaos")]
use super::chaos::disturb;
use super::race::race;
use super::stages::{Circuit, GuardPosition, Stages};
use super::{CallOptions, Current};
use crate::classify::{Class, Classifier};
use crate::error::Error;
use crate::event::EventKind;
use crate::hedge::HedgeSpec;
use crate::kind::{Kind, Outcome};
use crate::policy::Stage;
use crate::rejection::{Rejection, RejectionCode};
use crate::retry::nested;
use crate::store::Store;
use crate::timeout::{Elapsed, Timer, poll_within};

/// Without a deadline, a `Retry-After` longer than this is not waited for: the caller gets the error now.
const MAX_UNBOUNDED_WAIT: Duration = Duration::from_secs(60);

/// Runs one call and passes its state and result to `end`, which makes the caller's answer.
///
/// One flat future on purpose: awaiting one `async fn` inside another moves the state of the inner one, and that costs
/// more than most stages do. Everything that does not await is a method of [`CallState`].
#[allow(clippy::manual_async_fn)] // an `async fn` would store its arguments twice
pub(crate) fn walk<'a, S, T, E, F, Fut, C, R>(
    stages: Current<'a, S>,
    options: &'a CallOptions<'a>,
    classifier: C,
    operation: F,
    end: impl FnOnce(&mut CallState<'_, S>, Result<T, Error<E>>) -> R,
) -> impl Future<Output = R>
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    C: Classifier<T, E>,
{
    async move {
        let stages: &Stages<S> = &stages;
        let mut call = CallState::new(stages, options);
        let mut timer = Timer::default(); // one for every wait: each further byte of the future is moved with it
        let result = 'call: {
            // 1 gate: a call whose deadline has passed must not take anything.
            if !call.enter_pipeline() {
                break 'call Err(call.rejection());
            }

            // 2 admit: cheap and certain rejections first, then what has to be held. When a later stage rejects, what
            //   the earlier ones handed out is given back by dropping the state.
            if let Some(limit) = &stages.rate_limit {
                let mut step = call.acquire_permits(limit);
                if step == Step::Await {
                    let request = call.permit_request(limit);
                    let within = call.time_left();
                    let mut acquiring = pin!(stages.store.acquire(&limit.bucket, call.attempt.started, request));
                    let poll = |cx: &mut task::Context<'_>| {
                        poll_within(&mut timer, within, cx, |cx| acquiring.as_mut().poll(cx))
                    };
                    let grant = poll_fn(poll).await;
                    timer.disarm();
                    call.restart_clock();
                    step = match grant {
                        Ok(grant) => call.apply_grant(&grant),
                        Err(Elapsed) => call.reject_late(),
                    };
                }
                if let Step::Wait(wait) = step {
                    call.sleep(&mut timer, wait).await;
                    call.restart_clock();
                }
                if step == Step::Reject {
                    break 'call Err(call.rejection());
                }
            } else if let Some(limits) = &stages.limits {
                let step = match call.acquire_limits(limits) {
                    Ok(step) => step,
                    // Boxed, so that calls without several limits do not carry the memory for it.
                    Err(limits) => {
                        let mut acquiring = Box::pin(call.await_limits(&mut timer, limits));
                        poll_fn(|cx| poll_out_of_line(acquiring.as_mut(), cx)).await
                    }
                };
                if let Step::Wait(wait) = step {
                    call.sleep(&mut timer, wait).await;
                    call.restart_clock();
                }
                if step == Step::Reject {
                    break 'call Err(call.rejection());
                }
            }
            if !call.ask_guards(GuardPosition::BeforeBulkhead) {
                break 'call Err(call.rejection());
            }
            if let Some(bulkhead) = &stages.bulkhead {
                let mut step = call.enter_bulkhead(bulkhead);
                if step == Step::Await {
                    let within = call.queue_limit();
                    let poll = |cx: &mut task::Context<'_>| {
                        let polled = poll_within(&mut timer, within, cx, |cx| call.poll_queue(bulkhead, cx));
                        call.unless_cancelled(polled, cx)
                    };
                    let polled = poll_fn(poll).await;
                    timer.disarm();
                    call.restart_clock();
                    step = call.leave_queue(bulkhead, polled);
                }
                if step == Step::Continue
                    && let Some(slots) = stages.fleet_slots.as_deref()
                {
                    step = call.take_fleet_slot(slots);
                    if step == Step::Await {
                        // Boxed, so that calls without a cap of the fleet do not carry the memory for it.
                        let mut waiting = Box::pin(call.await_fleet_slot(&mut timer, slots));
                        step = poll_fn(|cx| poll_out_of_line(waiting.as_mut(), cx)).await;
                    }
                }
                if step == Step::Reject {
                    break 'call Err(call.rejection());
                }
            }
            if !call.ask_guards(GuardPosition::BeforeCircuit) {
                break 'call Err(call.rejection());
            }

            // 3 attempt, up to the policy's number of times. The breaker is asked once for the call, or for each attempt.
            let mut delay = Duration::ZERO;
            let mut last = None;
            loop {
                let stage_before = call.notes.stage;
                let admitted = {
                    let mut step = call.ask_breaker();
                    if let (Step::Await, Circuit::Breaker { breaker, .. }) = (step, &stages.circuit) {
                        let within = call.time_left();
                        let mut admitting = pin!(stages.store.admit(breaker, call.attempt.started));
                        let poll = |cx: &mut task::Context<'_>| {
                            poll_within(&mut timer, within, cx, |cx| admitting.as_mut().poll(cx))
                        };
                        let reply = poll_fn(poll).await;
                        timer.disarm();
                        call.restart_clock();
                        step = match reply {
                            Ok((reply, change)) => {
                                call.emit_transition(change);
                                call.apply_admit_reply(&reply)
                            }
                            Err(Elapsed) => call.reject_late(),
                        };
                    }
                    step == Step::Continue && call.admit_attempt()
                };
                if !admitted {
                    break 'call match last {
                        None => {
                            call.cancel_first_attempt();
                            Err(call.rejection())
                        }
                        // The error of the attempt before is worth more than the reason why there was no other.
                        Some(error) => {
                            call.cancel_retry(stage_before);
                            error
                        }
                    };
                }
                call.start_attempt();

                let (result, next) = {
                    let mut waited = false;
                    #[cfg_attr(not(feature = "chaos"), allow(unused_labels))]
                    let answer = 'attempt: {
                        // A pulled lever injects faults. Out of line and boxed, as the race below.
                        #[cfg(feature = "chaos")]
                        if let Some(chaos) = &stages.chaos {
                            waited = true;
                            let disturbed = disturb(&mut call, &mut timer, chaos, &operation, &classifier);
                            let mut disturbed = Box::pin(disturbed);
                            break 'attempt poll_fn(|cx| poll_out_of_line(disturbed.as_mut(), cx)).await;
                        }
                        let mut running = pin!(Some(call.run_operation(&operation)));
                        let mut answer = poll_fn(|cx| {
                            // Not a function shared with the race: with two callers it would not be inlined here.
                            let poll = |cx: &mut task::Context<'_>| match running.as_mut().as_pin_mut() {
                                Some(running) => call.run_operation(|| running.poll(cx)),
                                None => task::Poll::Pending,
                            };
                            let polled = poll_within(&mut timer, call.attempt.wake_after, cx, poll);
                            let polled = call.unless_cancelled(polled, cx);
                            waited |= polled.is_pending();
                            polled
                        })
                        .await;
                        // The hedge delay is over: hedges race the attempt from here on. Boxed, so that calls without a
                        // hedge do not carry the memory for it.
                        if answer.is_err()
                            && call.attempt.wake_after != call.attempt.limit
                            && !call.reject_if_cancelled()
                        {
                            timer.disarm();
                            let mut race = Box::pin(race(&mut call, &mut timer, running, &operation, &classifier));
                            answer = poll_fn(|cx| poll_out_of_line(race.as_mut(), cx)).await;
                        }
                        answer
                    };
                    let class = match &answer {
                        Ok(result) => classifier.class(result),
                        Err(Elapsed) => call.reject_cut_off(),
                    };
                    // A success that was ready at once ended when it began, unless a stage needs the exact latency.
                    if waited || class.kind.is_some() || call.needs_latency {
                        call.attempt.ended = call.read_clock();
                    }
                    call.record_attempt(class, answer.is_err());
                    let next = call.retry_delay(class, delay);
                    match answer {
                        // Nearly all calls end here, so the answer is moved only once.
                        Ok(Ok(value)) if next.is_none() => {
                            call.settle_call();
                            return end(&mut call, Ok(value));
                        }
                        Ok(result) => (result.map_err(Error::Inner), next),
                        Err(Elapsed) => (Err(call.rejection()), next),
                    }
                };
                timer.disarm();
                let Some(next) = next else { break result };
                (last, delay) = (Some(result), next);
                match stages.retry_tally.as_deref() {
                    None => call.sleep(&mut timer, delay).await,
                    // Boxed, so that calls without a budget of the fleet do not carry the memory for it.
                    Some(tally) => {
                        let granted = {
                            let mut waiting = Box::pin(call.back_off_with_mark(&mut timer, tally, delay));
                            poll_fn(|cx| poll_out_of_line(waiting.as_mut(), cx)).await
                        };
                        if !granted {
                            break last.take().unwrap_or_else(|| Err(call.rejection()));
                        }
                    }
                }
                call.attempt.started = call.read_clock();
            }
        };

        // 4 settle.
        call.settle_call();
        // 5 answer.
        end(&mut call, result)
    }
}

/// The end of a call with default options: reports it and returns its result.
#[inline(always)] // otherwise the answer, just written in pieces, is moved as a whole, which stalls the processor
pub(super) fn end_plain<S: Store, T, E>(
    call: &mut CallState<'_, S>,
    result: Result<T, Error<E>>,
) -> Result<T, Error<E>> {
    let kind = call.failure_kind(&result);
    if call.is_unreported() {
        report_end(call, kind, result.as_ref().err().and_then(Error::rejection));
    }
    nested::note(kind.filter(|_| call.gave_up()));
    result
}

#[inline(never)]
fn report_end<S: Store>(call: &mut CallState<'_, S>, kind: Option<Kind>, rejection: Option<&Rejection>) {
    let decision = call.decision(rejection);
    call.report(kind, &decision);
}

/// Polls a rare future out of line: inlined, it would make the walk so large that its common steps are not.
#[cold]
#[inline(never)]
fn poll_out_of_line<Fut: Future>(rare: Pin<&mut Fut>, cx: &mut task::Context<'_>) -> task::Poll<Fut::Output> {
    rare.poll(cx)
}

impl<S: Store> CallState<'_, S> {
    /// Asks everything that admits an attempt, and sets how long it may take. False if it is rejected.
    #[inline(always)]
    fn admit_attempt(&mut self) -> bool {
        if self.reject_if_cancelled() || self.notes.attempts == 0 && !self.ask_guards(GuardPosition::BeforeRetry) {
            return false;
        }
        self.number_attempt();
        self.attempt.limit = self.stages.timeout;
        if self.context.deadline().is_some() && !self.check_time_left() {
            return false;
        }
        self.attempt.wake_after = self.attempt.limit;
        if let Some(hedge) = self.stages.hedge.as_ref().filter(|_| !self.once) {
            self.wake_for_hedge(hedge);
        }
        self.ask_guards(GuardPosition::Attempts)
    }

    /// Wakes the attempt when its first hedge is due, if that is before its limit.
    #[inline(never)] // inlined, it would enlarge the walk of calls without a hedge
    fn wake_for_hedge(&mut self, hedge: &HedgeSpec) {
        let delay = self.stages.hedge_delay(hedge, self.attempt.started);
        if self.attempt.limit.is_none_or(|limit| delay < limit) {
            self.attempt.wake_after = Some(delay.saturating_sub(self.stages.hedge_lead()));
        }
    }

    /// Limits the attempt to the time left until the deadline. False, and rejected, if there is none.
    #[cold]
    fn check_time_left(&mut self) -> bool {
        let left = self.time_left().unwrap_or(Duration::MAX);
        self.attempt.limited_by_deadline = self.attempt.limit.is_none_or(|limit| left <= limit);
        if self.attempt.limited_by_deadline {
            self.attempt.limit = Some(left);
        }
        if left.is_zero() {
            self.reject(Stage::Deadline, RejectionCode::DeadlineExceeded);
        }
        !left.is_zero()
    }

    /// Rejects a call whose deadline passed while it awaited a store.
    #[cold]
    pub(super) fn reject_late(&mut self) -> Step {
        self.reject(Stage::Deadline, RejectionCode::DeadlineExceeded);
        Step::Reject
    }

    /// Records the end of an attempt with every stage that admitted or measures it.
    #[inline(always)]
    fn record_attempt(&mut self, class: Class, cut_off: bool) {
        let cut_off_by_deadline = cut_off && self.attempt.limited_by_deadline;
        let outcome = match class.kind {
            None => Outcome::Success,
            // It ran too briefly to blame the dependency.
            Some(_) if cut_off_by_deadline && self.latency() < self.stages.deadline.failure_floor => Outcome::Neutral,
            Some(kind) => kind.outcome(),
        };
        self.settle_attempt(outcome, class.kind);
        if cut_off_by_deadline {
            // Its latency is only a lower bound: in the digest it would look fast, so only the limit sees it.
            self.stages.observe_completion(self.attempt.ended, self.latency(), outcome);
        } else if self.stages.needs_latency {
            self.stages.observe_attempt(self.attempt.ended, self.latency(), outcome);
        }
    }

    /// Rejects an attempt that was cut off by its timeout, the deadline or a drain; returns the class of that failure.
    #[cold]
    fn reject_cut_off(&mut self) -> Class {
        if self.reject_if_cancelled() {
            self.attempt.limited_by_deadline = true; // so that the dependency is not blamed
            return Class::from(RejectionCode::Draining.kind());
        }
        #[cfg(feature = "chaos")]
        if std::mem::take(&mut self.attempt.fault_injected) {
            self.attempt.limited_by_deadline = false; // the attempt failed, it was not cut off
            self.notes.reject_injected();
            return Class::from(RejectionCode::InjectedFault.kind());
        }
        let (stage, code) = if self.attempt.limited_by_deadline {
            (Stage::Deadline, RejectionCode::DeadlineExceeded)
        } else {
            self.emit_timeout();
            (Stage::Timeout, RejectionCode::AttemptTimeout)
        };
        self.reject(stage, code);
        Class::from(code.kind())
    }

    #[cold]
    pub(super) fn emit_timeout(&self) {
        let (attempt, limit) = (self.notes.attempts, self.stages.timeout.unwrap_or_default());
        self.emit(EventKind::AttemptTimeout { attempt, limit });
    }

    /// Returns the delay before the next attempt; none if this one was the last.
    #[inline(always)]
    fn retry_delay(&mut self, class: Class, previous: Duration) -> Option<Duration> {
        let kind = class.kind?;
        let spec = self.stages.retry.as_ref().filter(|_| !self.once)?;
        let nested_gave_up = self.attempt.nested.is(kind) && !spec.retry_exhausted;
        let attempts = self.notes.attempts;
        if !spec.retry_on.contains(kind)
            || nested_gave_up
            || attempts >= spec.max_attempts
            || self.reject_if_cancelled()
        {
            self.notes.gave_up = nested_gave_up || attempts > 1;
            return None;
        }
        let next = self.back_off(class.retry_after, previous);
        self.notes.gave_up = next.is_none();
        self.attempt.nested.wipe();
        next
    }

    #[cold]
    fn back_off(&mut self, retry_after: Option<Duration>, previous: Duration) -> Option<Duration> {
        let stages = self.stages;
        let spec = stages.retry.as_ref()?;
        let attempt = self.notes.attempts;
        let delay = spec.backoff.delay_asked(attempt, previous, retry_after, &stages.state.rng);
        // A delay that ends after the deadline is pointless: the caller gets the error now.
        let max_wait = self.time_left().unwrap_or(MAX_UNBOUNDED_WAIT.max(spec.backoff.max));
        if delay > max_wait || delay == max_wait && self.context.deadline().is_some() {
            self.emit(EventKind::RetryAbandoned { delay });
            return None;
        }
        if stages.retry_tally.is_some() {
            return Some(delay); // the fleet's budget is asked during the backoff
        }
        if let Some(budget) = &spec.budget
            && !stages.state.retry_budget.withdraw(self.attempt.ended, budget)
        {
            self.emit(EventKind::RetryBudgetExhausted);
            return None;
        }
        self.note_retry(delay);
        Some(delay)
    }

    /// Notes that another attempt follows after this delay.
    pub(super) fn note_retry(&mut self, delay: Duration) {
        (self.notes.decided, self.notes.hedge_won) = (false, false);
        if let Some(kind) = self.notes.kind {
            self.emit(EventKind::Retry { attempt: self.notes.attempts, delay, kind });
        }
    }
}

//! A hedged attempt: hedges race it, the first answer wins, the others are dropped.
//!
//! The walk comes here when an attempt is still running after the hedge delay. That is the exception, so this code may
//! allocate. The attempt and each hedge have their own timeout, counted from their own start; the caller's deadline ends
//! all of them.
//!
//! * The first answer wins, also a domain answer such as "no such customer": another hedge would get the same.
//! * A failure or timeout is ignored while others run; that of the last one running is the attempt's.
//! * A hedge is started only if the bulkhead has a free slot, the hedge budget allows it and, where the breaker counts
//!   attempts, the breaker admits it; otherwise this attempt gets no more hedges. All of it is given back when the hedge
//!   is over. A budget of the fleet is asked a round trip before the hedge is due; what it grants is put back if the attempt
//!   answers first.
//! * Of the others, those that started before the winner took at least as long as they had run by then, and the digest
//!   records that. Without it slow attempts would never be seen, and the adaptive delay would creep down.

mod hedge_permit;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use self::hedge_permit::HedgePermit;
use super::call_state::CallState;
use super::fleet_budget::BudgetMark;
use crate::classify::{Class, Classifier};
use crate::event::EventKind;
use crate::hedge::HedgeSpec;
use crate::kind::Outcome;
use crate::store::Store;
use crate::timeout::{Elapsed, Timer};

/// Races hedges against an attempt under way, until one of them or the attempt answers.
pub(super) async fn race<S, T, E, F, Fut, C>(
    call: &mut CallState<'_, S>,
    timer: &mut Timer,
    first: Pin<&mut Option<Fut>>,
    operation: &F,
    classifier: &C,
) -> Result<Result<T, E>, Elapsed>
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    C: Classifier<T, E>,
{
    let Some(spec) = call.stages.hedge else { return Err(Elapsed) };
    let mut race = Race::begin(spec, call, first);
    poll_fn(|cx| race.poll(call, timer, operation, classifier, cx)).await
}

struct Race<'p, 'a, S: Store, Fut> {
    spec: HedgeSpec,
    /// The attempt itself; none once it is over.
    first: Pin<&'p mut Option<Fut>>,
    first_ends: Option<Instant>,
    hedges: Vec<Hedge<'a, S, Fut>>,
    /// When the next hedge starts; none if there will be none.
    next_hedge: Option<Instant>,
    /// The mark of the next hedge in the fleet's budget.
    mark: PendingMark<'a, S>,
    started: u32,
    delay: Duration,
    deadline: Option<Instant>,
    /// What the timer is set to.
    wake_at: Option<Instant>,
}

/// The mark of the next hedge, where the fleet shares the budget.
enum PendingMark<'a, S: Store> {
    /// None is needed, or the reply has been taken.
    None,
    /// It is asked for at this time.
    Due(Instant),
    Asked(Pin<Box<dyn Future<Output = BudgetMark<'a, S>> + Send + 'a>>),
    Replied(BudgetMark<'a, S>),
}

impl<'a, S: Store> PendingMark<'a, S> {
    /// Begins for a hedge at this time.
    fn begin(call: &CallState<'a, S>, hedge_at: Instant) -> Self {
        match call.stages.hedge_tally {
            None => Self::None,
            Some(_) => Self::Due(hedge_at.checked_sub(call.stages.hedge_lead()).unwrap_or(hedge_at)),
        }
    }

    /// Asks when it is time, and takes the reply when it is there.
    fn poll(&mut self, call: &CallState<'a, S>, now: Instant, cx: &mut Context<'_>) {
        if matches!(self, Self::Due(due) if *due <= now) {
            let asking = BudgetMark::ask_for_hedge(call.stages, call.read_clock());
            *self = asking.map_or(Self::None, |asking| Self::Asked(Box::pin(asking)));
        }
        if let Self::Asked(asking) = self
            && let Poll::Ready(mark) = asking.as_mut().poll(cx)
        {
            *self = Self::Replied(mark);
        }
    }

    /// Returns when it has to be polled again, unless the reply wakes the task.
    const fn due(&self) -> Option<Instant> {
        match self {
            Self::Due(due) => Some(*due),
            _ => None,
        }
    }

    fn take(&mut self) -> Option<BudgetMark<'a, S>> {
        match std::mem::replace(self, Self::None) {
            Self::Replied(mark) => Some(mark),
            _ => None,
        }
    }
}

struct Hedge<'a, S: Store, Fut> {
    running: Pin<Box<Fut>>,
    ends: Option<Instant>,
    permit: HedgePermit<'a, S>,
}

impl<'p, 'a, S: Store, Fut> Race<'p, 'a, S, Fut> {
    /// Begins when the first hedge is due, or its mark in the fleet's budget is.
    fn begin(spec: HedgeSpec, call: &CallState<'a, S>, first: Pin<&'p mut Option<Fut>>) -> Self {
        let (now, woken_after) = (Instant::now(), call.attempt.wake_after.unwrap_or_default());
        // A runtime that stalled may be later than that.
        let ran = call.read_clock().since(call.attempt.started).max(woken_after);
        let left = |limit: Duration| now.checked_add(limit.saturating_sub(ran));
        let delay = match call.stages.hedge_tally {
            None => woken_after,
            Some(_) => call.stages.hedge_delay(&spec, call.attempt.started).max(woken_after),
        };
        let first_hedge = left(delay).unwrap_or(now);
        Self {
            spec,
            first,
            first_ends: call.stages.timeout.and_then(left),
            hedges: Vec::new(),
            next_hedge: Some(first_hedge),
            mark: PendingMark::begin(call, first_hedge),
            started: 0,
            delay,
            deadline: call.time_left().and_then(|left| now.checked_add(left)),
            wake_at: None,
        }
    }

    fn poll<T, E, F, C>(
        &mut self,
        call: &mut CallState<'a, S>,
        timer: &mut Timer,
        operation: &F,
        classifier: &C,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Result<T, E>, Elapsed>>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        C: Classifier<T, E>,
    {
        loop {
            if let Some(answer) = self.poll_all(call, classifier, cx) {
                return Poll::Ready(Ok(answer));
            }
            let now = Instant::now();
            call.attempt.limited_by_deadline = self.deadline.is_some_and(|deadline| deadline <= now);
            if call.attempt.limited_by_deadline || !self.drop_timed_out(call, now) {
                return Poll::Ready(Err(Elapsed));
            }
            self.mark.poll(call, now, cx);
            let waits_for_mark = matches!(self.mark, PendingMark::Asked(_));
            if !waits_for_mark && self.next_hedge.is_some_and(|next| next <= now) {
                self.start_hedge(call, operation, now);
                continue; // it may be ready at once
            }
            let next_hedge = self.next_hedge.filter(|_| !waits_for_mark);
            let ends = self.hedges.iter().map(|hedge| hedge.ends);
            let ends = ends.chain([self.first_ends, next_hedge, self.mark.due(), self.deadline]);
            let Some(wake_at) = ends.flatten().min() else { return call.unless_cancelled(Poll::Pending, cx) };
            if self.wake_at.replace(wake_at) != Some(wake_at) {
                timer.disarm();
            }
            if timer.poll_after(wake_at.saturating_duration_since(now), cx).is_pending() {
                return call.unless_cancelled(Poll::Pending, cx);
            }
            timer.disarm();
            self.wake_at = None;
        }
    }

    /// Polls the attempt and then its hedges: of two answers at the same time, the attempt's wins.
    fn poll_all<T, E, C>(
        &mut self,
        call: &mut CallState<'a, S>,
        classifier: &C,
        cx: &mut Context<'_>,
    ) -> Option<Result<T, E>>
    where
        Fut: Future<Output = Result<T, E>>,
        C: Classifier<T, E>,
    {
        if let Poll::Ready(answer) = poll_first(call, self.first.as_mut(), cx) {
            let outcome = outcome(classifier.class(&answer));
            if outcome == Outcome::Success || self.hedges.is_empty() {
                return Some(answer); // the call state already describes the attempt
            }
            self.end_first();
            call.settle_first_attempt(outcome);
        }
        let mut index = 0;
        while let Some(hedge) = self.hedges.get_mut(index) {
            let polled = call.run_operation_in(&hedge.permit.trace, || hedge.running.as_mut().poll(cx));
            let Poll::Ready(answer) = polled else {
                index += 1;
                continue;
            };
            let outcome = outcome(classifier.class(&answer));
            let permit = self.hedges.swap_remove(index).permit;
            if outcome == Outcome::Success || self.first.is_none() && self.hedges.is_empty() {
                let losers = self.hedges.iter().map(|hedge| hedge.permit.started);
                call.adopt_hedge(permit, self.first.is_some(), losers);
                call.notes.hedge_won = true;
                return Some(answer);
            }
            permit.settle(outcome);
        }
        None
    }

    fn end_first(&mut self) {
        self.first.set(None);
        self.first_ends = None;
    }

    /// Drops the attempt and the hedges whose timeout is over. False if no other one is left: then the attempt is over.
    fn drop_timed_out(&mut self, call: &mut CallState<'a, S>, now: Instant) -> bool {
        let is_over = |ends: Option<Instant>| ends.is_some_and(|ends| ends <= now);
        if is_over(self.first_ends) && !self.hedges.is_empty() {
            self.end_first();
            call.emit_timeout();
            call.settle_first_attempt(Outcome::Failure);
        }
        while let Some(index) = self.hedges.iter().position(|hedge| is_over(hedge.ends)) {
            let permit = self.hedges.swap_remove(index).permit;
            if self.first.is_none() && self.hedges.is_empty() {
                call.adopt_hedge(permit, false, std::iter::empty());
                return false;
            }
            call.emit_timeout();
            permit.settle(Outcome::Failure);
        }
        !is_over(self.first_ends)
    }

    fn start_hedge<T, E, F>(&mut self, call: &mut CallState<'a, S>, operation: &F, now: Instant)
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.next_hedge = None;
        let mark = self.mark.take();
        let Some(mut permit) = call.admit_hedge(&self.spec, mark) else { return };
        self.started += 1;
        call.emit(EventKind::Hedge { hedge: self.started, delay: self.delay });
        permit.trace = call.trace.begin_hedge(call.notes.attempts, call.stages.timeout, self.started);
        let running = Box::pin(call.run_operation_in(&permit.trace, operation));
        let ends = call.stages.timeout.and_then(|limit| now.checked_add(limit));
        self.hedges.push(Hedge { running, ends, permit });
        if self.started + 1 < self.spec.max_attempts {
            self.delay = call.stages.hedge_delay(&self.spec, call.read_clock());
            self.next_hedge = now.checked_add(self.delay);
            self.mark = self.next_hedge.map_or(PendingMark::None, |next| PendingMark::begin(call, next));
        }
    }
}

/// Polls the attempt itself, unless it is over.
fn poll_first<S: Store, Fut: Future>(
    call: &CallState<'_, S>,
    first: Pin<&mut Option<Fut>>,
    cx: &mut Context<'_>,
) -> Poll<Fut::Output> {
    match first.as_pin_mut() {
        Some(first) => call.run_operation(|| first.poll(cx)),
        None => Poll::Pending,
    }
}

fn outcome(class: Class) -> Outcome {
    class.kind.map_or(Outcome::Success, |kind| kind.outcome())
}

//! A hedged attempt: copies race it, the first answer wins, the rest are dropped.
//!
//! The walk comes here when an attempt is not over after the hedge's delay, so this is the exception and may allocate.
//! Whoever runs has a timeout of his own, from when he was started; the caller's deadline ends them all.
//!
//! * The first answer wins, be it a "no" of the domain: another copy would say the same.
//! * A failure or a timeout of one is waited out while others run; of the last who runs, it is the attempt's.
//! * A copy is sent only if the bulkhead has a slot free, the budget allows it and, where the circuit counts attempts,
//!   the circuit admits it; otherwise this attempt gets no more copies. Each is given back when its copy is over.
//! * Whoever lost after running longer than the winner took at least that long, and is counted so in the digest. Left
//!   out, slow attempts would never be seen and the delay would creep down.

mod hold;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use self::hold::Hold;
use super::ride::Ride;
use crate::call::Classifier;
use crate::classify::Class;
use crate::event::EventKind;
use crate::hedge::HedgeSpec;
use crate::kind::Outcome;
use crate::store::Store;
use crate::timeout::{Elapsed, Timer};

/// Runs copies beside an attempt that is under way, until one of them or the attempt answers.
pub(super) async fn race<S, T, E, F, Fut, C>(
    ride: &mut Ride<'_, S>,
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
    let Some(spec) = ride.stages.hedge else { return Err(Elapsed) };
    let mut race = Race::begin(spec, ride, first);
    poll_fn(|cx| race.poll(ride, timer, operation, classifier, cx)).await
}

struct Race<'p, 'a, S: Store, Fut> {
    spec: HedgeSpec,
    /// The attempt itself; none once it is over.
    first: Pin<&'p mut Option<Fut>>,
    first_ends: Option<Instant>,
    copies: Vec<Copy<'a, S, Fut>>,
    /// When the next copy is sent; none if there will be none.
    next: Option<Instant>,
    sent: u32,
    delay: Duration,
    /// When the caller stops waiting.
    deadline: Option<Instant>,
    /// What the timer is set to.
    alarm: Option<Instant>,
}

struct Copy<'a, S: Store, Fut> {
    running: Pin<Box<Fut>>,
    ends: Option<Instant>,
    hold: Hold<'a, S>,
}

impl<'p, 'a, S: Store, Fut> Race<'p, 'a, S, Fut> {
    /// The delay is over, so the first copy is due.
    fn begin(spec: HedgeSpec, ride: &Ride<'a, S>, first: Pin<&'p mut Option<Fut>>) -> Self {
        let (now, delay) = (Instant::now(), ride.alarm.unwrap_or_default());
        // A runtime that stalled may be later than the delay.
        let ran = ride.read_clock().since(ride.now).max(delay);
        let left = |limit: Duration| now.checked_add(limit.saturating_sub(ran));
        Self {
            spec,
            first,
            first_ends: ride.stages.timeout.and_then(left),
            copies: Vec::new(),
            next: Some(now),
            sent: 0,
            delay,
            deadline: ride.time_left().and_then(|left| now.checked_add(left)),
            alarm: None,
        }
    }

    fn poll<T, E, F, C>(
        &mut self,
        ride: &mut Ride<'a, S>,
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
            if let Some(answer) = self.poll_all(ride, classifier, cx) {
                return Poll::Ready(Ok(answer));
            }
            let now = Instant::now();
            ride.by_deadline = self.deadline.is_some_and(|deadline| deadline <= now);
            if ride.by_deadline || !self.drop_the_late(ride, now) {
                return Poll::Ready(Err(Elapsed));
            }
            if self.next.is_some_and(|next| next <= now) {
                self.send_copy(ride, operation, now);
                continue; // it may be ready at once
            }
            let ends = self.copies.iter().map(|copy| copy.ends).chain([self.first_ends, self.next, self.deadline]);
            let Some(alarm) = ends.flatten().min() else { return ride.unless_cancelled(Poll::Pending, cx) };
            if self.alarm.replace(alarm) != Some(alarm) {
                timer.disarm();
            }
            if timer.poll_after(alarm.saturating_duration_since(now), cx).is_pending() {
                return ride.unless_cancelled(Poll::Pending, cx);
            }
            timer.disarm();
            self.alarm = None;
        }
    }

    /// Polls whoever runs: the attempt before its copies, so that of two answers at a time the one paid for wins.
    fn poll_all<T, E, C>(
        &mut self,
        ride: &mut Ride<'a, S>,
        classifier: &C,
        cx: &mut Context<'_>,
    ) -> Option<Result<T, E>>
    where
        Fut: Future<Output = Result<T, E>>,
        C: Classifier<T, E>,
    {
        if let Poll::Ready(answer) = poll_inside(ride, self.first.as_mut(), cx) {
            let outcome = outcome(classifier.class(&answer));
            if outcome == Outcome::Success || self.copies.is_empty() {
                return Some(answer); // the ride is still the attempt's own
            }
            self.end_first();
            ride.settle_first(outcome);
        }
        let mut place = 0;
        while let Some(copy) = self.copies.get_mut(place) {
            let Poll::Ready(answer) = ride.inside_of(&copy.hold.trace, || copy.running.as_mut().poll(cx)) else {
                place += 1;
                continue;
            };
            let outcome = outcome(classifier.class(&answer));
            let hold = self.copies.swap_remove(place).hold;
            if outcome == Outcome::Success || self.first.is_none() && self.copies.is_empty() {
                let losers = self.copies.iter().map(|copy| copy.hold.started);
                ride.adopt(hold, self.first.is_some(), losers);
                ride.hedge_won = true;
                return Some(answer);
            }
            hold.settle(outcome);
        }
        None
    }

    fn end_first(&mut self) {
        self.first.set(None);
        self.first_ends = None;
    }

    /// Ends whoever has run for as long as an attempt may, unless nobody else is left: then the attempt is over.
    fn drop_the_late(&mut self, ride: &mut Ride<'a, S>, now: Instant) -> bool {
        let is_late = |ends: Option<Instant>| ends.is_some_and(|ends| ends <= now);
        if is_late(self.first_ends) && !self.copies.is_empty() {
            self.end_first();
            ride.tell_timeout();
            ride.settle_first(Outcome::Failure);
        }
        while let Some(place) = self.copies.iter().position(|copy| is_late(copy.ends)) {
            let hold = self.copies.swap_remove(place).hold;
            if self.first.is_none() && self.copies.is_empty() {
                ride.adopt(hold, false, std::iter::empty());
                return false;
            }
            ride.tell_timeout();
            hold.settle(Outcome::Failure);
        }
        !is_late(self.first_ends)
    }

    fn send_copy<T, E, F>(&mut self, ride: &mut Ride<'a, S>, operation: &F, now: Instant)
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.next = None;
        let Some(mut hold) = ride.admits_copy(&self.spec) else { return };
        self.sent += 1;
        ride.emit(EventKind::Hedge { hedge: self.sent, delay: self.delay });
        hold.trace = ride.trace.begin_copy(ride.attempts, ride.stages.timeout, self.sent);
        let running = Box::pin(ride.inside_of(&hold.trace, operation));
        let ends = ride.stages.timeout.and_then(|limit| now.checked_add(limit));
        self.copies.push(Copy { running, ends, hold });
        if self.sent + 1 < self.spec.max_attempts {
            self.delay = ride.stages.hedge_delay(&self.spec, ride.read_clock());
            self.next = now.checked_add(self.delay);
        }
    }
}

/// Polls the attempt itself, unless it is over.
fn poll_inside<S: Store, Fut: Future>(
    ride: &Ride<'_, S>,
    running: Pin<&mut Option<Fut>>,
    cx: &mut Context<'_>,
) -> Poll<Fut::Output> {
    match running.as_pin_mut() {
        Some(running) => ride.inside(|| running.poll(cx)),
        None => Poll::Pending,
    }
}

/// What an answer says about the dependency.
fn outcome(class: Class) -> Outcome {
    class.kind.map_or(Outcome::Success, |kind| kind.outcome())
}

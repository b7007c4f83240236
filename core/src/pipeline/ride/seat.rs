//! How a ride takes its slot in the bulkhead, waits for it, and gives it back.

use std::task::{Context, Poll};
use std::time::Duration;

use super::{Ride, Step};
use crate::bulkhead::{Arrival, Entry, WaiterId};
use crate::clock::Time;
use crate::pipeline::stages::Slots;
use crate::policy::Stage;
use crate::rejection::RejectionCode;
use crate::store::Store;
use crate::timeout::Elapsed;

/// What a ride has of the bulkhead.
#[derive(Clone, Copy)]
pub(super) enum Seat {
    None,
    /// A place in its queue.
    Waiting(WaiterId),
    /// A slot.
    Taken,
}

impl<S: Store> Ride<'_, S> {
    /// Takes a slot, or a place in the queue for one.
    #[inline]
    pub(in crate::pipeline) fn enters(&mut self, slots: &Slots) -> Step {
        if slots.bulkhead.try_enter() {
            self.seat = Seat::Taken;
            Step::Go
        } else {
            self.queues(slots)
        }
    }

    #[cold]
    fn queues(&mut self, slots: &Slots) -> Step {
        let deadline = self.time_left().map_or(Time::NEVER, |left| self.now.after(left));
        let who = Arrival { now: self.now, criticality: self.context.criticality(), deadline };
        let entry = if slots.queues { slots.bulkhead.enter(who) } else { Err(RejectionCode::BulkheadFull) };
        match entry {
            Ok(Entry::Entered) => {
                self.seat = Seat::Taken;
                Step::Go
            }
            Ok(Entry::Waiting(place, due)) => {
                self.seat = Seat::Waiting(place);
                self.limit = due.until_from(self.now);
                Step::AskStore
            }
            Err(code) => self.is_turned_away(code),
        }
    }

    /// How long the wait may last.
    pub(in crate::pipeline) const fn patience(&self) -> Option<Duration> {
        self.limit
    }

    /// Whether the wait is over.
    pub(in crate::pipeline) fn poll_seat(
        &self,
        slots: &Slots,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), RejectionCode>> {
        match self.seat {
            Seat::Waiting(place) => slots.bulkhead.poll(place, cx.waker()),
            Seat::None | Seat::Taken => Poll::Ready(Ok(())),
        }
    }

    /// The wait is over, one way or the other.
    pub(in crate::pipeline) fn sits_down(
        &mut self,
        slots: &Slots,
        heard: Result<Result<(), RejectionCode>, Elapsed>,
    ) -> Step {
        let verdict = match (heard, self.seat) {
            (Ok(verdict), _) => verdict,
            (Err(Elapsed), Seat::Waiting(place)) => slots.bulkhead.give_up(place),
            (Err(Elapsed), Seat::None | Seat::Taken) => Ok(()),
        };
        self.seat = if verdict.is_ok() { Seat::Taken } else { Seat::None };
        match verdict {
            _ if self.is_cancelled() => Step::Stop,
            Ok(()) => Step::Go,
            Err(code) => self.is_turned_away(code),
        }
    }

    fn is_turned_away(&mut self, code: RejectionCode) -> Step {
        let stage = if code == RejectionCode::DeadlineExceeded { Stage::Deadline } else { Stage::Bulkhead };
        self.reject(stage, code);
        Step::Stop
    }

    /// Gives back whatever it has: a slot goes to the next who waits.
    #[inline]
    pub(super) fn stand_up(&mut self) {
        let stages = self.stages;
        let seat = std::mem::replace(&mut self.seat, Seat::None);
        if let Some(slots) = &stages.bulkhead {
            match seat {
                Seat::None => {}
                Seat::Taken => slots.bulkhead.leave(&stages.clock),
                Seat::Waiting(place) => slots.bulkhead.abandon(place, &stages.clock),
            }
        }
    }
}

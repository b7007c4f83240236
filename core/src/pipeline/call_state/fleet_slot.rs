//! The slot of a call in the fleet: how it is taken and given back.

use std::future::{Future, poll_fn};
use std::pin::pin;

use super::{CallState, Step};
use crate::clock::Time;
use crate::policy::Stage;
use crate::rejection::RejectionCode;
use crate::store::{SlotReply, Store};
use crate::timeout::{Elapsed, Timer, poll_within};

impl<'a, S: Store> CallState<'a, S> {
    /// Takes a slot of the fleet, if the store can decide without awaiting.
    #[inline]
    pub(in crate::pipeline) fn take_fleet_slot(&mut self, slots: &S::Slots) -> Step {
        if self.stages.guards.is_some() {
            // A guard may take its time, and a share is valid until a time.
            self.restart_clock();
        }
        match self.stages.store.take_slot_now(slots, self.attempt.started) {
            Some(reply) => self.apply_slot_reply(reply),
            None => Step::Await,
        }
    }

    /// Waits for a slot of the fleet: one round trip, at most until the deadline.
    pub(in crate::pipeline) async fn await_fleet_slot(&mut self, timer: &mut Timer, slots: &'a S::Slots) -> Step {
        let (within, stages) = (self.time_left(), self.stages);
        let reply = {
            let mut taking = pin!(stages.store.take_slot(slots, self.attempt.started));
            poll_fn(|cx| poll_within(timer, within, cx, |cx| taking.as_mut().poll(cx))).await
        };
        timer.disarm();
        self.restart_clock();
        match reply {
            Ok(reply) => self.apply_slot_reply(reply),
            Err(Elapsed) => self.reject_late(),
        }
    }

    #[inline]
    fn apply_slot_reply(&mut self, reply: SlotReply) -> Step {
        if reply.is_granted {
            self.held.fleet_slot = true;
            self.accept_reply(Stage::Bulkhead, reply.source)
        } else {
            self.reject_reply(Stage::Bulkhead, RejectionCode::FleetBulkheadFull, Time::NEVER, reply.source)
        }
    }

    #[inline]
    pub(super) fn return_fleet_slot(&mut self) {
        self.held.fleet_slot = false;
        if let Some(slots) = &self.stages.fleet_slots {
            self.stages.store.return_slot(slots);
        }
    }
}

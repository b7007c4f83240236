//! The bulkhead slot of a call: how it is taken, waited for and given back.

use std::task::{Context, Poll};
use std::time::Duration;

use super::{CallState, Step};
use crate::bulkhead::{Arrival, Entry, WaiterId};
use crate::clock::Time;
use crate::pipeline::stages::BulkheadStage;
use crate::policy::Stage;
use crate::rejection::RejectionCode;
use crate::store::Store;
use crate::timeout::Elapsed;

/// What a call holds of the bulkhead.
#[derive(Clone, Copy)]
pub(super) enum BulkheadSlot {
    None,
    Queued(WaiterId),
    Taken,
}

impl<S: Store> CallState<'_, S> {
    /// Takes a slot, or joins the queue for one.
    #[inline]
    pub(in crate::pipeline) fn enter_bulkhead(&mut self, stage: &BulkheadStage) -> Step {
        if stage.bulkhead.try_enter() {
            self.held.bulkhead_slot = BulkheadSlot::Taken;
            Step::Continue
        } else {
            self.join_queue(stage)
        }
    }

    #[cold]
    fn join_queue(&mut self, stage: &BulkheadStage) -> Step {
        let now = self.attempt.started;
        let deadline = self.time_left().map_or(Time::NEVER, |left| now.after(left));
        let arrival = Arrival { now, criticality: self.context.criticality(), deadline };
        let entry = if stage.has_queue { stage.bulkhead.enter(arrival) } else { Err(RejectionCode::BulkheadFull) };
        match entry {
            Ok(Entry::Entered) => {
                self.held.bulkhead_slot = BulkheadSlot::Taken;
                Step::Continue
            }
            Ok(Entry::Waiting(waiter, due)) => {
                self.held.bulkhead_slot = BulkheadSlot::Queued(waiter);
                self.attempt.limit = due.until_from(now);
                Step::Await
            }
            Err(code) => self.reject_by_bulkhead(code),
        }
    }

    /// Returns how long the call may wait in the queue.
    pub(in crate::pipeline) const fn queue_limit(&self) -> Option<Duration> {
        self.attempt.limit
    }

    /// Polls the queue for the verdict on this call.
    pub(in crate::pipeline) fn poll_queue(
        &self,
        stage: &BulkheadStage,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), RejectionCode>> {
        match self.held.bulkhead_slot {
            BulkheadSlot::Queued(waiter) => stage.bulkhead.poll(waiter, cx.waker()),
            BulkheadSlot::None | BulkheadSlot::Taken => Poll::Ready(Ok(())),
        }
    }

    /// Leaves the queue with its verdict, or because the time to wait is over.
    pub(in crate::pipeline) fn leave_queue(
        &mut self,
        stage: &BulkheadStage,
        polled: Result<Result<(), RejectionCode>, Elapsed>,
    ) -> Step {
        let verdict = match (polled, self.held.bulkhead_slot) {
            (Ok(verdict), _) => verdict,
            (Err(Elapsed), BulkheadSlot::Queued(waiter)) => stage.bulkhead.give_up(waiter),
            (Err(Elapsed), BulkheadSlot::None | BulkheadSlot::Taken) => Ok(()),
        };
        self.held.bulkhead_slot = if verdict.is_ok() { BulkheadSlot::Taken } else { BulkheadSlot::None };
        match verdict {
            _ if self.reject_if_cancelled() => Step::Reject,
            Ok(()) => Step::Continue,
            Err(code) => self.reject_by_bulkhead(code),
        }
    }

    fn reject_by_bulkhead(&mut self, code: RejectionCode) -> Step {
        let stage = if code == RejectionCode::DeadlineExceeded { Stage::Deadline } else { Stage::Bulkhead };
        self.reject(stage, code);
        Step::Reject
    }

    /// Gives the slot to the next call in the queue, or leaves the queue. A slot of the fleet goes with it.
    #[inline]
    pub(super) fn release_bulkhead(&mut self) {
        let stages = self.stages;
        if self.held.fleet_slot {
            self.return_fleet_slot();
        }
        let slot = std::mem::replace(&mut self.held.bulkhead_slot, BulkheadSlot::None);
        if let Some(stage) = &stages.bulkhead {
            match slot {
                BulkheadSlot::None => {}
                BulkheadSlot::Taken => stage.bulkhead.leave(&stages.clock),
                BulkheadSlot::Queued(waiter) => stage.bulkhead.abandon(waiter, &stages.clock),
            }
        }
    }
}

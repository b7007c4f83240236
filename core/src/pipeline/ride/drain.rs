//! How a ride comes in by the gate and out again, and how it ends when a drain does not wait for it any longer.

use std::future::{Future, poll_fn};
use std::task::{self, Poll};
use std::time::Duration;

use super::Ride;
use crate::context::Context;
use crate::drain::Gate;
use crate::rejection::{RejectionCode, Source};
use crate::store::Store;
use crate::timeout::{Elapsed, Timer};

impl<S: Store> Ride<'_, S> {
    /// Comes in, if there is a gate to come in by.
    #[inline(always)]
    pub(super) fn comes_in(&mut self, current: Context) -> bool {
        match self.stages.door.gate() {
            None => true,
            Some(gate) => self.comes_in_by(gate, current),
        }
    }

    #[inline(never)] // or whoever has no gate pays for the room it takes
    fn comes_in_by(&mut self, gate: &Gate, current: Context) -> bool {
        let Some(stay) = gate.admit(current) else {
            self.reject_draining();
            return false;
        };
        self.stay = stay;
        // The operation is told, so that the calls it makes are known to be inside this one.
        if !current.is_inside(gate.id()) {
            self.context = self.context.inside(gate.id());
        }
        true
    }

    /// Goes out: the last thing a call does.
    pub(super) fn leave(&mut self) {
        if let Some(gate) = self.stages.door.gate() {
            gate.leave(&mut self.stay);
        }
    }

    /// Whether a drain has cancelled the call, which is then its rejection.
    #[inline(always)]
    pub(in crate::pipeline) fn is_cancelled(&mut self) -> bool {
        let cancelled = self.stay.is_held() && self.stay.is_cancelled();
        if cancelled {
            self.reject_draining();
        }
        cancelled
    }

    /// What was polled; cut off if it is not ready and the call is cancelled.
    #[inline(always)]
    pub(in crate::pipeline) fn unless_cancelled<T>(
        &self,
        polled: Poll<Result<T, Elapsed>>,
        cx: &task::Context<'_>,
    ) -> Poll<Result<T, Elapsed>> {
        if polled.is_pending() && self.stay.is_held() && self.learns_of_cancellation(cx) {
            return Poll::Ready(Err(Elapsed));
        }
        polled
    }

    /// Waits, unless the call is cancelled meanwhile.
    pub(in crate::pipeline) fn waits(&self, timer: &mut Timer, wait: Duration) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            let polled = self.unless_cancelled(timer.poll_after(wait, cx).map(Ok), cx);
            if polled.is_ready() {
                timer.disarm();
            }
            polled.map(|_| ())
        })
    }

    fn learns_of_cancellation(&self, cx: &task::Context<'_>) -> bool {
        self.stages.door.gate().is_some_and(|gate| gate.cancels(&self.stay, cx))
    }

    #[cold]
    fn reject_draining(&mut self) {
        let wait = self.stages.door.gate().and_then(|gate| gate.rejection().retry_after());
        self.stage = None; // before all stages
        (self.code, self.source) = (RejectionCode::Draining, Source::Local);
        self.wait = wait.map_or(crate::rejection::UNKNOWN, crate::clock::micros);
    }
}

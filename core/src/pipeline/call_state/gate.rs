//! The drain gate: how a call enters and leaves it, and how it ends when a drain cancels it.

use std::future::{Future, poll_fn};
use std::task::{self, Poll};
use std::time::Duration;

use super::CallState;
use crate::context::Context;
use crate::drain::Gate;
use crate::rejection::{RejectionCode, Source};
use crate::store::Store;
use crate::timeout::{Elapsed, Timer};

impl<S: Store> CallState<'_, S> {
    /// Enters the gate, if one is attached. False if it rejects the call.
    #[inline(always)]
    pub(super) fn enter_gate(&mut self, current: Context) -> bool {
        match self.stages.gate.get() {
            None => true,
            Some(gate) => self.acquire_gate_ticket(gate, current),
        }
    }

    #[inline(never)] // inlined, it would enlarge the walk of calls without a gate
    fn acquire_gate_ticket(&mut self, gate: &Gate, current: Context) -> bool {
        let Some(ticket) = gate.admit(current) else {
            self.reject_draining();
            return false;
        };
        self.held.gate_ticket = ticket;
        // The operation's context carries the gate, so that calls nested in this one are admitted during a drain.
        if !current.is_inside(gate.id()) {
            self.context = self.context.inside(gate.id());
        }
        true
    }

    /// Leaves the gate: the last thing a call does.
    pub(super) fn leave_gate(&mut self) {
        if let Some(gate) = self.stages.gate.get() {
            gate.leave(&mut self.held.gate_ticket);
        }
    }

    /// Rejects the call with `draining` if a drain has cancelled it; returns whether it has.
    #[inline(always)]
    pub(in crate::pipeline) fn reject_if_cancelled(&mut self) -> bool {
        let ticket = &self.held.gate_ticket;
        let cancelled = ticket.is_held() && ticket.is_cancelled();
        if cancelled {
            self.reject_draining();
        }
        cancelled
    }

    /// Returns what was polled; `Err(Elapsed)` in place of `Pending` if the call is cancelled.
    #[inline(always)]
    pub(in crate::pipeline) fn unless_cancelled<T>(
        &self,
        polled: Poll<Result<T, Elapsed>>,
        cx: &task::Context<'_>,
    ) -> Poll<Result<T, Elapsed>> {
        if polled.is_pending() && self.held.gate_ticket.is_held() && self.poll_cancelled(cx) {
            return Poll::Ready(Err(Elapsed));
        }
        polled
    }

    /// Waits for `wait`, or until the call is cancelled.
    pub(in crate::pipeline) fn sleep(&self, timer: &mut Timer, wait: Duration) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            let polled = self.unless_cancelled(timer.poll_after(wait, cx).map(Ok), cx);
            if polled.is_ready() {
                timer.disarm();
            }
            polled.map(|_| ())
        })
    }

    /// Whether the call is cancelled; if not, the task is woken when it is.
    fn poll_cancelled(&self, cx: &task::Context<'_>) -> bool {
        self.stages.gate.get().is_some_and(|gate| gate.poll_cancelled(&self.held.gate_ticket, cx))
    }

    #[cold]
    fn reject_draining(&mut self) {
        let wait = self.stages.gate.get().and_then(|gate| gate.rejection().retry_after());
        self.notes.stage = None; // the gate is before all stages
        (self.notes.code, self.notes.source) = (RejectionCode::Draining, Source::Local);
        self.notes.retry_after = wait.map_or(crate::rejection::UNKNOWN, crate::clock::micros);
    }
}

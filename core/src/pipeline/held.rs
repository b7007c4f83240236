//! What a call holds on its way, each as a value that gives it back when dropped: on an early return, on a
//! cancellation at any await, on a panic.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::stages::{Circuit, Stages};
use crate::breaker::{Sample, Ticket};
use crate::clock::Time;
use crate::event::What;
use crate::guard::{CallInfo, Guards};
use crate::kind::{Kind, Outcome};
use crate::rejection::Rejection;
use crate::store::Store;
use crate::throttle::Appetite;

/// Raised while the operation itself is running, so that a drop can tell a panic in it from a caller that went away.
#[derive(Default)]
pub(super) struct Running(AtomicBool);

impl Running {
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.store(true, Ordering::Relaxed);
        let done = work();
        self.0.store(false, Ordering::Relaxed);
        done
    }

    /// What a drop without an answer means.
    fn verdict(&self) -> Outcome {
        if self.0.load(Ordering::Relaxed) { Outcome::Failure } else { Outcome::Cancelled }
    }
}

/// Permits taken from the rate limit; refunded unless the operation was started.
pub(super) struct Permit<'a, S: Store> {
    stages: &'a Stages<S>,
    cost: u32,
}

impl<'a, S: Store> Permit<'a, S> {
    pub(super) const fn new(stages: &'a Stages<S>, cost: u32) -> Self {
        Self { stages, cost }
    }

    /// The operation is about to start: nothing goes back any more.
    pub(super) fn spend(&mut self) {
        self.cost = 0;
    }
}

impl<S: Store> Drop for Permit<'_, S> {
    fn drop(&mut self) {
        if let (Some(limit), 1..) = (&self.stages.rate_limit, self.cost) {
            self.stages.store.refund(&limit.bucket, self.cost);
        }
    }
}

/// Custom guards that admitted the call; each is settled exactly once, innermost first.
pub(super) struct GuardsIn<'a> {
    guards: Option<&'a Guards>,
    admitted: usize,
    info: CallInfo<'a>,
    running: &'a Running,
    outcome: Option<Outcome>,
}

impl<'a> GuardsIn<'a> {
    /// Asks them one after the other.
    pub(super) fn admit(
        guards: Option<&'a Guards>,
        info: CallInfo<'a>,
        running: &'a Running,
    ) -> Result<Self, Rejection> {
        let mut held = Self { guards, admitted: 0, info, running, outcome: None };
        for guard in guards.into_iter().flat_map(Guards::iter) {
            guard.admit(&held.info)?;
            held.admitted += 1;
        }
        Ok(held)
    }

    pub(super) fn settle(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for GuardsIn<'_> {
    fn drop(&mut self) {
        let Some(guards) = self.guards else { return };
        let outcome = self.outcome.unwrap_or_else(|| self.running.verdict());
        while self.admitted > 0 {
            self.admitted -= 1; // before the call, so that a panicking guard is not settled again
            if let Some(guard) = guards.iter().nth(self.admitted) {
                guard.settle(&self.info, outcome);
            }
        }
    }
}

/// An admission by breaker or throttle: exactly one outcome is recorded for it.
pub(super) struct Pass<'a, S: Store> {
    stages: &'a Stages<S>,
    /// None where the circuit does not count this admission (fail open).
    ticket: Option<Ticket>,
    running: &'a Running,
    started: Time,
    deadline: Option<Instant>,
    open: bool,
}

impl<'a, S: Store> Pass<'a, S> {
    pub(super) const fn new(
        stages: &'a Stages<S>,
        ticket: Option<Ticket>,
        running: &'a Running,
        started: Time,
        deadline: Option<Instant>,
    ) -> Self {
        Self { stages, ticket, running, started, deadline, open: true }
    }

    /// Records what became of it.
    #[inline]
    pub(super) fn settle(mut self, ended: Time, outcome: Outcome, kind: Option<Kind>, latency: Duration) {
        self.open = false;
        self.record(ended, outcome, kind, latency);
    }

    #[inline]
    fn record(&self, ended: Time, outcome: Outcome, kind: Option<Kind>, latency: Duration) {
        let stages = self.stages;
        match (&stages.circuit, self.ticket) {
            (Circuit::Breaker { breaker, .. }, Some(ticket)) => {
                let sample = Sample { outcome, latency };
                if let Some(change) = stages.store.record(breaker, ended, ticket, sample) {
                    stages.observers.tell(&stages.key, What::Transition(change));
                }
            }
            (Circuit::Throttle(_), _) => {
                if let Some(throttle) = stages.kept.throttle.lock().as_mut() {
                    throttle.record(ended, appetite(outcome, kind));
                }
            }
            (Circuit::Breaker { .. } | Circuit::None, _) => {}
        }
    }

    /// A drop without an answer: a panic of the operation, a deadline that somebody else enforced, or a caller that
    /// lost interest.
    fn abandoned(&self, now: Time) -> Outcome {
        let outcome = self.running.verdict();
        let overdue = self.deadline.is_some_and(|deadline| deadline <= Instant::now());
        let ran_enough = now.since(self.started) >= self.stages.deadline.failure_floor;
        if overdue && ran_enough { Outcome::Failure } else { outcome }
    }
}

impl<S: Store> Drop for Pass<'_, S> {
    fn drop(&mut self) {
        if self.open {
            let now = self.stages.clock.now();
            self.record(now, self.abandoned(now), None, now.since(self.started));
        }
    }
}

/// A refusal for load is no accept, whatever the breaker thinks of it.
const fn appetite(outcome: Outcome, kind: Option<Kind>) -> Appetite {
    match (outcome, kind) {
        (Outcome::Success, _) => Appetite::Accepted,
        (Outcome::Failure, _) | (Outcome::Neutral, Some(Kind::Throttled)) => Appetite::Declined,
        (Outcome::Neutral | Outcome::Cancelled, _) => Appetite::Unknown,
    }
}

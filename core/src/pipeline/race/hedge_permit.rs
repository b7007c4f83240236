//! What one hedge holds, and how the call starts, settles and adopts hedges.

use crate::breaker::{Admission, CountBy, Sample, Ticket};
use crate::clock::Time;
use crate::event::EventKind;
use crate::hedge::HedgeSpec;
use crate::kind::Outcome;
use crate::pipeline::call_state::CallState;
use crate::pipeline::fleet_budget::BudgetMark;
use crate::pipeline::stages::{Circuit, Stages};
use crate::pipeline::trace::Trace;
use crate::store::Store;

/// A hedge's bulkhead slot and its admission by the breaker, where the policy has these. `Drop` gives them back and
/// records the admission as cancelled.
pub(super) struct HedgePermit<'a, S: Store> {
    stages: &'a Stages<S>,
    pub(super) started: Time,
    ticket: Option<Ticket>,
    /// The hedge's span, which ends as cancelled if it is dropped.
    pub(super) trace: Trace,
}

impl<'a, S: Store> HedgePermit<'a, S> {
    /// Takes a bulkhead slot if one is free. A hedge never queues for one: it would delay calls.
    fn acquire(stages: &'a Stages<S>, started: Time) -> Option<Self> {
        let free = stages.bulkhead.as_ref().is_none_or(|stage| stage.bulkhead.try_enter());
        // Not `then_some`: it would build a permit in any case, and dropping one gives a slot back.
        free.then(|| Self { stages, started, ticket: None, trace: Trace::default() })
    }

    /// Asks the breaker, where it counts attempts. False if it rejects, or cannot decide without awaiting.
    fn ask_breaker(&mut self, now: Time) -> bool {
        let Circuit::Breaker { breaker, count: CountBy::Attempts } = &self.stages.circuit else { return true };
        match self.stages.store.admit_now(breaker, now).map(|reply| reply.admission) {
            Some(Admission::Admitted(ticket)) => {
                self.ticket = Some(ticket);
                true
            }
            Some(Admission::Rejected { .. }) | None => false,
        }
    }

    /// Records a hedge that ended without an answer while others still run.
    pub(super) fn settle(mut self, outcome: Outcome) {
        let ended = self.stages.clock.now();
        self.trace.end_attempt(outcome, None);
        self.record(ended, outcome);
        self.stages.observe_attempt(ended, ended.since(self.started), outcome);
    }

    fn record(&mut self, ended: Time, outcome: Outcome) {
        if let (Some(ticket), Circuit::Breaker { breaker, .. }) = (self.ticket.take(), &self.stages.circuit) {
            let sample = Sample { outcome, latency: ended.since(self.started) };
            if let Some(change) = self.stages.store.record(breaker, ended, ticket, sample) {
                let _in_call = self.trace.enter_call();
                self.stages.observers.emit(&self.stages.key, EventKind::Transition(change));
            }
        }
    }
}

impl<S: Store> Drop for HedgePermit<'_, S> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.record(self.stages.clock.now(), Outcome::Cancelled);
        }
        if let Some(stage) = &self.stages.bulkhead {
            stage.bulkhead.leave(&self.stages.clock);
        }
    }
}

impl<'a, S: Store> CallState<'a, S> {
    /// Returns a permit for another hedge, if one may be started. With a budget of the fleet, `mark` is its reply.
    pub(super) fn admit_hedge(
        &mut self,
        spec: &HedgeSpec,
        mark: Option<BudgetMark<'a, S>>,
    ) -> Option<HedgePermit<'a, S>> {
        if self.is_probe() {
            return None; // a probe of a half-open breaker is one call
        }
        let now = self.read_clock();
        let mut permit = HedgePermit::acquire(self.stages, now)?;
        let granted = match &mark {
            Some(mark) => mark.is_granted(),
            None => self.stages.state.hedge_budget.withdraw(now, &spec.budget),
        };
        if !granted {
            self.emit(EventKind::HedgeBudgetExhausted);
            return None;
        }
        if !permit.ask_breaker(now) {
            return None;
        }
        if let Some(mark) = mark {
            mark.spend();
        }
        self.notes.hedges += 1;
        Some(permit)
    }

    /// Records the attempt itself, which ended without an answer while its hedges still run.
    pub(super) fn settle_first_attempt(&mut self, outcome: Outcome) {
        self.attempt.ended = self.read_clock();
        self.trace.end_attempt(outcome, None);
        self.stages.observe_attempt(self.attempt.ended, self.latency(), outcome);
        if self.stages.counts(CountBy::Attempts) {
            self.settle_admission(outcome);
        }
    }

    /// Makes a hedge's end the attempt's: from here on the hedge is what is settled. `losers` are the starts of the other
    /// hedges that still run; `first_runs` says whether the attempt itself does too.
    pub(super) fn adopt_hedge(
        &mut self,
        mut permit: HedgePermit<'a, S>,
        first_runs: bool,
        losers: impl Iterator<Item = Time>,
    ) {
        self.attempt.ended = self.read_clock();
        let ended = self.attempt.ended;
        self.trace.adopt(&mut permit.trace);
        for start in losers.chain(first_runs.then_some(self.attempt.started)) {
            if start < permit.started {
                self.stages.observe_censored(ended, ended.since(start));
            }
        }
        if self.stages.counts(CountBy::Attempts) {
            self.settle_admission(Outcome::Cancelled); // the attempt's own, if it has no outcome yet
            self.replace_admission(permit.ticket.take());
        }
        self.attempt.started = permit.started;
    }
}

//! What one copy of an attempt holds, and how the ride deals with it.

use crate::breaker::{Admission, CountBy, Sample, Ticket};
use crate::clock::Time;
use crate::event::EventKind;
use crate::hedge::HedgeSpec;
use crate::kind::Outcome;
use crate::pipeline::ride::Ride;
use crate::pipeline::stages::{Circuit, Stages};
use crate::pipeline::trace::Trace;
use crate::store::Store;

/// A copy's slot and its admission by the circuit, each if there is one. Dropped, they are given back as unused.
pub(super) struct Hold<'a, S: Store> {
    stages: &'a Stages<S>,
    pub(super) started: Time,
    ticket: Option<Ticket>,
    /// Its span. Dropped with the rest, it ends as cancelled.
    pub(super) trace: Trace,
}

impl<'a, S: Store> Hold<'a, S> {
    /// Takes a slot, if one is free. A copy never waits for one: it would only be in the way of calls.
    fn take(stages: &'a Stages<S>, started: Time) -> Option<Self> {
        let free = stages.bulkhead.as_ref().is_none_or(|slots| slots.bulkhead.try_enter());
        // Not `then_some`: a hold that is made and dropped gives a slot back.
        free.then(|| Self { stages, started, ticket: None, trace: Trace::default() })
    }

    /// Asks the circuit, where it counts attempts. One that has to be waited for is not asked.
    fn passes(&mut self, now: Time) -> bool {
        let Circuit::Breaker { breaker, count: CountBy::Attempts } = &self.stages.circuit else { return true };
        match self.stages.store.admit_now(breaker, now).map(|answer| answer.admission) {
            Some(Admission::Admitted(ticket)) => {
                self.ticket = Some(ticket);
                true
            }
            Some(Admission::Rejected { .. }) | None => false,
        }
    }

    /// It ended without an answer, and others run on.
    pub(super) fn settle(mut self, outcome: Outcome) {
        let ended = self.stages.clock.now();
        self.trace.end_attempt(outcome, None);
        self.record(ended, outcome);
        self.stages.learn(ended, ended.since(self.started), outcome);
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

impl<S: Store> Drop for Hold<'_, S> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.record(self.stages.clock.now(), Outcome::Cancelled);
        }
        if let Some(slots) = &self.stages.bulkhead {
            slots.bulkhead.leave(&self.stages.clock);
        }
    }
}

impl<'a, S: Store> Ride<'a, S> {
    /// What a copy needs, if it may be sent.
    pub(super) fn admits_copy(&mut self, spec: &HedgeSpec) -> Option<Hold<'a, S>> {
        if self.is_probe() {
            return None; // a circuit that is tried out wants one call
        }
        let now = self.read_clock();
        let mut hold = Hold::take(self.stages, now)?;
        if !self.stages.kept.hedge_budget.withdraw(now, &spec.budget) {
            self.emit(EventKind::HedgeBudgetExhausted);
            return None;
        }
        if !hold.passes(now) {
            return None;
        }
        self.hedges += 1;
        Some(hold)
    }

    /// The attempt itself ended without an answer, and its copies run on.
    pub(super) fn settle_first(&mut self, outcome: Outcome) {
        self.ended = self.read_clock();
        self.trace.end_attempt(outcome, None);
        self.stages.learn(self.ended, self.latency(), outcome);
        if self.stages.counts(CountBy::Attempts) {
            self.settle_pass(outcome);
        }
    }

    /// A copy's end is the attempt's: from here on it is the copy that is settled. `losers` are the starts of the others
    /// that still run; the attempt itself is one of them if it `runs`.
    pub(super) fn adopt(&mut self, mut hold: Hold<'a, S>, runs: bool, losers: impl Iterator<Item = Time>) {
        self.ended = self.read_clock();
        let started = hold.started;
        self.trace.adopt(&mut hold.trace);
        for start in losers.chain(runs.then_some(self.now)).filter(|start| *start < started) {
            self.stages.watch_censored(self.ended, self.ended.since(start));
        }
        if self.stages.counts(CountBy::Attempts) {
            self.settle_pass(Outcome::Cancelled); // the attempt's own, if it still has it
            self.take_over(hold.ticket.take());
        }
        self.now = started;
    }
}

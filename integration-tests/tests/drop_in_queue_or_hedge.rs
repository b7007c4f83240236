//! The future of a call can be dropped at any await: in the queue of a bulkhead, and while copies of it race.
//!
//! The rest of what `drop_everywhere` promises. Every way to a slot and every end of a race is polled k times and then
//! dropped, for every k until the call ends by itself, under a clock that the test moves between polls. Whatever the
//! moment, afterwards
//!
//! * every slot is free and nobody waits: neither the call nor a copy of it has one, also not one that was handed to it
//!   and of which it never heard;
//! * no run of the operation is left, neither the attempt's nor a copy's;
//! * no probe holds a place in the circuit, and each run that ended was counted once;
//! * guards and observers were told exactly one end, and permits were paid once.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

mod support;

use std::cell::RefCell;
use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use phalanx::describe::{Outcome, Phase};
use phalanx::policy::{BudgetSpec, DeadlineSpec, Jitter};
use phalanx::store::MemoryStore;
use phalanx::store::Rng;
use phalanx::*;
use support::bulkhead_and_hedge::*;
use support::stages::*;
use support::*;
use tokio::time::advance;

/// Every call here ends by itself before this many polls.
const MOST_POLLS: usize = 60;

type Holder = Pin<Box<dyn Future<Output = Result<u32, Error<Failure>>>>>;

/// What is run, and when it is dropped.
#[derive(Clone, Copy, Debug)]
struct Case {
    hull: Hull,
    race: Race,
    circuit: Circuit,
    retry: bool,
    timeout: bool,
    deadline: bool,
    polls: usize,
    pace: Duration,
    /// Whether the clock moves once more before the drop.
    late: bool,
}

/// How it went: ended by itself, why it was rejected, and the copies' part in it.
type Seen = (bool, Option<RejectionCode>, u32, bool);

impl Case {
    fn policy(self, ledger: &Ledger) -> Policy {
        let mut policy = Policy::named("p").rate_limit(Limit::Plain.spec().unwrap()).idempotent();
        (policy.bulkhead, policy.breaker) = (self.hull.spec(), self.circuit.spec());
        if self.race != Race::NoHedge {
            policy = policy.hedge(HedgeSpec::after(DELAY).budget(BudgetSpec::ratio(1.0).min_per_second(100)));
        }
        if self.retry {
            policy = policy.retry(RetrySpec::attempts(2).backoff(Backoff::constant(3 * MS).jitter(Jitter::None)));
        }
        if self.timeout {
            policy = policy.timeout(10 * MS);
        }
        if self.deadline {
            policy = policy.deadline(DeadlineSpec::total(21 * MS).failure_floor(10 * MS));
        }
        [150, 250, 350, 450, 550].into_iter().fold(policy, |policy, place| policy.guard(ledger.guard(place)))
    }

    async fn check(self) -> Seen {
        let store = MemoryStore::seeded(Clock::tokio(), 16, Rng::seeded(7));
        if self.circuit.is_probed() {
            trip(&store, &self.circuit.spec().unwrap());
            advance(SECOND).await;
        }
        let (ledger, ends, runs) = (Ledger::default(), Ends::default(), Runs::default());
        let mut before = Policy::named("p");
        before.bulkhead = self.hull.spec();
        let module = ResilienceModule::in_store(store).seed(7).observer(ledger.clone()).observer(ends.clone());
        let module = module.policy(before).build().unwrap();
        // Whoever is inside came before the stages that would get in their way.
        let pipeline = module.pipeline("p", ()).unwrap();
        let inside: RefCell<Vec<Holder>> = RefCell::default();
        for _ in 0..self.hull.holders() {
            let pipeline = pipeline.clone();
            let mut holder: Holder = Box::pin(async move { pipeline.run(hang).await });
            assert!(poll_once(holder.as_mut()).is_pending());
            inside.borrow_mut().push(holder);
        }
        module.retune(self.policy(&ledger)).unwrap();
        let pipeline = module.pipeline("p", ()).unwrap();

        let mut call = Box::pin(pipeline.run(|| runs.run(self.race)));
        let mut intruder: Option<Holder> = None;
        let mut answer = None;
        for poll in 0..self.polls {
            if poll > 0 {
                advance(self.pace).await;
            }
            if let Poll::Ready(ready) = poll_once(call.as_mut()) {
                answer = Some(ready);
                break;
            }
            // From here to the next poll, or to the drop, it has its slot and does not know.
            if self.hull == Hull::Served && poll == 1 {
                inside.take();
            }
            if self.hull == Hull::Displaced && poll == 0 {
                let pipeline = pipeline.clone();
                let critical = async move { pipeline.call().criticality(Criticality::Critical).run(hang).await };
                let critical: &mut Holder = intruder.insert(Box::pin(critical));
                assert!(poll_once(critical.as_mut()).is_pending());
            }
        }
        if answer.is_none() && self.late {
            advance(self.pace).await;
        }
        drop(call);

        self.check_slots(&pipeline, inside.borrow().len(), intruder.is_some());
        let came = intruder.take().is_some();
        inside.take();
        self.check_slots(&pipeline, 0, false);

        assert_eq!(runs.begun.get(), runs.good.get() + runs.bad.get() + runs.dropped.get(), "a run is left");
        let (attempts, copies) = (1 + usize::from(self.retry), 1 + usize::from(self.race != Race::NoHedge));
        assert!(runs.begun.get() <= attempts * copies);
        let told = ledger.read();
        assert!(told.held.is_empty() && told.disorder.is_empty(), "guards: {told:?}");
        let ends = ends.read();
        assert_eq!(ends.len(), usize::from(self.polls > 0) + usize::from(came), "{ends:?}");
        let end = ends.first().filter(|_| self.polls > 0).copied();
        if let Some((_, record)) = end {
            assert_eq!((record.attempts + record.hedges) as usize, runs.begun.get());
            assert!(record.hedge_won <= (record.hedges > 0));
        }
        let outcome = end.and_then(|(outcome, _)| outcome);
        self.check_outcome(answer.as_ref(), outcome, runs.begun.get() > 0);
        self.check_circuit(&pipeline, outcome, &runs, told.timeouts).await;
        let paid = u64::from(runs.begun.get() > 0);
        assert_eq!(pipeline.available_permits().await, Some(5 - paid));
        self.check_next(&pipeline).await;

        let code = answer.as_ref().and_then(|answer| answer.as_ref().err()?.rejection()).map(Rejection::code);
        let (hedges, won) = end.map_or((0, false), |(_, record)| (record.hedges, record.hedge_won));
        (answer.is_some(), code, hedges, won)
    }

    fn check_slots(self, pipeline: &Pipeline, inside: usize, waits: bool) {
        let slots = pipeline.bulkhead().map(|view| (view.limit, view.in_use, view.waiting));
        assert_eq!(slots, self.hull.spec().map(|_| (SLOTS, inside as u32, u32::from(waits))));
    }

    fn check_outcome(self, answer: Option<&Result<u32, Error<Failure>>>, outcome: Option<Outcome>, begun: bool) {
        match answer {
            None if self.polls == 0 => assert!(outcome.is_none() && !begun),
            None if self.deadline && begun && outcome == Some(Outcome::Failure) => assert!(self.late),
            None => assert_eq!(outcome, Some(Outcome::Cancelled)),
            Some(Ok(_)) => assert_eq!(outcome, Some(Outcome::Success)),
            Some(Err(Error::Rejected(_))) if !begun => assert_eq!(outcome, None),
            Some(Err(Error::Rejected(rejection))) if rejection.code() == RejectionCode::DeadlineExceeded => {
                assert!(matches!(outcome, Some(Outcome::Failure | Outcome::Neutral)), "{outcome:?}");
            }
            Some(Err(_)) => assert_eq!(outcome, Some(Outcome::Failure)),
        }
    }

    async fn check_circuit(self, pipeline: &Pipeline, outcome: Option<Outcome>, runs: &Runs, timeouts: usize) {
        let Some(view) = pipeline.circuit().await else { return };
        assert_eq!(view.probes, 0, "a probe still holds its place");
        let failed = outcome == Some(Outcome::Failure);
        let counted = (view.calls - view.failures, view.failures);
        match self.circuit {
            Circuit::Calls => {
                assert_eq!(counted, (u64::from(outcome == Some(Outcome::Success)), u64::from(failed)));
            }
            Circuit::Attempts => {
                let (good, bad) = (runs.good.get() as u64, (runs.bad.get() + timeouts) as u64);
                // The caller's time ran out: that may be the attempt's failure, if it was still running itself.
                let cut_off = failed && runs.dropped.get() > timeouts;
                assert!(counted == (good, bad) || cut_off && counted == (good, bad + 1), "{counted:?} {good} {bad}");
            }
            _ => {}
        }
    }

    /// The next call finds everything it needs, at once.
    async fn check_next(self, pipeline: &Pipeline) {
        if pipeline.circuit().await.is_some_and(|view| view.phase == Phase::Open) {
            advance(SECOND).await;
        }
        assert_eq!(at_once(pipeline.run(ok)), Ok(1), "the next call");
        self.check_slots(pipeline, 0, false);
        let phase = pipeline.circuit().await.map(|view| view.phase);
        assert!(phase.is_none_or(|phase| phase == Phase::Closed), "{phase:?}");
    }
}

/// Names the case when it fails.
struct Named(Case);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in {:?}", self.0);
        }
    }
}

/// Every combination with this circuit.
async fn check_all(circuit: Circuit) {
    let mut seen = HashSet::new();
    let flags = |bits: usize| (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0, bits & 8 > 0);
    for hull in Hull::ALL {
        for race in Race::ALL {
            for (retry, timeout, deadline, late) in (0..16).map(flags) {
                for pace in [2 * MS, 7 * MS] {
                    let endless = race == Race::BothHang && !timeout && !deadline;
                    let mut ended = false;
                    for polls in 0..=if endless { 10 } else { MOST_POLLS } {
                        let case = Case { hull, race, circuit, retry, timeout, deadline, polls, pace, late };
                        let named = Named(case);
                        let (by_itself, code, hedges, won) = case.check().await;
                        drop(named);
                        seen.insert((code, hedges > 0, won));
                        ended = by_itself;
                        if ended {
                            break;
                        }
                    }
                    assert!(ended || endless, "{hull:?} {race:?} {retry} {timeout} {deadline} never ends");
                }
            }
        }
    }
    let tried_out = circuit.is_probed(); // with one call at a time, so without copies
    for end in [
        (None, false, false),
        (Some(RejectionCode::BulkheadQueueShed), false, false),
        (Some(RejectionCode::BulkheadQueueTimeout), false, false),
        (Some(RejectionCode::DeadlineExceeded), false, false),
        (Some(RejectionCode::AttemptTimeout), !tried_out, false),
        (None, !tried_out, false),
        (None, !tried_out, !tried_out),
    ] {
        assert!(seen.contains(&end), "{end:?} did not occur: {seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_circuit_every_slot_is_back() {
    check_all(Circuit::None).await;
}

#[tokio::test(start_paused = true)]
async fn with_a_circuit_that_counts_calls_every_slot_is_back() {
    check_all(Circuit::Calls).await;
}

#[tokio::test(start_paused = true)]
async fn with_a_circuit_that_counts_attempts_every_slot_and_ticket_is_back() {
    check_all(Circuit::Attempts).await;
}

#[tokio::test(start_paused = true)]
async fn with_a_trial_call_every_slot_and_the_trials_place_are_back() {
    check_all(Circuit::ProbeOfCalls).await;
}

#[tokio::test(start_paused = true)]
async fn with_a_trial_attempt_every_slot_and_the_trials_place_are_back() {
    check_all(Circuit::ProbeOfAttempts).await;
}

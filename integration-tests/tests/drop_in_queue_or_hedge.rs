//! The future of a call can be dropped at any await: in the queue of a bulkhead, and while hedges run.
//!
//! Continues `drop_at_every_await`. Every way to get a slot and every result of a hedged attempt is polled k times and then
//! dropped, for every k until the call ends, on a clock that the test moves between polls. Afterwards, in every case,
//!
//! * every slot is free and the queue is empty, including a slot assigned to the call that it never polled for;
//! * no run of the operation is left, neither the attempt nor a hedge;
//! * no probe holds a slot of the breaker, and each ended run was counted once;
//! * guards and observers received exactly one end, and permits were paid once.

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

/// Every call ends within this many polls.
const MOST_POLLS: usize = 60;

type Holder = Pin<Box<dyn Future<Output = Result<u32, Error<Failure>>>>>;

/// What is run and when it is dropped.
#[derive(Clone, Copy, Debug)]
struct Case {
    slot_case: SlotCase,
    hedge_case: HedgeCase,
    circuit: Circuit,
    retry: bool,
    timeout: bool,
    deadline: bool,
    polls: usize,
    pace: Duration,
    /// Whether the clock moves once more before the drop.
    late: bool,
}

/// Whether the call ended before the drop, its rejection code, the number of hedges, and whether a hedge won.
type Seen = (bool, Option<RejectionCode>, u32, bool);

impl Case {
    fn policy(self, ledger: &Ledger) -> Policy {
        let mut policy = Policy::named("p").rate_limit(Limit::Plain.spec().unwrap()).idempotent();
        (policy.bulkhead, policy.breaker) = (self.slot_case.spec(), self.circuit.spec());
        if self.hedge_case != HedgeCase::NoHedge {
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
        before.bulkhead = self.slot_case.spec();
        let module = ResilienceModule::in_store(store).seed(7).observer(ledger.clone()).observer(ends.clone());
        let module = module.policy(before).build().unwrap();
        // The slot holders are admitted before the other stages are added.
        let pipeline = module.pipeline("p", ()).unwrap();
        let inside: RefCell<Vec<Holder>> = RefCell::default();
        for _ in 0..self.slot_case.holders() {
            let pipeline = pipeline.clone();
            let mut holder: Holder = Box::pin(async move { pipeline.run(hang).await });
            assert!(poll_once(holder.as_mut()).is_pending());
            inside.borrow_mut().push(holder);
        }
        module.retune(self.policy(&ledger)).unwrap();
        let pipeline = module.pipeline("p", ()).unwrap();

        let mut call = Box::pin(pipeline.run(|| runs.run(self.hedge_case)));
        let mut critical_call: Option<Holder> = None;
        let mut answer = None;
        for poll in 0..self.polls {
            if poll > 0 {
                advance(self.pace).await;
            }
            if let Poll::Ready(ready) = poll_once(call.as_mut()) {
                answer = Some(ready);
                break;
            }
            // From here to the next poll or the drop, the call has a slot that it has not polled for.
            if self.slot_case == SlotCase::Served && poll == 1 {
                inside.take();
            }
            if self.slot_case == SlotCase::Displaced && poll == 0 {
                let pipeline = pipeline.clone();
                let critical = async move { pipeline.call().criticality(Criticality::Critical).run(hang).await };
                let critical: &mut Holder = critical_call.insert(Box::pin(critical));
                assert!(poll_once(critical.as_mut()).is_pending());
            }
        }
        if answer.is_none() && self.late {
            advance(self.pace).await;
        }
        drop(call);

        self.check_slots(&pipeline, inside.borrow().len(), critical_call.is_some());
        let came = critical_call.take().is_some();
        inside.take();
        self.check_slots(&pipeline, 0, false);

        assert_eq!(runs.begun.get(), runs.good.get() + runs.bad.get() + runs.dropped.get(), "a run is left");
        let (attempts, runs_per_attempt) =
            (1 + usize::from(self.retry), 1 + usize::from(self.hedge_case != HedgeCase::NoHedge));
        assert!(runs.begun.get() <= attempts * runs_per_attempt);
        let entries = ledger.read();
        assert!(entries.held.is_empty() && entries.disorder.is_empty(), "guards: {entries:?}");
        let ends = ends.read();
        assert_eq!(ends.len(), usize::from(self.polls > 0) + usize::from(came), "{ends:?}");
        let end = ends.first().filter(|_| self.polls > 0).copied();
        if let Some((_, record)) = end {
            assert_eq!((record.attempts + record.hedges) as usize, runs.begun.get());
            assert!(record.hedge_won <= (record.hedges > 0));
        }
        let outcome = end.and_then(|(outcome, _)| outcome);
        self.check_outcome(answer.as_ref(), outcome, runs.begun.get() > 0);
        self.check_circuit(&pipeline, outcome, &runs, entries.timeouts).await;
        let paid = u64::from(runs.begun.get() > 0);
        // A refund loses what was refilled while its permit was held. A second makes up for that, and for no permit.
        advance(SECOND).await;
        assert_eq!(pipeline.available_permits().await, Some(5 - paid));
        self.check_next(&pipeline).await;

        let code = answer.as_ref().and_then(|answer| answer.as_ref().err()?.rejection()).map(Rejection::code);
        let (hedges, won) = end.map_or((0, false), |(_, record)| (record.hedges, record.hedge_won));
        (answer.is_some(), code, hedges, won)
    }

    fn check_slots(self, pipeline: &Pipeline, inside: usize, waits: bool) {
        let slots = pipeline.bulkhead().map(|view| (view.limit, view.in_use, view.waiting));
        assert_eq!(slots, self.slot_case.spec().map(|_| (SLOTS, inside as u32, u32::from(waits))));
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
        assert_eq!(view.probes, 0, "a probe still holds its slot");
        let failed = outcome == Some(Outcome::Failure);
        let counted = (view.calls - view.failures, view.failures);
        match self.circuit {
            Circuit::Calls => {
                assert_eq!(counted, (u64::from(outcome == Some(Outcome::Success)), u64::from(failed)));
            }
            Circuit::Attempts => {
                let (good, bad) = (runs.good.get() as u64, (runs.bad.get() + timeouts) as u64);
                // The deadline passed, which may be a failure of the attempt if it was still running.
                let cut_off = failed && runs.dropped.get() > timeouts;
                assert!(counted == (good, bad) || cut_off && counted == (good, bad + 1), "{counted:?} {good} {bad}");
            }
            _ => {}
        }
    }

    /// Checks that the next call is admitted at the first poll.
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

/// Prints the case when it fails.
struct Named(Case);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in {:?}", self.0);
        }
    }
}

/// Checks every combination with this breaker.
async fn check_all(circuit: Circuit) {
    let mut seen = HashSet::new();
    let flags = |bits: usize| (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0, bits & 8 > 0);
    for slot_case in SlotCase::ALL {
        for hedge_case in HedgeCase::ALL {
            for (retry, timeout, deadline, late) in (0..16).map(flags) {
                for pace in [2 * MS, 7 * MS] {
                    let endless = hedge_case == HedgeCase::BothHang && !timeout && !deadline;
                    let mut ended = false;
                    for polls in 0..=if endless { 10 } else { MOST_POLLS } {
                        let case = Case { slot_case, hedge_case, circuit, retry, timeout, deadline, polls, pace, late };
                        let named = Named(case);
                        let (by_itself, code, hedges, won) = case.check().await;
                        drop(named);
                        seen.insert((code, hedges > 0, won));
                        ended = by_itself;
                        if ended {
                            break;
                        }
                    }
                    assert!(ended || endless, "{slot_case:?} {hedge_case:?} {retry} {timeout} {deadline} never ends");
                }
            }
        }
    }
    let probing = circuit.is_probed(); // one call at a time, so without hedges
    for end in [
        (None, false, false),
        (Some(RejectionCode::BulkheadQueueShed), false, false),
        (Some(RejectionCode::BulkheadQueueTimeout), false, false),
        (Some(RejectionCode::DeadlineExceeded), false, false),
        (Some(RejectionCode::AttemptTimeout), !probing, false),
        (None, !probing, false),
        (None, !probing, !probing),
    ] {
        assert!(seen.contains(&end), "{end:?} did not occur: {seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_breaker_every_slot_is_released() {
    check_all(Circuit::None).await;
}

#[tokio::test(start_paused = true)]
async fn with_a_breaker_that_counts_calls_every_slot_is_released() {
    check_all(Circuit::Calls).await;
}

#[tokio::test(start_paused = true)]
async fn with_a_breaker_that_counts_attempts_every_slot_and_ticket_is_released() {
    check_all(Circuit::Attempts).await;
}

#[tokio::test(start_paused = true)]
async fn with_a_probe_call_every_slot_and_the_probe_slot_are_released() {
    check_all(Circuit::ProbeOfCalls).await;
}

#[tokio::test(start_paused = true)]
async fn with_a_probe_attempt_every_slot_and_the_probe_slot_are_released() {
    check_all(Circuit::ProbeOfAttempts).await;
}

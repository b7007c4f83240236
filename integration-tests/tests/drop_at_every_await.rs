//! The future of a call can be dropped at any await.
//!
//! Every combination of stages and every kind of operation is polled k times and then dropped, for every k until the call
//! ends, on a clock that the test moves between polls. Afterwards, in every case,
//!
//! * a call whose operation never started has its permits refunded, and one that started paid exactly once;
//! * no probe holds a slot of the breaker, and the next probe gets it;
//! * every guard that admitted the call settled it exactly once, the innermost first;
//! * the gate, if there is one, no longer counts the call;
//! * exactly one end was emitted, and breaker and guards received the same outcome.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

mod support;

use std::collections::HashSet;
use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use phalanx::describe::{Outcome, Phase};
use phalanx::lifecycle::Gate;
use phalanx::policy::{DeadlineSpec, Jitter, Stage};
use phalanx::store::MemoryStore;
use phalanx::store::Rng;
use phalanx::*;
use support::stages::*;
use support::*;
use tokio::time::{Instant, advance};

/// A call that has not ended is dropped after this many polls.
const MOST_POLLS: usize = 40;

/// Time after the drop, long enough for a leaked permit to show in the whole permits of [`Limit::Waits`].
const AFTERWARDS: Duration = Duration::from_millis(40);

type Answer = Result<u32, Error<Failure>>;

/// What is run and when it is dropped.
#[derive(Clone, Copy, Debug)]
struct Case {
    limit: Limit,
    circuit: Circuit,
    retry: bool,
    timeout: bool,
    deadline: bool,
    guards: GuardPlan,
    work: Work,
    polls: usize,
    /// How far the clock moves between two polls.
    pace: Duration,
    /// Whether it moves once more before the drop.
    late: bool,
    /// Different in every case.
    seed: u64,
}

impl Case {
    fn policy(self, ledger: &Ledger) -> Policy {
        let mut policy = Policy::named("p");
        policy.rate_limit = self.limit.spec();
        policy.breaker = self.circuit.spec();
        if self.circuit == Circuit::Throttle {
            // Every request without an accept affects the next one, from the first call on.
            policy = policy.throttle(ThrottleSpec::default().k(1.0).min_throughput(1).window(HOUR));
        }
        if self.retry {
            policy = policy.retry(RetrySpec::attempts(3).backoff(Backoff::constant(3 * MS).jitter(Jitter::None)));
        }
        if self.timeout {
            policy = policy.timeout(5 * MS);
        }
        if self.deadline {
            policy = policy.deadline(DeadlineSpec::total(18 * MS).failure_floor(10 * MS));
        }
        if self.guards != GuardPlan::None {
            policy = GUARD_ORDERS.into_iter().fold(policy, |policy, order| policy.guard(ledger.guard(order)));
        }
        if let GuardPlan::RejectingFrom(attempt) = self.guards {
            policy = policy.guard(RejectingFrom(attempt));
        }
        policy
    }

    /// Polls the call `polls` times, moving the clock in between, and then drops it.
    async fn drive<T>(self, call: impl Future<Output = T>) -> Option<T> {
        let mut call = Box::pin(call);
        for poll in 0..self.polls {
            if poll > 0 {
                advance(self.pace).await;
            }
            if let Poll::Ready(answer) = poll_once(call.as_mut()) {
                return Some(answer);
            }
        }
        if self.late {
            advance(self.pace).await;
        }
        None
    }

    /// Runs and checks the case. Returns whether the call ended before the drop, and its outcome.
    async fn check(self) -> (bool, Option<Outcome>) {
        let store = MemoryStore::seeded(Clock::tokio(), 16, Rng::seeded(7));
        if let (Circuit::ProbeOfCalls | Circuit::ProbeOfAttempts | Circuit::Open, Some(spec)) =
            (self.circuit, self.circuit.spec())
        {
            trip(&store, &spec);
        }
        if self.circuit.is_probed() {
            advance(SECOND).await;
        }
        match (self.limit, self.limit.spec()) {
            (Limit::Spent, Some(spec)) => drain(&store, &spec, 5),
            (Limit::Waits, Some(spec)) => drain(&store, &spec, 100),
            _ => {}
        }
        let (ledger, attempts, start) = (Ledger::default(), Attempts::default(), Instant::now());
        let module = ResilienceModule::in_store(store).seed(self.seed).observer(ledger.clone());
        let module = module.policy(self.policy(&ledger)).build().unwrap();
        let gate = Gate::default();
        if self.seed.is_multiple_of(2) {
            module.attach(&gate); // must not change the behaviour of a call
        }
        let pipeline = module.pipeline("p", ()).unwrap();

        let answer = self.drive(pipeline.run(|| attempts.run(self.work))).await;
        assert_eq!(gate.in_flight(), 0, "no call is in flight");

        let entries = ledger.read();
        assert_eq!(
            entries.finished.len(),
            usize::from(self.polls > 0),
            "one end, only if the call was polled: {entries:?}"
        );
        let outcome = entries.finished.first().copied().flatten();
        self.check_outcome(answer.as_ref(), outcome, &attempts);
        assert!(entries.held.is_empty() && entries.disorder.is_empty(), "guards: {entries:?}");
        for (order, settled) in &entries.settled {
            assert!(
                *order >= Stage::Retry.order() || Some(*settled) == outcome.or(Some(Outcome::Cancelled)),
                "{entries:?}"
            );
        }
        let counted = self.counted(&entries, &attempts);
        self.check_circuit(&pipeline, &counted).await;

        advance(AFTERWARDS).await;
        let started = u64::from(attempts.begun.get() > 0);
        assert_eq!(pipeline.available_permits().await, self.limit.left(start.elapsed(), started), "permits");
        self.check_next(&pipeline, &ledger, &counted).await;
        (answer.is_some(), outcome)
    }

    /// Checks the emitted outcome against the result.
    fn check_outcome(self, answer: Option<&Answer>, outcome: Option<Outcome>, attempts: &Attempts) {
        let begun = attempts.begun.get() > 0;
        match answer {
            None if self.polls == 0 => assert!(outcome.is_none() && !begun),
            // The deadline had passed before the drop, which may count as a failure.
            None if self.deadline && begun && outcome == Some(Outcome::Failure) => assert!(self.late),
            None => assert_eq!(outcome, Some(Outcome::Cancelled)),
            Some(Ok(_)) => assert_eq!(outcome, Some(Outcome::Success)),
            Some(Err(Error::Inner(_))) => assert_eq!(outcome, Some(Outcome::Failure)),
            Some(Err(Error::Rejected(_))) if !begun => assert_eq!(outcome, None),
            Some(Err(Error::Rejected(rejection))) if rejection.code() == RejectionCode::AttemptTimeout => {
                assert_eq!(outcome, Some(Outcome::Failure));
            }
            Some(Err(Error::Rejected(rejection))) => {
                assert_eq!(rejection.code(), RejectionCode::DeadlineExceeded);
                assert!(matches!(outcome, Some(Outcome::Failure | Outcome::Neutral)), "{outcome:?}");
            }
        }
    }

    /// Returns the outcomes that the breaker counts: those of calls, or those of attempts.
    fn counted(self, entries: &Entries, attempts: &Attempts) -> Vec<Outcome> {
        let end = entries.finished.iter().flatten().copied();
        let end = end.filter(|outcome| matches!(outcome, Outcome::Success | Outcome::Failure));
        if !matches!(self.circuit, Circuit::Attempts | Circuit::ProbeOfAttempts) {
            return end.collect();
        }
        let (good, bad) = (attempts.good.get(), attempts.bad.get() + entries.timeouts);
        let cut_off = attempts.begun.get() - good - bad;
        assert!(cut_off <= 1, "only the last attempt can lack an end of its own");
        let own = [vec![Outcome::Success; good], vec![Outcome::Failure; bad]].concat();
        own.into_iter().chain(end.take(cut_off)).collect()
    }

    async fn check_circuit(self, pipeline: &Pipeline, counted: &[Outcome]) {
        let Some(view) = pipeline.circuit().await else { return };
        let failures = counted.iter().filter(|outcome| **outcome == Outcome::Failure).count() as u64;
        assert_eq!(view.probes, 0, "a probe still holds its slot");
        match self.circuit {
            Circuit::Calls | Circuit::Attempts => {
                assert_eq!((view.phase, view.calls, view.failures), (Phase::Closed, counted.len() as u64, failures));
            }
            Circuit::Open => assert_eq!((view.phase, counted.len()), (Phase::Open, 0)),
            // The break is over, and no call has asked yet.
            _ if view.break_left == Some(Duration::ZERO) => assert_eq!(self.phase_after(counted), Phase::HalfOpen),
            _ => assert_eq!(view.phase, self.phase_after(counted)),
        }
    }

    fn phase_after(self, counted: &[Outcome]) -> Phase {
        match (self.circuit, counted) {
            (Circuit::Open, _) | (Circuit::ProbeOfCalls | Circuit::ProbeOfAttempts, [Outcome::Failure, ..]) => {
                Phase::Open
            }
            (Circuit::ProbeOfCalls | Circuit::ProbeOfAttempts, []) => Phase::HalfOpen,
            _ => Phase::Closed,
        }
    }

    /// Checks that the next call is not affected by a leak.
    async fn check_next(self, pipeline: &Pipeline, ledger: &Ledger, counted: &[Outcome]) {
        if self.circuit == Circuit::Throttle && counted == [Outcome::Failure] {
            return; // the throttle rejects at random
        }
        let answer = pipeline.run(ok).await;
        let rejection = answer.as_ref().err().and_then(Error::rejection).map(Rejection::code);
        let expected = match self.phase_after(counted) {
            _ if self.limit == Limit::Spent => Some(RejectionCode::RateLimited),
            Phase::Open => Some(RejectionCode::CircuitOpen),
            _ if self.guards == GuardPlan::RejectingFrom(1) => Some(RejectionCode::GuardRejected),
            _ => None,
        };
        assert_eq!(rejection, expected, "the next call");
        if let (None, Some(view)) = (rejection, pipeline.circuit().await) {
            assert_eq!(view.phase, Phase::Closed);
        }
        let entries = ledger.read();
        assert!(entries.held.is_empty() && entries.disorder.is_empty(), "guards: {entries:?}");
        assert_eq!(entries.finished.len(), usize::from(self.polls > 0) + 1);
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

/// Checks every combination with this breaker. Returns the outcomes that occurred.
async fn check_all(circuit: Circuit) -> HashSet<Option<Outcome>> {
    let (mut seen, mut seed) = (HashSet::new(), 0);
    let flags = |bits: usize| (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0, bits & 8 > 0);
    for limit in Limit::ALL {
        for guards in GuardPlan::ALL {
            for work in [Work::Ok, Work::Err, Work::LateOk, Work::LateErr, Work::Hangs] {
                for (retry, timeout, deadline, late) in (0..16).map(flags) {
                    for pace in [2 * MS, 7 * MS] {
                        let endless = work == Work::Hangs && !timeout && !deadline;
                        let mut ended = false;
                        for polls in 0..=if endless { 5 } else { MOST_POLLS } {
                            let case = Case {
                                limit,
                                circuit,
                                retry,
                                timeout,
                                deadline,
                                guards,
                                work,
                                polls,
                                pace,
                                late,
                                seed,
                            };
                            seed += 1;
                            let named = Named(case);
                            let (by_itself, outcome) = case.check().await;
                            drop(named);
                            seen.insert(outcome);
                            if by_itself {
                                ended = true;
                                break;
                            }
                        }
                        assert!(ended || endless, "{limit:?} {work:?} {retry} {timeout} {deadline} never ends");
                    }
                }
            }
        }
    }
    seen
}

const ALL_OUTCOMES: [Option<Outcome>; 5] =
    [None, Some(Outcome::Success), Some(Outcome::Failure), Some(Outcome::Neutral), Some(Outcome::Cancelled)];

#[tokio::test(start_paused = true)]
async fn without_a_breaker_nothing_is_leaked() {
    assert_eq!(check_all(Circuit::None).await, HashSet::from(ALL_OUTCOMES));
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_counts_calls_counts_each_once() {
    assert_eq!(check_all(Circuit::Calls).await, HashSet::from(ALL_OUTCOMES));
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_counts_attempts_counts_each_once() {
    assert_eq!(check_all(Circuit::Attempts).await, HashSet::from(ALL_OUTCOMES));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_probe_call_frees_its_slot() {
    assert_eq!(check_all(Circuit::ProbeOfCalls).await, HashSet::from(ALL_OUTCOMES));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_probe_attempt_frees_its_slot() {
    let seen = check_all(Circuit::ProbeOfAttempts).await;
    assert!(seen.contains(&Some(Outcome::Failure)) && seen.contains(&Some(Outcome::Cancelled)), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_rejected_by_an_open_circuit_leaks_nothing() {
    let outcomes = HashSet::from([None, Some(Outcome::Cancelled)]);
    assert_eq!(check_all(Circuit::Open).await, outcomes, "cancelled while waiting for its permit");
}

#[tokio::test(start_paused = true)]
async fn a_throttle_does_not_count_a_dropped_call() {
    assert_eq!(check_all(Circuit::Throttle).await, HashSet::from(ALL_OUTCOMES));
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_in_its_fallback_has_already_ended() {
    for polls in 0..4 {
        let ledger = Ledger::default();
        let policy = Policy::named("p")
            .rate_limit(RateLimitSpec::new(1, HOUR).burst(5))
            .breaker(BreakerSpec::consecutive_failures(9))
            .guard(ledger.guard(GUARD_ORDERS[0]));
        let module = ResilienceModule::in_memory().observer(ledger.clone()).policy(policy).build().unwrap();
        let pipeline = module.pipeline("p", ()).unwrap();
        let slow = |_: &Error<Failure>| async {
            tokio::time::sleep(10 * MS).await;
            2
        };
        let attempts = Attempts::default();
        let mut call = Box::pin(pipeline.call().fallback_async(slow).run(|| attempts.run(Work::LateErr)));
        for _ in 0..polls {
            assert!(poll_once(call.as_mut()).is_pending());
        }
        drop(call);
        let outcome = [Outcome::Cancelled, Outcome::Failure][usize::from(polls >= 3)];
        let entries = ledger.read();
        assert_eq!(entries.finished, vec![Some(outcome); usize::from(polls > 0)]);
        assert!(entries.held.is_empty());
        assert_eq!(pipeline.circuit().await.unwrap().calls, u64::from(polls >= 3));
        assert_eq!(pipeline.available_permits().await, Some(5 - u64::from(polls > 0)));
    }
}

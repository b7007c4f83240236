//! Several threads on one pipeline: nothing is lost or counted twice.
//!
//! The threads start together and poll calls of one key manually, on a manual clock, so that every total is known exactly
//! in advance.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use phalanx::describe::{Outcome, Phase};
use phalanx::store::MemoryStore;
use phalanx::store::Rng;
use phalanx::*;
use support::*;

const THREADS: usize = 4;
const CALLS: u64 = 20_000;

/// Percentage of calls that fail.
const BAD_SHARE: u64 = 7;

fn pipeline(clock: &Clock, policy: Policy, ledger: Option<Ledger>) -> Pipeline {
    let mut module = ResilienceModule::in_memory().seed(7).clock(clock.clone()).policy(policy);
    if let Some(ledger) = ledger {
        module = module.observer(ledger);
    }
    module.build().unwrap().pipeline("p", ()).unwrap()
}

/// A breaker that counts and never trips.
fn counting() -> BreakerSpec {
    BreakerSpec::failure_ratio(1.0).min_throughput(1_000_000_000).window(100 * SECOND)
}

/// Runs `work` on all threads at once and returns their results.
fn together<T: Send>(work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(THREADS);
    let run = |thread| {
        start.wait();
        work(thread)
    };
    thread::scope(|threads| {
        let run = &run;
        let running: Vec<_> = (0..THREADS).map(|thread| threads.spawn(move || run(thread))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Makes calls and returns how many were admitted and how many were rejected with `reason`. Any other result panics.
fn make(pipeline: &Pipeline, calls: u64, reason: RejectionCode) -> (u64, u64) {
    let mut ends = (0, 0);
    for _ in 0..calls {
        let rejection = at_once(pipeline.run(ok)).err().map(|error| error.rejection().unwrap().code());
        assert!(rejection.is_none_or(|code| code == reason), "{rejection:?}");
        ends = if rejection.is_none() { (ends.0 + 1, ends.1) } else { (ends.0, ends.1 + 1) };
    }
    ends
}

fn sum(ends: Vec<(u64, u64)>) -> (u64, u64) {
    ends.into_iter().fold((0, 0), |sum, end| (sum.0 + end.0, sum.1 + end.1))
}

/// Fails [`BAD_SHARE`] of every hundred numbers.
async fn bad_at_times(number: u64) -> Result<u32, Failure> {
    if number % 100 < BAD_SHARE { Err(BROKEN) } else { Ok(1) }
}

#[test]
fn while_the_clock_stands_still_exactly_the_burst_is_admitted() {
    let (clock, burst, total) = (Clock::manual(), 7_777, THREADS as u64 * CALLS);
    let policy = Policy::named("p").rate_limit(RateLimitSpec::per_second(100).burst(burst)).breaker(counting());
    let shared = pipeline(&clock, policy, None);
    let ends = sum(together(|_| make(&shared, CALLS, RejectionCode::RateLimited)));
    assert_eq!(ends, (burst, total - burst));
    assert_eq!(at_once(shared.available_permits()), Some(0));
    assert_eq!(at_once(shared.circuit()).unwrap().calls, burst);

    clock.advance(3 * SECOND);
    let ends = sum(together(|_| make(&shared, CALLS, RejectionCode::RateLimited)));
    assert_eq!(ends, (300, total - 300), "exactly the permits of three seconds");
}

#[test]
fn while_the_clock_moves_at_most_burst_plus_rate_times_time_is_admitted() {
    let (clock, burst) = (Clock::manual(), 100);
    let policy = Policy::named("p").rate_limit(RateLimitSpec::per_second(1_000).burst(burst));
    let shared = pipeline(&clock, policy, None);
    let ends = sum(together(|thread| {
        let mut ends = (0, 0);
        for _ in 0..CALLS / 100 {
            if thread == 0 {
                clock.advance(MS);
            }
            ends = sum(vec![ends, make(&shared, 100, RejectionCode::RateLimited)]);
        }
        ends
    }));
    // An upper bound only: refills of a full bucket are lost.
    let time = CALLS / 100;
    assert!(ends.0 <= burst + time, "{ends:?}");
    assert_eq!(ends.0 + ends.1, THREADS as u64 * CALLS);
    let rest = sum(together(|_| make(&shared, CALLS, RejectionCode::RateLimited))).0;
    assert!(ends.0 + rest <= burst + time, "{ends:?} and {rest}");
    assert_eq!(at_once(shared.available_permits()), Some(0));
}

#[test]
fn permits_of_calls_rejected_by_the_circuit_are_refunded() {
    let (clock, burst) = (Clock::manual(), 64);
    let limit = RateLimitSpec::per_second(1).burst(burst);
    let breaker = BreakerSpec::consecutive_failures(1);
    let store = MemoryStore::seeded(clock.clone(), 16, Rng::seeded(7));
    trip(&store, &breaker);
    let policy = Policy::named("p").rate_limit(limit).breaker(breaker);
    let shared = ResilienceModule::in_store(store).policy(policy).build().unwrap().pipeline("p", ()).unwrap();
    // Four concurrent calls never use up 64 permits: every rejection by the circuit refunded its permit.
    assert_eq!(sum(together(|_| make(&shared, CALLS, RejectionCode::CircuitOpen))), (0, THREADS as u64 * CALLS));
    assert_eq!(at_once(shared.available_permits()), Some(burst));
}

#[test]
fn a_breaker_counts_every_call_of_every_thread() {
    let (clock, ledger) = (Clock::manual(), Ledger::default());
    let shared = pipeline(&clock, Policy::named("p").breaker(counting()), Some(ledger.clone()));
    let failures =
        together(|_| (0..CALLS).filter(|n| at_once(shared.run(|| bad_at_times(*n))).is_err()).count() as u64);
    let (total, failures) = (THREADS as u64 * CALLS, failures.into_iter().sum::<u64>());
    assert_eq!(failures, total * BAD_SHARE / 100);
    let view = at_once(shared.circuit()).unwrap();
    assert_eq!((view.calls, view.failures, view.probes), (total, failures, 0));
    let outcomes = ledger.read().finished;
    let observed = |outcome| outcomes.iter().filter(|emitted| **emitted == Some(outcome)).count() as u64;
    assert_eq!((observed(Outcome::Success), observed(Outcome::Failure)), (total - failures, failures));
}

#[test]
fn a_breaker_counts_every_call_while_slices_rotate_and_it_is_inspected() {
    let clock = Clock::manual();
    let shared = pipeline(&clock, Policy::named("p").breaker(counting()), None);
    together(|thread| {
        for number in 0..CALLS {
            let _ = at_once(shared.run(|| bad_at_times(number)));
            // The window is 100 s, its slices 10 s: the threads move through four of them together.
            if number % 1_000 == 0 {
                clock.advance(500 * MS);
            }
            if thread == 0 && number % 64 == 0 {
                at_once(shared.circuit());
            }
        }
    });
    let (view, total) = (at_once(shared.circuit()).unwrap(), THREADS as u64 * CALLS);
    assert_eq!((view.calls, view.failures), (total, total * BAD_SHARE / 100));
}

#[test]
fn calls_that_end_on_another_thread_than_they_began_are_counted_once() {
    let clock = Clock::manual();
    let policy = Policy::named("p").breaker(counting()).rate_limit(RateLimitSpec::per_second(1).burst(1_000_000));
    let shared = Arc::new(pipeline(&clock, policy, None));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).build().unwrap();
    let (tasks, each) = (64, 200);
    runtime.block_on(async {
        let tasks = (0..tasks).map(|_| {
            let shared = shared.clone();
            tokio::spawn(async move {
                for number in 0..each {
                    let operation = || async move {
                        tokio::task::yield_now().await;
                        bad_at_times(number).await
                    };
                    let _ = shared.run(operation).await;
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
    let view = at_once(shared.circuit()).unwrap();
    assert_eq!((view.calls, view.failures), (tasks * each, tasks * 2 * BAD_SHARE));
    assert_eq!(at_once(shared.available_permits()), Some(1_000_000 - tasks * each));
}

#[test]
fn exactly_the_allowed_number_of_probes_is_admitted_at_a_time() {
    let breaker = BreakerSpec::consecutive_failures(1).break_for(SECOND).probes(3, 1_000_000).probe_lease(HOUR);
    let (clock, inside) = (Clock::manual(), AtomicU64::new(0));
    let store = MemoryStore::seeded(clock.clone(), 16, Rng::seeded(7));
    trip(&store, &breaker);
    clock.advance(Duration::from_secs(1));
    let policy = Policy::named("p").breaker(breaker);
    let shared = ResilienceModule::in_store(store).policy(policy).build().unwrap().pipeline("p", ()).unwrap();
    for _ in 0..50 {
        let all_asked = Barrier::new(THREADS);
        let ends = together(|_| {
            // Every thread keeps two calls in flight until all have asked.
            let mut calls = [(); 2].map(|()| Box::pin(shared.run(hang)));
            let under_way = calls.iter_mut().map(|call| u64::from(poll_once(call.as_mut()).is_pending())).sum::<u64>();
            inside.fetch_add(under_way, Ordering::Relaxed);
            all_asked.wait();
            (under_way, inside.load(Ordering::Relaxed))
        });
        assert_eq!(ends.iter().map(|end| end.0).sum::<u64>(), 3);
        assert!(ends.iter().all(|end| end.1 == 3));
        inside.store(0, Ordering::Relaxed);
        let view = at_once(shared.circuit()).unwrap();
        assert_eq!((view.phase, view.probes), (Phase::HalfOpen, 0), "all were dropped");
    }
}

#[test]
fn a_breaker_that_fails_on_many_threads_opens_once() {
    for _ in 0..50 {
        let (clock, ledger) = (Clock::manual(), Ledger::default());
        let opened = Arc::new(AtomicU64::new(0));
        let count = opened.clone();
        let watch = move |event: &Event<'_>| {
            count.fetch_add(u64::from(matches!(event.kind, EventKind::Transition(_))), Ordering::Relaxed);
        };
        let policy = Policy::named("p").breaker(BreakerSpec::consecutive_failures(10));
        let module = ResilienceModule::in_memory().clock(clock).observer(watch).observer(ledger.clone());
        let shared = module.policy(policy).build().unwrap().pipeline("p", ()).unwrap();
        let reached = together(|_| {
            let calls = (0..100).map(|_| at_once(shared.run(|| async { Err::<u32, _>(BROKEN) })));
            calls.filter(|end| *end == Err(Error::Inner(BROKEN))).count()
        });
        let reached: usize = reached.into_iter().sum();
        assert_eq!(opened.load(Ordering::Relaxed), 1);
        assert!((10..10 + THREADS).contains(&reached), "{reached}: ten, and those already in flight");
        let rejected = ledger.read().finished.iter().filter(|outcome| outcome.is_none()).count();
        assert_eq!(reached + rejected, THREADS * 100);
    }
}

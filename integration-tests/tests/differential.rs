//! Every store replies like the state machine of core, to the microsecond, for random sequences of operations.
//!
//! A new store takes part with one line in [`buckets`], one in [`circuits`] and one in [`tallies`]. In-process stores run many long sequences;
//! a real Redis, where each step takes a few round trips, runs fewer.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

use std::future::Future;
use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, Override, Sample};
use phalanx_core::kind::Outcome;
use phalanx_core::rate_limit::RateLimitSpec;
use phalanx_core::store::Allowance;
use phalanx_testkit::bed::{LuaBed, MemoryBed, RedisBed};
use phalanx_testkit::differential::{Subject, breaker, compare, rate_limit, tally};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

const REPLICAS: usize = 3;
const SECOND: Duration = Duration::from_secs(1);

type Buckets = Vec<Box<dyn Subject<rate_limit::Step, rate_limit::Reply>>>;
type Tallies = Vec<Box<dyn Subject<tally::Step, tally::Reply>>>;
type Circuits = Vec<Box<dyn Subject<breaker::Step, breaker::Reply>>>;

/// The in-process stores, with a bucket each.
async fn buckets(spec: &RateLimitSpec) -> Buckets {
    vec![
        Box::new(rate_limit::BedSubject::<MemoryBed>::new(spec, REPLICAS).await),
        Box::new(rate_limit::BedSubject::<LuaBed>::new(spec, REPLICAS).await),
    ]
}

/// The in-process stores, with a breaker each.
async fn circuits(spec: &BreakerSpec) -> Circuits {
    vec![
        Box::new(breaker::BedSubject::<MemoryBed>::new(spec, REPLICAS).await),
        Box::new(breaker::BedSubject::<LuaBed>::new(spec, REPLICAS).await),
    ]
}

/// The in-process stores, with a tally each.
async fn tallies(window: Duration) -> Tallies {
    vec![
        Box::new(tally::BedSubject::<MemoryBed>::new(window, REPLICAS).await),
        Box::new(tally::BedSubject::<LuaBed>::new(window, REPLICAS).await),
    ]
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Short waits hit edges, long ones cross windows, breaks and leases, and whole seconds hit their ends exactly.
fn waits() -> impl Strategy<Value = Duration> {
    prop_oneof![
        2 => (0_u64..10).prop_map(Duration::from_micros),
        4 => (0_u64..2_000_000).prop_map(Duration::from_micros),
        2 => (1_u64..12).prop_map(Duration::from_secs),
        1 => (0_u64..100_000_000).prop_map(Duration::from_micros),
    ]
}

fn rates() -> impl Strategy<Value = RateLimitSpec> {
    // Most of these rates do not divide a second.
    let pers = select(vec![1_u64, 999_983, 1_000_000, 3_000_000, 60_000_000]);
    (1_u64..50, pers, option::of(1_u64..30)).prop_map(|(permits, per, burst)| {
        let spec = RateLimitSpec::new(permits, Duration::from_micros(per));
        burst.map_or(spec.clone(), |burst| spec.burst(burst))
    })
}

fn bucket_steps() -> impl Strategy<Value = Vec<rate_limit::Step>> {
    use rate_limit::Step;
    let max_wait = prop_oneof![2 => Just(Duration::ZERO), 1 => waits()];
    let step = prop_oneof![
        12 => (0..REPLICAS, 0_u32..8, max_wait).prop_map(|(by, cost, max_wait)| Step::Acquire { by, cost, max_wait }),
        3 => (0..REPLICAS, 0_u32..5).prop_map(|(by, cost)| Step::Refund { by, cost }),
        2 => (0..REPLICAS, prop_oneof![9 => 0_u32..8, 1 => any::<u32>()])
            .prop_map(|(by, permits)| Step::Charge { by, permits }),
        2 => (0..REPLICAS).prop_map(|by| Step::Peek { by }),
        1 => rates().prop_map(Step::Retune),
        6 => waits().prop_map(Step::Wait),
    ];
    vec(step, 1..200)
}

/// Breakers that trip often enough to reach every phase within a few hundred steps.
fn trips() -> impl Strategy<Value = BreakerSpec> {
    let when = (option::of(0.2_f64..1.0), option::of(1_u32..6), option::of(0.3_f64..1.0), any::<bool>(), 1_u32..12);
    let window = select(vec![SECOND / 100, SECOND, 7 * SECOND, 10 * SECOND]);
    let how = (window, 1_u64..15_000_000, 1.0_f64..3.0);
    let back = (1_u32..4, 1_u32..4, option::of(1_u64..10_000_000), option::of((1_u64..8_000_000, 1_u32..6)));
    (when, how, back).prop_map(|(when, (window, break_for, growth), (probes, proofs, lease, ramp))| {
        let (failures, row, slow, latency, calls) = when;
        let micros = Duration::from_micros;
        let mut spec = BreakerSpec { failure_ratio: failures, consecutive_failures: row, ..BreakerSpec::default() };
        if let Some(slow) = slow {
            spec = spec.or_slow_call_ratio(slow, SECOND);
        }
        if latency {
            spec = spec.or_latency(0.95, SECOND, 2 * SECOND);
        }
        spec = spec.window(window).min_throughput(calls).break_for(micros(break_for)).probes(probes, proofs);
        spec = spec.escalate(growth, 60 * SECOND);
        spec.probe_lease = lease.map(micros);
        ramp.map_or(spec.clone(), |(over, steps)| spec.ramp(micros(over), steps))
    })
}

fn circuit_steps() -> impl Strategy<Value = Vec<breaker::Step>> {
    use breaker::Step;
    let by = || 0..REPLICAS;
    let outcome = prop_oneof![
        4 => Just(Outcome::Success),
        4 => Just(Outcome::Failure),
        1 => Just(Outcome::Neutral),
        1 => Just(Outcome::Cancelled),
    ];
    let latency = prop_oneof![4 => Just(SECOND / 1_000), 1 => Just(SECOND), 1 => Just(2 * SECOND)];
    let sample = (outcome, latency).prop_map(|(outcome, latency)| Sample { outcome, latency });
    let overrides = [Override::Open, Override::Closed, Override::Disabled, Override::MetricsOnly].map(Some);
    // Overrides are released more often than set, or the phase would rarely change.
    let overridden = prop_oneof![3 => Just(None), 2 => select(overrides.to_vec())];
    let value = option::weighted(0.9, select(vec![SECOND / 2, SECOND, 2 * SECOND, 2 * SECOND]));
    let step = prop_oneof![
        40 => by().prop_map(|by| Step::Admit { by }),
        40 => (by(), any::<usize>(), sample).prop_map(|(by, which, sample)| Step::Record { by, which, sample }),
        4 => (by(), value).prop_map(|(by, value)| Step::Quantile { by, value }),
        2 => (by(), overridden).prop_map(|(by, overridden)| Step::Force { by, overridden }),
        1 => by().prop_map(|by| Step::Reset { by }),
        // Rarely: `inspect` makes stores sum up their striped counters, which would hide pending ones.
        3 => by().prop_map(|by| Step::Inspect { by }),
        1 => trips().prop_map(|spec| Step::Retune(Box::new(spec))),
        12 => waits().prop_map(Step::Wait),
    ];
    vec(step, 1..300)
}

fn windows() -> impl Strategy<Value = Duration> {
    select(vec![Duration::from_micros(3), SECOND / 7, 10 * SECOND, 120 * SECOND])
}

fn tally_steps() -> impl Strategy<Value = Vec<tally::Step>> {
    use tally::Step;
    let by = || 0..REPLICAS;
    let age = prop_oneof![3 => Just(Duration::ZERO), 1 => waits()];
    let per_call = select(vec![0.0, 0.1, 0.2, 1.0 / 3.0, 1.0]);
    let allowance = (per_call, 0_u32..6).prop_map(|(per_call, floor)| Allowance { per_call, floor: floor.into() });
    let step = prop_oneof![
        8 => (by(), 0_u32..9, 0_u32..3, age).prop_map(|(by, calls, marks, age)| Step::Add { by, calls, marks, age }),
        12 => (by(), allowance).prop_map(|(by, allowance)| Step::Withdraw { by, allowance }),
        3 => (by(), any::<usize>()).prop_map(|(by, which)| Step::PutBack { by, which }),
        2 => by().prop_map(|by| Step::Sum { by }),
        6 => waits().prop_map(Step::Wait),
    ];
    vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_tally_replies_like_the_machine(window in windows(), mut steps in tally_steps()) {
        steps.push(tally::Step::Sum { by: 1 });
        let verdict = run(async {
            compare(&mut tally::Machine::new(window, REPLICAS), &mut tallies(window).await, &steps).await
        });
        prop_assert_eq!(verdict, Ok(()));
    }

    #[test]
    fn every_bucket_replies_like_the_machine(spec in rates(), mut steps in bucket_steps()) {
        steps.push(rate_limit::Step::Peek { by: 1 });
        let verdict = run(async {
            compare(&mut rate_limit::Machine::new(&spec), &mut buckets(&spec).await, &steps).await
        });
        prop_assert_eq!(verdict, Ok(()));
    }

    #[test]
    fn every_breaker_replies_like_the_machine(spec in trips(), mut steps in circuit_steps()) {
        steps.push(breaker::Step::Inspect { by: 1 });
        let verdict = run(async {
            compare(&mut breaker::Machine::new(&spec), &mut circuits(&spec).await, &steps).await
        });
        prop_assert_eq!(verdict, Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn every_tally_in_redis_replies_like_the_machine(window in windows(), mut steps in tally_steps()) {
        steps.push(tally::Step::Sum { by: 1 });
        let verdict = run(async {
            let mut there: Tallies = vec![Box::new(tally::BedSubject::<RedisBed>::new(window, REPLICAS).await)];
            compare(&mut tally::Machine::new(window, REPLICAS), &mut there, &steps).await
        });
        prop_assert_eq!(verdict, Ok(()));
    }

    #[test]
    fn every_bucket_in_redis_replies_like_the_machine(spec in rates(), mut steps in bucket_steps()) {
        steps.push(rate_limit::Step::Peek { by: 1 });
        let verdict = run(async {
            let mut there: Buckets = vec![Box::new(rate_limit::BedSubject::<RedisBed>::new(&spec, REPLICAS).await)];
            compare(&mut rate_limit::Machine::new(&spec), &mut there, &steps).await
        });
        prop_assert_eq!(verdict, Ok(()));
    }

    /// One replica: several that count each other trip by the evidence of all (decision 0020), which is not the order in which
    /// a machine in one process sees the outcomes. The in-process bed, whose replicas do not count each other, has three.
    #[test]
    fn every_breaker_in_redis_replies_like_the_machine(spec in trips(), mut steps in circuit_steps()) {
        steps.push(breaker::Step::Inspect { by: 1 });
        let verdict = run(async {
            let mut there: Circuits = vec![Box::new(breaker::BedSubject::<RedisBed>::new(&spec, 1).await)];
            compare(&mut breaker::Machine::new(&spec), &mut there, &steps).await
        });
        prop_assert_eq!(verdict, Ok(()));
    }
}

#[tokio::test]
async fn a_bucket_with_different_replies_is_detected() {
    let mut reference = rate_limit::Machine::new(&RateLimitSpec::per_second(10));
    let mut generous = buckets(&RateLimitSpec::per_second(11)).await;
    let steps = [rate_limit::Step::Wait(SECOND), rate_limit::Step::Peek { by: 0 }];
    let verdict = compare(&mut reference, &mut generous, &steps).await.unwrap_err();
    assert!(verdict.starts_with("step 1, Peek") && verdict.contains("MemoryBed"), "{verdict}");
}

#[tokio::test]
async fn a_breaker_with_different_replies_is_detected() {
    let mut reference = breaker::Machine::new(&BreakerSpec::consecutive_failures(1));
    let mut patient = circuits(&BreakerSpec::consecutive_failures(2)).await;
    let sample = Sample { outcome: Outcome::Failure, latency: Duration::ZERO };
    let steps = [breaker::Step::Admit { by: 0 }, breaker::Step::Record { by: 1, which: 0, sample }];
    let verdict = compare(&mut reference, &mut patient, &steps).await.unwrap_err();
    assert!(verdict.starts_with("step 1, Record") && verdict.contains("MemoryBed"), "{verdict}");
}

//! Four times the capacity of the dependency for ten simulated seconds: which calls are shed, and that every call ends once.

#![allow(clippy::unwrap_used)] // helpers of tests may panic

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::*;
use support::*;
use tokio::time::{Instant, sleep_until};

/// Ten at a time, 100 ms each: 100 calls a second.
const SLOTS: u32 = 10;
const CAPACITY: f64 = 100.0;
const QUEUE_LENGTH: u32 = 12;
const DURATION: Duration = Duration::from_secs(10);

/// Calls a second of each tier: 400 in all; the critical ones are well below the capacity.
const LOAD: [(Criticality, u32); 4] = [
    (Criticality::Critical, 30),
    (Criticality::Normal, 60),
    (Criticality::Degraded, 60),
    (Criticality::BestEffort, 250),
];

fn prioritized() -> BulkheadSpec {
    BulkheadSpec::fixed(SLOTS).queue(QUEUE_LENGTH).prioritized().queue_target(100 * MS).queue_interval(200 * MS)
}

/// The results of the calls of one tier.
#[derive(Debug, Default)]
struct TierCounts {
    asked: usize,
    answered: usize,
    rejected: BTreeMap<RejectionCode, usize>,
}

impl TierCounts {
    fn lost(&self) -> usize {
        self.rejected.values().sum()
    }
}

/// Spawns calls at random intervals and checks the queue at every arrival.
async fn overload(spec: BulkheadSpec, seed: u64) -> BTreeMap<Criticality, TierCounts> {
    let log = Log::default();
    let module = builder(Policy::named("p").bulkhead(spec)).observer(log.clone()).build().unwrap();
    let pipeline = module.pipeline("p", ()).unwrap();
    let (rng, served) = (Rng::seeded(seed), Arc::new(AtomicUsize::new(0)));
    let whole: u32 = LOAD.iter().map(|(_, rate)| rate).sum();
    let (mut calls, mut next) = (Vec::new(), Instant::now());
    let end = next + DURATION;
    while next < end {
        sleep_until(next).await;
        next += SECOND.mul_f64(-(1.0 - rng.unit()).ln() / f64::from(whole));
        let mut drawn = rng.unit() * f64::from(whole);
        let (criticality, _) = *LOAD
            .iter()
            .find(|(_, rate)| {
                drawn -= f64::from(*rate);
                drawn < 0.0
            })
            .unwrap();
        let (pipeline, served, takes) = (pipeline.clone(), served.clone(), rng.between(80 * MS, 120 * MS));
        let view = pipeline.bulkhead().unwrap();
        assert!(view.waiting <= QUEUE_LENGTH && view.in_use <= SLOTS, "{view:?}");
        let call = async move {
            pipeline
                .run(|| {
                    served.fetch_add(1, Ordering::Relaxed);
                    after(takes, Ok(1))
                })
                .await
        };
        let context = Context::EMPTY.with_criticality(criticality);
        calls.push((criticality, tokio::spawn(scope(context, call))));
    }
    let asked = calls.len();
    let mut tiers = BTreeMap::<_, TierCounts>::new();
    for (criticality, call) in calls {
        let counts = tiers.entry(criticality).or_default();
        counts.asked += 1;
        match call.await.unwrap() {
            Ok(_) => counts.answered += 1,
            Err(error) => *counts.rejected.entry(error.rejection().unwrap().code()).or_default() += 1,
        }
    }
    let answered: usize = tiers.values().map(|counts| counts.answered).sum();
    assert!(asked as f64 > 3.8 * CAPACITY * DURATION.as_secs_f64(), "{asked}: four times the capacity");
    assert!(answered as f64 > 0.95 * CAPACITY * DURATION.as_secs_f64(), "{answered}: the capacity is used");
    assert_eq!(log.count("finished"), asked, "every call ends exactly once");
    assert_eq!(served.load(Ordering::Relaxed), answered, "a rejected call never reaches the dependency");
    let view = pipeline.bulkhead().unwrap();
    assert_eq!((view.limit, view.in_use, view.waiting), (SLOTS, 0, 0), "all slots are free");
    tiers
}

#[tokio::test(start_paused = true)]
async fn at_four_times_the_capacity_critical_calls_lose_nothing_while_best_effort_is_shed() {
    for (seed, spec) in [(1, prioritized()), (2, prioritized()), (3, prioritized().adaptive_lifo())] {
        let tiers = overload(spec, seed).await;
        let tier = |criticality| &tiers[&criticality];
        assert_eq!(tier(Criticality::Critical).lost(), 0, "{tiers:?}");
        let best_effort = tier(Criticality::BestEffort);
        assert!(best_effort.lost() * 100 > best_effort.asked * 90, "{tiers:?}");
        assert!(best_effort.rejected[&RejectionCode::BulkheadQueueShed] > 0, "{tiers:?}");
        // The more critical, the larger the fraction that is answered.
        let shares = tiers.values().map(|counts| counts.answered as f64 / counts.asked as f64);
        assert!(shares.is_sorted(), "{tiers:?}");
    }
}

/// Shows that the test above passes because of priorities, not because of a light load.
#[tokio::test(start_paused = true)]
async fn without_priorities_critical_calls_are_lost_like_any_other() {
    let tiers = overload(BulkheadSpec { prioritized: false, ..prioritized() }, 1).await;
    let critical = &tiers[&Criticality::Critical];
    assert!(critical.lost() * 2 > critical.asked, "{tiers:?}");
}

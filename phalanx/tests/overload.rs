//! Four times what the dependency can do, for ten simulated seconds: who is shed and who is not, and that nothing is
//! lost on the way.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

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
const PLACES: u32 = 12;
const LENGTH: Duration = Duration::from_secs(10);

/// Calls a second of each tier: 400 in all, and the critical ones fit in easily.
const LOAD: [(Criticality, u32); 4] = [
    (Criticality::Critical, 30),
    (Criticality::Normal, 60),
    (Criticality::Degraded, 60),
    (Criticality::BestEffort, 250),
];

fn prioritized() -> BulkheadSpec {
    BulkheadSpec::fixed(SLOTS).queue(PLACES).prioritized().queue_target(100 * MS).queue_interval(200 * MS)
}

/// What became of the calls of one tier.
#[derive(Debug, Default)]
struct Tally {
    asked: usize,
    answered: usize,
    rejected: BTreeMap<RejectionCode, usize>,
}

impl Tally {
    fn lost(&self) -> usize {
        self.rejected.values().sum()
    }
}

/// Calls come as they please, each as a task of its own; at every arrival the queue is looked at.
async fn overload(spec: BulkheadSpec, seed: u64) -> BTreeMap<Criticality, Tally> {
    let log = Log::default();
    let module = builder(Policy::named("p").bulkhead(spec)).observer(log.clone()).build().unwrap();
    let pipeline = module.pipeline("p", ()).unwrap();
    let (chance, served) = (Rng::seeded(seed), Arc::new(AtomicUsize::new(0)));
    let whole: u32 = LOAD.iter().map(|(_, rate)| rate).sum();
    let (mut calls, mut next) = (Vec::new(), Instant::now());
    let end = next + LENGTH;
    while next < end {
        sleep_until(next).await;
        next += SECOND.mul_f64(-(1.0 - chance.unit()).ln() / f64::from(whole));
        let mut drawn = chance.unit() * f64::from(whole);
        let (criticality, _) = *LOAD
            .iter()
            .find(|(_, rate)| {
                drawn -= f64::from(*rate);
                drawn < 0.0
            })
            .unwrap();
        let (pipeline, served, takes) = (pipeline.clone(), served.clone(), chance.between(80 * MS, 120 * MS));
        let view = pipeline.bulkhead().unwrap();
        assert!(view.waiting <= PLACES && view.in_use <= SLOTS, "{view:?}");
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
    let mut tallies = BTreeMap::<_, Tally>::new();
    for (criticality, call) in calls {
        let tally = tallies.entry(criticality).or_default();
        tally.asked += 1;
        match call.await.unwrap() {
            Ok(_) => tally.answered += 1,
            Err(error) => *tally.rejected.entry(error.rejection().unwrap().code()).or_default() += 1,
        }
    }
    let answered: usize = tallies.values().map(|tally| tally.answered).sum();
    assert!(asked as f64 > 3.8 * CAPACITY * LENGTH.as_secs_f64(), "{asked}: four times the capacity");
    assert!(answered as f64 > 0.95 * CAPACITY * LENGTH.as_secs_f64(), "{answered}: the capacity is used");
    assert_eq!(log.count("finished"), asked, "every call ends exactly once");
    assert_eq!(served.load(Ordering::Relaxed), answered, "whoever is rejected never reaches the dependency");
    let view = pipeline.bulkhead().unwrap();
    assert_eq!((view.limit, view.in_use, view.waiting), (SLOTS, 0, 0), "all slots are back");
    tallies
}

#[tokio::test(start_paused = true)]
async fn at_four_times_the_capacity_critical_calls_lose_nothing_while_best_effort_is_shed() {
    for (seed, spec) in [(1, prioritized()), (2, prioritized()), (3, prioritized().adaptive_lifo())] {
        let tallies = overload(spec, seed).await;
        let tier = |criticality| &tallies[&criticality];
        assert_eq!(tier(Criticality::Critical).lost(), 0, "{tallies:?}");
        let best_effort = tier(Criticality::BestEffort);
        assert!(best_effort.lost() * 100 > best_effort.asked * 90, "{tallies:?}");
        assert!(best_effort.rejected[&RejectionCode::BulkheadQueueShed] > 0, "{tallies:?}");
        // The more critical, the greater the share that is answered.
        let shares = tallies.values().map(|tally| tally.answered as f64 / tally.asked as f64);
        assert!(shares.is_sorted(), "{tallies:?}");
    }
}

/// So that the test above shows what priorities do, and not how light the load is.
#[tokio::test(start_paused = true)]
async fn without_priorities_critical_calls_are_lost_like_any_other() {
    let tallies = overload(BulkheadSpec { prioritized: false, ..prioritized() }, 1).await;
    let critical = &tallies[&Criticality::Critical];
    assert!(critical.lost() * 2 > critical.asked, "{tallies:?}");
}

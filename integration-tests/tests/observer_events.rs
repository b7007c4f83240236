//! Events of a fleet over a real Redis: every replica emits every transition once, whichever replica caused it and however
//! it was received.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx::describe::Phase;
use phalanx::{BreakerSpec, Event, EventKind, Pipeline, Policy, RateLimitSpec, ResilienceModule};
use phalanx_testkit::server::{Proxy, Redis};
use tokio::time::{Instant, sleep, timeout};

const MS: Duration = Duration::from_millis(1);

/// How often each transition was emitted, by epoch and phase.
type TransitionCounts = Arc<Mutex<BTreeMap<(u64, &'static str), u32>>>;

struct Replica {
    module: ResilienceModule,
    pipeline: Pipeline,
    counts: TransitionCounts,
}

impl Replica {
    fn new(url: &str, environment: &str, policy: Policy) -> Self {
        let counts = TransitionCounts::default();
        let recorder = counts.clone();
        let module = ResilienceModule::with_redis(redis::Client::open(url).unwrap())
            .environment(environment)
            .store_budget(500 * MS)
            .seed(7) // the same for all: they must still be distinct replicas
            .policy(policy)
            .on_event(move |event: &Event<'_>| {
                if let EventKind::Transition(change) = event.kind {
                    *recorder.lock().entry((change.epoch, change.to.name())).or_default() += 1;
                }
            })
            .build()
            .unwrap();
        Self { pipeline: module.pipeline("p", "r").unwrap(), module, counts }
    }

    async fn call(&self, good: bool) {
        let answer =
            || async move { if good { Ok(()) } else { Err(io::Error::from(io::ErrorKind::ConnectionRefused)) } };
        let _ = self.pipeline.run(answer).await;
    }

    fn epochs(&self) -> Vec<(u64, &'static str)> {
        self.counts.lock().keys().copied().collect()
    }
}

fn environment(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

async fn until(mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(MS).await;
        }
    };
    timeout(Duration::from_secs(10), waiting).await.unwrap();
}

#[tokio::test]
async fn every_transition_is_emitted_once_on_every_replica() {
    let (url, environment) = (Redis::shared().await, environment("transitions"));
    let policy = || Policy::named("p").breaker(BreakerSpec::consecutive_failures(2).break_for(15 * MS));
    let fleet: Vec<_> = (0..3).map(|_| Replica::new(url, &environment, policy())).collect();
    for replica in &fleet {
        replica.call(true).await; // every replica has the current phase
    }
    // Trips and recoveries, caused by different replicas in turn.
    for round in 0..8 {
        let (bad, good) = (&fleet[round % 3], &fleet[(round + 1) % 3]);
        until_phase(bad, false, Phase::Open).await;
        until_phase(good, true, Phase::Closed).await;
    }
    let last = |replica: &Replica| replica.epochs().last().copied();
    until(|| fleet.iter().all(|replica| last(replica) == last(&fleet[0]))).await;
    for replica in &fleet {
        let counts = replica.counts.lock();
        assert!(counts.len() >= 24, "{counts:?}");
        assert!(counts.values().all(|times| *times == 1), "emitted more than once: {counts:?}");
        let epochs: Vec<u64> = counts.keys().map(|(epoch, _)| *epoch).collect();
        let without_gaps: Vec<u64> = (2..2 + epochs.len() as u64).collect();
        assert_eq!(epochs, without_gaps, "a transition was not emitted");
    }
}

async fn until_phase(replica: &Replica, good: bool, phase: Phase) {
    let reached = async {
        while replica.pipeline.circuit().await.is_none_or(|view| view.phase != phase) {
            replica.call(good).await;
        }
    };
    timeout(Duration::from_secs(10), reached).await.unwrap();
}

#[tokio::test]
async fn replicas_with_the_same_seed_count_as_two() {
    let (url, environment) = (Redis::shared().await, environment("seed"));
    let policy = || Policy::named("p").rate_limit(RateLimitSpec::per_second(1_000));
    let fleet = [0, 1].map(|_| Replica::new(url, &environment, policy()));
    for replica in &fleet {
        replica.call(true).await;
    }
    until(|| fleet.iter().all(|replica| replica.module.replicas() == Some(2))).await;
}

#[tokio::test]
async fn the_decision_record_includes_the_wait_for_the_store() {
    let (url, environment) = (Redis::shared().await, environment("elapsed"));
    let proxy = Proxy::start(url.trim_start_matches("redis://").trim_end_matches('/')).await;
    let policy = Policy::named("p").rate_limit(RateLimitSpec::new(1, Duration::from_secs(60)));
    let replica = Replica::new(&proxy.url(), &environment, policy);
    replica.call(true).await; // takes the only permit and loads the scripts
    proxy.delay(40 * MS);
    let started = Instant::now();
    let call = replica.module.call("p", "r");
    let (answer, record) = call.run_recorded(|| async { Ok::<_, io::Error>(()) }).await;
    assert!(answer.is_err());
    assert!(record.elapsed >= 40 * MS && record.elapsed <= started.elapsed(), "{:?}", record.elapsed);
}

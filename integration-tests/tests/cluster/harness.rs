//! What the tests of Redis' formations share: a stack that uses everything, a log of what observers are told, and calls
//! that say who decided and how long it took.

// Each test file uses its part; a test may unwrap.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use phalanx::describe::Phase;
use phalanx::store::{RedisConnection, StoreMode};
use phalanx::*;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// The store budget of these tests. Wide, because a twin's answer would only say that the machine is busy.
pub const BUDGET: Duration = Duration::from_millis(400);

/// How long anything may take that is waited for; far more than it does.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// What a busy machine may add to a time that is measured.
pub const SLACK: Duration = Duration::from_millis(200);

/// What the store told its observers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Degraded(String),
    Recovered { degraded_decisions: u64 },
    Replicas(u32),
    StateLost,
    Phase(String, Phase),
}

/// A log of it. Clones are the same log.
#[derive(Clone)]
pub struct Log(Arc<watch::Sender<Vec<Told>>>);

impl Default for Log {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }
}

impl Log {
    pub fn read(&self) -> Vec<Told> {
        self.0.borrow().clone()
    }

    /// What was told until now does not count.
    pub fn clear(&self) {
        self.0.send_modify(Vec::clear);
    }

    /// Returns when the log is as wanted.
    pub async fn until(&self, what: &str, wanted: impl Fn(&[Told]) -> bool) {
        let mut log = self.0.subscribe();
        let told = timeout(WAIT_TIMEOUT, log.wait_for(|told| wanted(told))).await.map(|told| told.is_ok());
        assert_eq!(told, Ok(true), "{what} was never told: {:?}", self.read());
    }

    /// The reasons of all outages so far.
    pub fn outages(&self) -> Vec<String> {
        let reason = |told: Told| match told {
            Told::Degraded(reason) => Some(reason),
            _ => None,
        };
        self.read().into_iter().filter_map(reason).collect()
    }

    /// How many outages are over.
    pub fn recoveries(&self) -> usize {
        self.read().iter().filter(|told| matches!(told, Told::Recovered { .. })).count()
    }

    /// Returns when so many outages have begun.
    pub async fn until_degraded(&self, times: usize) {
        let begun = |told: &[Told]| told.iter().filter(|told| matches!(told, Told::Degraded(_))).count() >= times;
        self.until("degraded", begun).await;
    }

    /// Returns when so many outages are over.
    pub async fn until_recovered(&self, times: usize) {
        let over = |told: &[Told]| told.iter().filter(|told| matches!(told, Told::Recovered { .. })).count() >= times;
        self.until("recovered", over).await;
    }
}

impl Observer for Log {
    fn on_event(&self, event: &Event<'_>) {
        let route = event.key.and_then(|key| key.route()).unwrap_or_default();
        let told = match event.kind {
            EventKind::StoreDegraded { reason } => Told::Degraded(reason.to_owned()),
            EventKind::StoreRecovered { degraded_decisions, .. } => Told::Recovered { degraded_decisions },
            EventKind::Replicas { live } => Told::Replicas(live),
            EventKind::StateLost => Told::StateLost,
            EventKind::Transition(change) => Told::Phase(route.to_owned(), change.to),
            _ => return,
        };
        self.0.send_modify(|log| log.push(told));
    }
}

/// A failure that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl Classify for Broken {
    fn classify(&self) -> Class {
        Class::from(Kind::Infrastructure)
    }
}

/// Rate limit, breaker and latency digest; the limit is never reached, one failure trips.
pub fn stack() -> Policy {
    let breaker = BreakerSpec {
        consecutive_failures: Some(1),
        latency_quantile: Some(0.95),
        latency_threshold: Some(30 * SECOND),
        break_duration: 60 * SECOND,
        ..BreakerSpec::default()
    };
    Policy::named("stack").rate_limit(RateLimitSpec::per_second(1_000_000)).breaker(breaker)
}

/// A replica of the fleet, not yet built: tests add what they vary.
pub fn replica(source: impl Into<RedisConnection>, log: &Log) -> ModuleBuilder {
    let builder = ResilienceModule::with_redis(source).store_budget(BUDGET).policy(stack());
    builder.shared_observer(Arc::new(log.clone()))
}

/// One good call: what was decided, and how long it took.
pub async fn call(pipeline: &Pipeline) -> (Decision, Duration) {
    let began = Instant::now();
    let (answer, decision) = pipeline.call().run_recorded(|| async { Ok::<_, Broken>(()) }).await;
    assert!(answer.is_ok() || decision.verdict == Verdict::Rejected, "{answer:?}");
    (decision, began.elapsed())
}

/// One failing call.
pub async fn fail(pipeline: &Pipeline) {
    let failed = pipeline.run(|| async { Err::<(), _>(Broken) }).await;
    assert_eq!(failed, Err(Error::Inner(Broken)));
}

/// Calls until the fleet decides.
pub async fn until_fleet(pipeline: &Pipeline) {
    let calling = async {
        while call(pipeline).await.0.source != Source::Fleet {
            tokio::time::sleep(5 * MS).await;
        }
    };
    within_timeout(calling).await;
}

/// Opens the connection and waits until Redis decides; what was told meanwhile does not count, because a busy machine may
/// take its time.
pub async fn warm_up(module: &ResilienceModule, log: &Log) {
    until_fleet(&module.pipeline("stack", "the connection is opened").unwrap()).await;
    until_shared(module).await;
    log.clear();
}

/// Waits for something that must happen.
pub async fn within_timeout<T>(awaited: impl Future<Output = T>) -> T {
    timeout(WAIT_TIMEOUT, awaited).await.expect("it happens, in time")
}

/// Returns when Redis decides everything again.
pub async fn until_shared(module: &ResilienceModule) {
    within_timeout(async {
        while module.store_mode() != Some(StoreMode::Shared) {
            tokio::time::sleep(5 * MS).await;
        }
    })
    .await;
}

/// Calls until the circuit rejects, and how long that took.
pub async fn until_rejected(pipeline: &Pipeline) -> Duration {
    let began = Instant::now();
    let calling = async {
        while call(pipeline).await.0.reason != Some(RejectionCode::CircuitOpen) {
            tokio::time::sleep(MS).await;
        }
    };
    within_timeout(calling).await;
    began.elapsed()
}

/// Calls a pipeline over and over until told to stop, and keeps count.
pub struct Load {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<Vec<(Source, Duration)>>,
}

impl Load {
    /// Goes round these routes, with a pause between two calls.
    pub fn on(pipelines: Vec<Pipeline>, pause: Duration) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut calls = Vec::new();
            for pipeline in pipelines.iter().cycle() {
                if *stopped.borrow() {
                    break;
                }
                let (decision, took) = call(pipeline).await;
                calls.push((decision.source, took));
                tokio::time::sleep(pause).await;
            }
            calls
        });
        Self { stop, task }
    }

    /// What came of all calls: who decided, and how long each took, the longest last.
    pub async fn end(self) -> (Vec<Source>, Vec<Duration>) {
        self.stop.send_replace(true);
        let (sources, mut took): (Vec<_>, Vec<_>) = self.task.await.unwrap().into_iter().unzip();
        took.sort_unstable();
        (sources, took)
    }
}

/// Of sorted times the one that so many of a hundred do not exceed.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

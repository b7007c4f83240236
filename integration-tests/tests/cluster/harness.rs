//! Test harness for Redis deployments: a policy with all shared stages, an event log, and calls that return source and
//! duration.

// Each test file uses a part; tests may unwrap.
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

/// The store budget of these tests. Generous, because a degraded decision would only show that the machine is busy.
pub const BUDGET: Duration = Duration::from_millis(400);

/// The longest wait for any condition.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// What a busy machine may add to a measured time.
pub const SLACK: Duration = Duration::from_millis(200);

/// An event emitted by the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoggedEvent {
    Degraded(String),
    Recovered { degraded_decisions: u64 },
    Replicas(u32),
    StateLost,
    Phase(String, Phase),
}

/// An observer that logs events. Clones share the log.
#[derive(Clone)]
pub struct EventLog(Arc<watch::Sender<Vec<LoggedEvent>>>);

impl Default for EventLog {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }
}

impl EventLog {
    pub fn read(&self) -> Vec<LoggedEvent> {
        self.0.borrow().clone()
    }

    /// Clears the log.
    pub fn clear(&self) {
        self.0.send_modify(Vec::clear);
    }

    /// Waits until the log satisfies `wanted`.
    pub async fn until(&self, what: &str, wanted: impl Fn(&[LoggedEvent]) -> bool) {
        let mut log = self.0.subscribe();
        let reached = timeout(WAIT_TIMEOUT, log.wait_for(|events| wanted(events))).await.map(|events| events.is_ok());
        assert_eq!(reached, Ok(true), "{what} was not emitted: {:?}", self.read());
    }

    /// Returns the reasons of all outages.
    pub fn outages(&self) -> Vec<String> {
        let reason = |event: LoggedEvent| match event {
            LoggedEvent::Degraded(reason) => Some(reason),
            _ => None,
        };
        self.read().into_iter().filter_map(reason).collect()
    }

    /// Returns the number of recoveries.
    pub fn recoveries(&self) -> usize {
        self.read().iter().filter(|event| matches!(event, LoggedEvent::Recovered { .. })).count()
    }

    /// Waits until this number of outages has begun.
    pub async fn until_degraded(&self, times: usize) {
        let begun = |events: &[LoggedEvent]| {
            events.iter().filter(|event| matches!(event, LoggedEvent::Degraded(_))).count() >= times
        };
        self.until("degraded", begun).await;
    }

    /// Waits until this number of outages is over.
    pub async fn until_recovered(&self, times: usize) {
        let over = |events: &[LoggedEvent]| {
            events.iter().filter(|event| matches!(event, LoggedEvent::Recovered { .. })).count() >= times
        };
        self.until("recovered", over).await;
    }
}

impl Observer for EventLog {
    fn on_event(&self, event: &Event<'_>) {
        let route = event.key.and_then(|key| key.route()).unwrap_or_default();
        let event = match event.kind {
            EventKind::StoreDegraded { reason } => LoggedEvent::Degraded(reason.to_owned()),
            EventKind::StoreRecovered { degraded_decisions, .. } => LoggedEvent::Recovered { degraded_decisions },
            EventKind::Replicas { live } => LoggedEvent::Replicas(live),
            EventKind::StateLost => LoggedEvent::StateLost,
            EventKind::Transition(change) => LoggedEvent::Phase(route.to_owned(), change.to),
            _ => return,
        };
        self.0.send_modify(|log| log.push(event));
    }
}

/// An error that counts as a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl Classify for Broken {
    fn classify(&self) -> Class {
        Class::from(Kind::Infrastructure)
    }
}

/// A policy with rate limit, breaker and latency digest. The limit is never reached; one failure trips.
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

/// The name of a policy of every [`replica`], which is the same as [`stack`]: there are 60.
pub fn policy_name(number: usize) -> String {
    format!("stack {number}")
}

/// Returns the builder of a replica, to which tests add options.
pub fn replica(source: impl Into<RedisConnection>, log: &EventLog) -> ModuleBuilder {
    let builder = ResilienceModule::with_redis(source).service("test").store_budget(BUDGET).policy(stack());
    let copies = (0..60).map(|number| Policy { name: policy_name(number), ..stack() });
    let builder = builder.policies(copies);
    builder.shared_observer(Arc::new(log.clone()))
}

/// Makes a successful call. Returns the decision and the duration.
pub async fn call(pipeline: &Pipeline) -> (Decision, Duration) {
    let began = Instant::now();
    let (answer, decision) = pipeline.call().run_recorded(|| async { Ok::<_, Broken>(()) }).await;
    assert!(answer.is_ok() || decision.verdict == Verdict::Rejected, "{answer:?}");
    (decision, began.elapsed())
}

/// Makes a failing call.
pub async fn fail(pipeline: &Pipeline) {
    let failed = pipeline.run(|| async { Err::<(), _>(Broken) }).await;
    assert_eq!(failed, Err(Error::Inner(Broken)));
}

/// Calls until Redis decides.
pub async fn until_fleet(pipeline: &Pipeline) {
    let calling = async {
        while call(pipeline).await.0.source != Source::Fleet {
            tokio::time::sleep(5 * MS).await;
        }
    };
    within_timeout(calling).await;
}

/// Opens the connection, waits until Redis decides, and clears the log, because connecting may exceed the budget on a busy
/// machine.
pub async fn warm_up(module: &ResilienceModule, log: &EventLog) {
    until_fleet(&module.pipeline("stack", "warm-up").unwrap()).await;
    until_shared(module).await;
    log.clear();
}

/// Waits for a future with a timeout.
pub async fn within_timeout<T>(awaited: impl Future<Output = T>) -> T {
    timeout(WAIT_TIMEOUT, awaited).await.expect("completed within the timeout")
}

/// Waits until the store is shared on all shards.
pub async fn until_shared(module: &ResilienceModule) {
    within_timeout(async {
        while module.store_mode() != Some(StoreMode::Shared) {
            tokio::time::sleep(5 * MS).await;
        }
    })
    .await;
}

/// Calls until the circuit rejects. Returns how long that took.
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

/// A background task that calls pipelines until it is stopped, and records source and duration of each call.
pub struct Load {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<Vec<(Source, Duration)>>,
}

impl Load {
    /// Starts calling these pipelines in turn, with a pause between two calls.
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

    /// Stops and returns the sources and the sorted durations of all calls.
    pub async fn end(self) -> (Vec<Source>, Vec<Duration>) {
        self.stop.send_replace(true);
        let (sources, mut took): (Vec<_>, Vec<_>) = self.task.await.unwrap().into_iter().unzip();
        took.sort_unstable();
        (sources, took)
    }
}

/// Returns a percentile of sorted durations.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

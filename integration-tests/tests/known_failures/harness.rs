//! Shared by the scenarios: replicas over a `FaultyRedis`, calls to them, and the events they emit.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx::{Event, EventKind};
use phalanx_core::breaker::{Admission, BreakerSpec, Sample};
use phalanx_core::clock::Clock;
use phalanx_core::event::{Observer, Observers};
use phalanx_core::key::StateKey;
use phalanx_core::kind::Outcome;
use phalanx_core::rate_limit::{RateLimitSpec, Take};
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::rng::Rng;
use phalanx_core::store::{AcquireRequest, BreakerStore, Grant, RateLimitStore, Store};
use phalanx_store_redis::{RedisConnection, RedisStore, SharedBreaker, SharedBucket, StoreBuilder, StoreMode};
use phalanx_testkit::FaultyRedis;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// What a scenario returns: nothing if the promise is kept, otherwise what was seen.
pub(crate) type Seen = Result<(), String>;

/// Returns a runtime whose time moves when all its tasks wait.
pub(crate) fn paused_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

/// Plays a scenario in virtual time.
pub(crate) fn play(scenario: impl Future<Output = Seen>) -> Seen {
    paused_runtime().block_on(scenario)
}

/// Returns what was seen, if the promise is broken.
pub(crate) fn promise(kept: bool, seen: impl FnOnce() -> String) -> Seen {
    if kept { Ok(()) } else { Err(seen()) }
}

/// Starts building a replica on tokio's clock, with chance from this seed.
pub(crate) fn builder(connection: impl Into<RedisConnection>, seed: u64) -> StoreBuilder {
    RedisStore::over(connection).clock(Clock::tokio()).rng(Rng::seeded(seed))
}

/// Returns a replica with the default options.
pub(crate) fn replica(redis: &FaultyRedis, seed: u64) -> RedisStore {
    builder(redis, seed).build().unwrap()
}

/// Returns this many replicas.
pub(crate) fn replicas(redis: &FaultyRedis, count: u64) -> Vec<RedisStore> {
    (1..=count).map(|seed| replica(redis, seed)).collect()
}

/// Makes every replica known to all others.
pub(crate) async fn meet(stores: &[RedisStore]) {
    for store in stores {
        let bucket = store.bucket(&StateKey::new("meet", ()), &RateLimitSpec::per_second(1_000_000));
        acquire(store, &bucket, 1).await;
    }
    sleep(3 * SECOND).await;
    for store in stores {
        assert_eq!(store.replicas(), Some(stores.len() as u32), "every replica is registered");
    }
}

pub(crate) fn key(route: &str) -> StateKey {
    StateKey::new("policy", route)
}

/// Takes permits, as the pipeline does.
pub(crate) async fn acquire(store: &RedisStore, bucket: &SharedBucket, cost: u32) -> Grant {
    let request = AcquireRequest { cost, max_wait: Duration::ZERO };
    let now = store.clock().now();
    match store.acquire_now(bucket, now, request) {
        Some(grant) => grant,
        None => store.acquire(bucket, now, request).await,
    }
}

pub(crate) fn is_granted(grant: &Grant) -> bool {
    matches!(grant.take, Take::Granted { .. })
}

/// Lets this many callers ask at once, and returns their grants.
pub(crate) async fn acquire_at_once(store: &RedisStore, bucket: &Arc<SharedBucket>, callers: usize) -> Vec<Grant> {
    let call = || {
        let (store, bucket) = (store.clone(), bucket.clone());
        async move { acquire(&store, &bucket, 1).await }
    };
    all((0..callers).map(|_| call())).await
}

/// Counts granted calls by the source of the decision.
pub(crate) fn granted_by(grants: &[Grant], source: Source) -> usize {
    grants.iter().filter(|grant| is_granted(grant) && grant.source == source).count()
}

/// Takes single permits without a pause until one is rejected, at most 100,000.
pub(crate) async fn drain(store: &RedisStore, bucket: &SharedBucket) -> usize {
    for taken in 0..100_000 {
        if !is_granted(&acquire(store, bucket, 1).await) {
            return taken;
        }
    }
    100_000
}

/// Runs all futures at once, each in its own task, and returns their results in order.
pub(crate) async fn all<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    futures: impl Iterator<Item = F>,
) -> Vec<T> {
    let tasks: Vec<_> = futures.map(tokio::spawn).collect();
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

/// Asks for admission, as the pipeline does.
pub(crate) async fn admit(store: &RedisStore, breaker: &SharedBreaker) -> Admission {
    let now = store.clock().now();
    match store.admit_now(breaker, now) {
        Some(reply) => reply.admission,
        None => store.admit(breaker, now).await.0.admission,
    }
}

/// Makes one call with this outcome. The error is the code of its rejection.
pub(crate) async fn call(store: &RedisStore, breaker: &SharedBreaker, outcome: Outcome) -> Result<(), RejectionCode> {
    match admit(store, breaker).await {
        Admission::Rejected { code, .. } => Err(code),
        Admission::Admitted(ticket) => {
            store.record(breaker, store.clock().now(), ticket, Sample { outcome, latency: MS });
            Ok(())
        }
    }
}

/// Makes failing calls until the breaker rejects, with a pause of 1 ms between two.
pub(crate) async fn trip(store: &RedisStore, breaker: &SharedBreaker) {
    for _ in 0..1_000 {
        if call(store, breaker, Outcome::Failure).await.is_err() {
            return;
        }
        sleep(MS).await;
    }
    panic!("the breaker did not trip");
}

/// A breaker that trips after five failures in a row, for a second.
pub(crate) fn brittle() -> BreakerSpec {
    BreakerSpec::consecutive_failures(5).break_for(SECOND)
}

/// Makes degraded decisions until the latch is down.
pub(crate) async fn degrade(store: &RedisStore) {
    let bucket = store.bucket(&StateKey::new("degrade", ()), &RateLimitSpec::per_second(1_000_000));
    for _ in 0..1_000 {
        if store.mode() == StoreMode::Degraded {
            return;
        }
        acquire(store, &bucket, 1).await;
        sleep(MS).await;
    }
    panic!("the store did not degrade");
}

/// Waits until Redis decides again.
pub(crate) async fn recover(store: &RedisStore) {
    let start = Instant::now();
    while store.mode() != StoreMode::Shared {
        assert!(start.elapsed() < 10 * SECOND, "the store did not recover");
        sleep(MS).await;
    }
}

/// The events of a replica but its round trips, by the names of their kinds.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    pub(crate) fn observers(&self) -> Observers {
        Observers::new(vec![Arc::new(self.clone())])
    }

    pub(crate) fn count(&self, kind: &str) -> usize {
        self.0.lock().iter().filter(|event| *event == kind).count()
    }

    /// Returns the kinds that healthy replicas do not emit.
    pub(crate) fn notable(&self) -> Vec<String> {
        let mut kinds = self.0.lock().clone();
        kinds.retain(|kind| !["Replicas", "Transition", "StoreConnected"].contains(&kind.as_str()));
        kinds.dedup();
        kinds
    }
}

impl Observer for Events {
    fn on_event(&self, event: &Event<'_>) {
        if !matches!(event.kind, EventKind::StoreRoundTrip { .. }) {
            let text = format!("{:?}", event.kind);
            self.0.lock().push(text.chars().take_while(char::is_ascii_alphanumeric).collect());
        }
    }
}

//! Runs every operation of the store once.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part; tests may unwrap

use std::time::Duration;

use phalanx::describe::Outcome;
use phalanx::lifecycle::{Acquired, LockStore};
use phalanx::policy::Override;
use phalanx::store::StateKey;
use phalanx::store::{AcquireRequest, BreakerStore, LatencyDigestStore, RateLimitStore, Store};
use phalanx::store::{Admission, Sample, Ticket};
use phalanx::{BreakerSpec, RateLimitSpec, Source};
use phalanx_store_redis::{RedisStore, SharedBreaker};

const BREAK: Duration = Duration::from_millis(30);

/// Runs all operations for one key. Returns the sources of all decisions.
pub async fn run_all(store: &RedisStore, key: &StateKey) -> Vec<Source> {
    let mut decided = run_bucket(store, key).await;
    decided.extend(run_breaker(store, key).await);
    run_digest(store, key).await;
    run_lock(store).await;
    run_idempotency(store).await;
    decided
}

/// Acquire, refund, peek, and a change of the rate.
async fn run_bucket(store: &RedisStore, key: &StateKey) -> Vec<Source> {
    let now = || store.clock().now();
    let bucket = store.bucket(key, &RateLimitSpec::per_second(1_000));
    let ask = AcquireRequest { cost: 1, max_wait: Duration::ZERO };
    let first = store.acquire(&bucket, now(), ask).await;
    store.refund(&bucket, 1, now(), first.source);
    store.peek(&bucket, now()).await;
    let bucket = store.bucket(key, &RateLimitSpec::per_second(2_000));
    vec![first.source, store.acquire(&bucket, now(), ask).await.source]
}

/// Admit, sync, trip, a probe and its end, force, inspect, reset.
async fn run_breaker(store: &RedisStore, key: &StateKey) -> Vec<Source> {
    let now = || store.clock().now();
    let spec = BreakerSpec { consecutive_failures: Some(1), break_duration: BREAK, ..BreakerSpec::default() };
    let circuit = store.breaker(key, &spec);
    let mut decided = vec![admit_and_record(store, &circuit, Outcome::Success).await];
    store.settle().await;
    decided.push(admit_and_record(store, &circuit, Outcome::Failure).await);
    store.settle().await;
    tokio::time::sleep(2 * BREAK).await;
    decided.push(admit_and_record(store, &circuit, Outcome::Success).await);
    store.settle().await;
    store.force(&circuit, Some(Override::Open)).await;
    store.force(&circuit, None).await;
    store.inspect(&circuit, now()).await;
    store.reset(&circuit, now()).await;
    decided
}

async fn admit_and_record(store: &RedisStore, circuit: &SharedBreaker, outcome: Outcome) -> Source {
    let now = || store.clock().now();
    let answer = match store.admit_now(circuit, now()) {
        Some(answer) => answer,
        None => store.admit(circuit, now()).await.0,
    };
    if let Admission::Admitted(ticket @ Ticket { .. }) = answer.admission {
        store.record(circuit, now(), ticket, Sample { outcome, latency: Duration::ZERO });
    }
    answer.source
}

/// Two flushes, because the first one of a key uses other commands than the next, and a read.
async fn run_digest(store: &RedisStore, key: &StateKey) {
    let now = || store.clock().now();
    let digest = store.digest(key, Duration::from_secs(10));
    for _ in 0..2 {
        store.observe(&digest, now(), Duration::from_millis(5));
        store.settle().await;
    }
    store.quantile(&digest, now(), 0.5);
}

/// Acquire, renew, release; then acquire, renew, complete, and read the mark.
async fn run_lock(store: &RedisStore) {
    let (locks, ttl) = (store.locks(), Duration::from_secs(5));
    for done in [false, true] {
        let Ok(Acquired::Held { fence }) = locks.acquire("lock", "me", ttl).await else { return };
        let _ = locks.renew("lock", "me", fence, ttl).await;
        let _ = match done {
            false => locks.release("lock", "me", fence).await,
            true => locks.complete("lock", "me", fence, "1", ttl).await,
        };
    }
    let _ = locks.completed("lock", "1").await;
}

/// Claim, renew, release; then complete, and claim the completed request.
async fn run_idempotency(store: &RedisStore) {
    let (requests, lease) = (store.idempotency(), Duration::from_secs(5));
    let _ = requests.claim("aa", "ff", "01", lease).await;
    let _ = requests.renew("aa", "01", lease).await;
    let _ = requests.release("aa", "01").await;
    let _ = requests.complete("aa", "ff", "01", b"answer", lease).await;
    let _ = requests.claim("aa", "ff", "02", lease).await;
}

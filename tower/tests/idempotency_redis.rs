//! Requests with an `Idempotency-Key` over Redis: two replicas, one effect.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed test panics, also in helpers

mod effects;

use std::time::Duration;

use effects::{Ledger, request, send, service};
use phalanx::ResilienceModule;
use phalanx::store::RedisOptions;
use phalanx_store_redis::RedisStore;
use phalanx_testkit::server::{Redis, RedisProcess};
use phalanx_tower::idempotency::{
    Claim, ClaimReply, IdempotencyLayer, IdempotencyStore, MemoryIdempotency, RedisIdempotency, StoredAnswer,
};
use redis::Client;
use tokio::time::{Instant, sleep};

/// Generous, because these tests do not check latency.
const BUDGET: Duration = Duration::from_millis(500);

fn replica(url: &str, prefix: &str) -> RedisStore {
    let options = RedisOptions { prefix: Some(prefix.to_owned()), store_budget: BUDGET, ..RedisOptions::default() };
    RedisStore::over(Client::open(url).unwrap()).options(options).build().unwrap()
}

fn layer(store: &RedisStore) -> IdempotencyLayer<RedisIdempotency> {
    IdempotencyLayer::new(RedisIdempotency::over(store))
}

fn claim(key: &str, fingerprint: &str, owner: &str) -> Claim {
    Claim { key: key.to_owned(), fingerprint: fingerprint.to_owned(), owner: owner.to_owned() }
}

fn answer() -> StoredAnswer {
    StoredAnswer::decode(vec![1, 0, 200, 1, 0, 0, 0, 0, 0, 2, b'h', b'i']).unwrap()
}

/// Checks the behaviour list of `IdempotencyStore`. Leases run in real time, so the check waits for them.
async fn check_behaviour(store: &impl IdempotencyStore) {
    const LEASE: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(60);
    let (mine, others) = (claim("aa", "ff", "01"), claim("aa", "ff", "02"));
    let another = claim("aa", "ee", "03");
    assert!(matches!(store.claim(&mine, LONG).await, Ok(ClaimReply::Claimed)));
    assert!(matches!(store.claim(&others, LONG).await, Ok(ClaimReply::Running)));
    assert!(matches!(store.claim(&another, LONG).await, Ok(ClaimReply::Mismatch)));
    assert_eq!(store.release(&others).await, Ok(false));
    assert_eq!(store.release(&mine).await, Ok(true));
    assert!(matches!(store.claim(&others, LEASE).await, Ok(ClaimReply::Claimed)));
    sleep(LEASE / 2).await;
    assert_eq!(store.renew(&others, LEASE).await, Ok(true));
    assert_eq!(store.renew(&mine, LEASE).await, Ok(false));
    let start = Instant::now();
    while !matches!(store.claim(&mine, LONG).await, Ok(ClaimReply::Claimed)) {
        assert!(start.elapsed() < 20 * LEASE, "a claim without renewal expires");
        sleep(LEASE / 10).await;
    }
    assert_eq!(store.complete(&others, &answer(), LONG).await, Ok(false), "another claim holds the key");
    assert_eq!(store.complete(&mine, &answer(), LEASE).await, Ok(true));
    assert!(matches!(store.claim(&another, LONG).await, Ok(ClaimReply::Mismatch)));
    let start = Instant::now();
    loop {
        match store.claim(&others, LONG).await {
            Ok(ClaimReply::Answered(stored)) => assert_eq!(stored, answer()),
            Ok(ClaimReply::Claimed) => break,
            other => panic!("{other:?}"),
        }
        assert!(start.elapsed() < 20 * LEASE, "an answer expires after its ttl");
        sleep(LEASE / 10).await;
    }
}

#[tokio::test]
async fn memory_and_redis_have_the_same_behaviour() {
    check_behaviour(&MemoryIdempotency::new()).await;
    check_behaviour(&RedisIdempotency::over(&replica(Redis::shared().await, "behaviour"))).await;
}

/// Test E of the resiliency playbook, with the retry on another replica.
#[tokio::test]
async fn a_client_timeout_on_one_replica_and_its_retry_on_another_have_one_effect() {
    let url = Redis::shared().await;
    let ledger = Ledger::default();
    let (one, two) = (replica(url, "effect"), replica(url, "effect"));
    let (first, second) = (service(&ledger, &layer(&one)), service(&ledger, &layer(&two)));
    let slow = [("x-takes", "600"), ("x-request-timeout", "150")];
    assert_eq!(send(&first, request(Some("k"), "5", &slow)).await.0, 504);
    assert_eq!(send(&second, request(Some("k"), "5", &[])).await, (201, true, "1: 5".to_owned()));
    assert_eq!(send(&first, request(Some("k"), "5", &[])).await, (201, true, "1: 5".to_owned()));
    assert_eq!(send(&second, request(Some("k"), "6", &[])).await.0, 409);
    assert_eq!(ledger.effects(), 1);
}

#[tokio::test]
async fn no_text_of_a_client_appears_in_a_redis_key() {
    let server = RedisProcess::start().await;
    let store = replica(&server.url(), "hashed");
    let app = service(&Ledger::default(), &layer(&store));
    for key in ["{x}:y", "a b", "order-17*", &"long".repeat(60)] {
        assert_eq!(send(&app, request(Some(key), "5", &[("authorization", "hunter2")])).await.0, 201);
    }
    let keys = server.cli(&["KEYS", "hashed:ph2:{*}:i:*"]).await;
    let hash = |key: &str| key.trim_matches('"').rsplit(':').next().map(str::to_owned).unwrap();
    let hashed = |key: &str| hash(key).len() == 32 && hash(key).bytes().all(|byte| byte.is_ascii_hexdigit());
    assert_eq!(keys.lines().filter(|key| hashed(key)).count(), 4, "{keys}");
    for key in keys.lines() {
        let ttl: i64 = server.cli(&["PTTL", key]).await.parse().unwrap();
        assert!((86_000_000..=86_400_000).contains(&ttl), "{ttl}");
        assert!(!server.cli(&["GET", key]).await.contains("hunter2"));
    }
}

#[tokio::test]
async fn without_redis_requests_are_rejected_within_the_budget_until_redis_is_back() {
    let server = RedisProcess::start().await;
    let module =
        ResilienceModule::with_redis(Client::open(server.url()).unwrap()).store_budget(BUDGET).build().unwrap();
    let layer = IdempotencyLayer::new(RedisIdempotency::of(&module).unwrap());
    let ledger = Ledger::default();
    let app = service(&ledger, &layer);
    assert_eq!(send(&app, request(Some("a"), "5", &[])).await.0, 201);
    server.kill();
    for _ in 0..5 {
        let start = Instant::now();
        assert_eq!(send(&app, request(Some("b"), "5", &[])).await.0, 503);
        assert!(start.elapsed() < 3 * BUDGET);
    }
    assert_eq!(ledger.effects(), 1);
    server.restart().await;
    let start = Instant::now();
    while send(&app, request(Some("b"), "5", &[])).await.0 != 201 {
        assert!(start.elapsed() < Duration::from_secs(20));
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(ledger.effects(), 2);
}

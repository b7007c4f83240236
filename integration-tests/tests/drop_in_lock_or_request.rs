//! The futures of locks and of idempotent requests can be dropped at any await.
//!
//! Each is polled k times and then dropped, for every k until it ends by itself, over a Redis in this process whose replies
//! take a while or are lost. Soon afterwards, long before a lease is over,
//!
//! * the lock is free, and the next fence is higher than every one before;
//! * a retry of the request is answered, and the effect has happened once.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation panics, in helpers too

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use phalanx::lifecycle::{DistributedLock, LockSpec, LockStore};
use phalanx_core::clock::Clock;
use phalanx_core::rng::Rng;
use phalanx_store_memory::MemoryLocks;
use phalanx_store_redis::RedisStore;
use phalanx_testkit::FaultyRedis;
use phalanx_tower::idempotency::{IdempotencyLayer, RedisIdempotency};
use tokio::time::sleep;
use tower::ServiceExt;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Every future ends within this many polls.
const MOST_POLLS: usize = 60;

/// Polls a future this often, whenever it is woken, and drops it then. Returns none if it had not ended.
async fn drop_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let (mut future, mut left) = (Box::pin(future), polls);
    poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

fn replica(redis: &FaultyRedis, seed: u64) -> RedisStore {
    RedisStore::over(redis).clock(Clock::tokio()).rng(Rng::seeded(seed)).build().unwrap()
}

/// What is done with the lock.
#[derive(Clone, Copy, Debug)]
enum Use {
    TryAcquire,
    /// Another replica holds it for 30 ms.
    Wait,
    Release,
    Complete,
}

/// Checks one use of a lock that is dropped after this many polls. Returns whether it ended before.
async fn check_lock<S: LockStore>(stores: [S; 2], what: Use, polls: usize, disturb: impl FnOnce()) -> bool {
    let [one, other] = stores.map(|store| {
        let lock = DistributedLock::new(store, LockSpec::named("l").poll(3_600 * SECOND));
        lock.clock(Clock::tokio())
    });
    let mut before = 0;
    for lock in [&one, &other] {
        let guard = lock.acquire(SECOND).await.unwrap(); // loads the scripts
        before = guard.fence();
        guard.release().await.unwrap();
    }
    sleep(SECOND).await;
    let ended = match what {
        Use::TryAcquire => {
            disturb();
            drop_after(polls, one.try_acquire()).await.is_some()
        }
        Use::Wait => {
            let held = other.try_acquire().await.unwrap();
            before = held.fence();
            tokio::spawn(async move {
                sleep(30 * MS).await;
                held.release().await
            });
            disturb();
            drop_after(polls, one.acquire(SECOND)).await.is_some()
        }
        Use::Release | Use::Complete => {
            let held = one.try_acquire().await.unwrap();
            before = held.fence();
            disturb();
            match what {
                Use::Release => drop_after(polls, held.release()).await.is_some(),
                _ => drop_after(polls, held.complete("1", SECOND)).await.is_some(),
            }
        }
    };
    sleep(3 * SECOND).await;
    // Asks again if the reply that was to be lost is this one.
    let next = other.acquire(SECOND).await.unwrap_or_else(|error| panic!("{what:?} after {polls} polls: {error}"));
    assert!(next.fence() > before, "{what:?} after {polls} polls: {before}, then {}", next.fence());
    ended
}

const USES: [Use; 4] = [Use::TryAcquire, Use::Wait, Use::Release, Use::Complete];

#[tokio::test(start_paused = true)]
async fn a_lock_in_memory_is_not_held_by_what_was_dropped() {
    for what in USES {
        let locks = MemoryLocks::new(Clock::tokio());
        let mut polls = 0;
        while !check_lock([locks.clone(), locks.clone()], what, polls, || ()).await {
            polls += 1;
            assert!(polls < MOST_POLLS, "{what:?} never ends");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_in_redis_is_not_held_by_what_was_dropped() {
    let scripts = [None, Some("lock_acquire"), Some("lock_release"), Some("lock_complete")];
    for (what, lost) in USES.into_iter().flat_map(|what| scripts.map(|script| (what, script))) {
        let mut polls = 0;
        loop {
            let redis = FaultyRedis::new();
            let stores = [replica(&redis, 1), replica(&redis, 2)];
            let disturb = || {
                redis.set_latency(2 * MS);
                if let Some(script) = lost {
                    redis.lose_reply(script, 1);
                }
            };
            if check_lock(stores.map(|store| store.locks()), what, polls, disturb).await {
                break;
            }
            polls += 1;
            assert!(polls < MOST_POLLS, "{what:?} never ends, with a lost reply of {lost:?}");
        }
        assert!(polls > 0);
    }
}

/// A service whose handler has its effect after 10 ms.
fn service(store: &RedisStore, effects: &Arc<AtomicUsize>) -> Router {
    async fn pay(State(effects): State<Arc<AtomicUsize>>) -> &'static str {
        sleep(10 * MS).await;
        effects.fetch_add(1, Ordering::SeqCst);
        "paid"
    }
    let layer = IdempotencyLayer::new(RedisIdempotency::over(store));
    Router::new().route("/pay", post(pay)).with_state(effects.clone()).layer(layer)
}

async fn pay(service: &Router, key: &str) -> StatusCode {
    let request = Request::post("/pay").header("idempotency-key", key).body(Body::from("5")).unwrap();
    service.clone().oneshot(request).await.unwrap().status()
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_dropped_has_one_effect_with_its_retry() {
    let scripts = [None, Some("idempotency_claim"), Some("idempotency_complete"), Some("idempotency_release")];
    for (lost, second) in scripts.into_iter().flat_map(|script| [(script, false), (script, true)]) {
        let mut polls = 0;
        loop {
            let redis = FaultyRedis::new();
            let stores = [replica(&redis, 1), replica(&redis, 2)];
            let effects = Arc::default();
            let services = stores.each_ref().map(|store| service(store, &effects));
            for service in &services {
                assert_eq!(pay(service, "warm").await, StatusCode::OK);
            }
            sleep(SECOND).await;
            let before = effects.load(Ordering::SeqCst);
            redis.set_latency(2 * MS);
            // The dropped request is the first one, or one that waits for the first.
            let first = second.then(|| {
                let service = services[1].clone();
                tokio::spawn(async move { pay(&service, "k").await })
            });
            if first.is_some() {
                sleep(8 * MS).await;
            }
            if let Some(script) = lost {
                redis.lose_reply(script, 1);
            }
            let ended = drop_after(polls, pay(&services[0], "k")).await.is_some();
            sleep(3 * SECOND).await;
            for service in &services {
                let mut status = pay(service, "k").await;
                if status == StatusCode::SERVICE_UNAVAILABLE {
                    sleep(SECOND).await; // the reply that was to be lost was this one
                    status = pay(service, "k").await;
                }
                assert_eq!(status, StatusCode::OK, "the retry after {polls} polls, lost {lost:?}, second {second}");
            }
            let effects = effects.load(Ordering::SeqCst) - before;
            assert_eq!(effects, 1, "effects after {polls} polls, lost {lost:?}, second {second}");
            if ended {
                break;
            }
            polls += 1;
            assert!(polls < MOST_POLLS, "it never ends");
        }
        assert!(polls > 0);
    }
}

//! Distributed locks in one process, on virtual time: holding, waiting, losing, releasing.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use phalanx_core::clock::Clock;
use phalanx_core::lock::{Acquired, LockStore, Unavailable, Watch};
use phalanx_lifecycle::{DistributedLock, LockError, LockSpec};
use phalanx_store_memory::MemoryLocks;
use support::{MS, SECOND};
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(30);

/// A lock store that can become unreachable.
#[derive(Clone, Default)]
struct RemoteLocks {
    locks: MemoryLocks,
    unreachable: Arc<AtomicBool>,
}

impl RemoteLocks {
    fn reach(&self) -> Result<&MemoryLocks, Unavailable> {
        match self.unreachable.load(Ordering::Relaxed) {
            false => Ok(&self.locks),
            true => Err(Unavailable { reason: "connection".to_owned() }),
        }
    }
}

impl LockStore for RemoteLocks {
    async fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> Result<Acquired, Unavailable> {
        self.reach()?.acquire(name, owner, ttl).await
    }

    async fn renew(&self, name: &str, owner: &str, fence: u64, ttl: Duration) -> Result<bool, Unavailable> {
        self.reach()?.renew(name, owner, fence, ttl).await
    }

    async fn release(&self, name: &str, owner: &str, fence: u64) -> Result<bool, Unavailable> {
        self.reach()?.release(name, owner, fence).await
    }

    async fn withdraw(&self, name: &str, owner: &str) -> Result<bool, Unavailable> {
        self.reach()?.withdraw(name, owner).await
    }

    async fn complete(
        &self,
        name: &str,
        owner: &str,
        fence: u64,
        v: &str,
        keep: Duration,
    ) -> Result<bool, Unavailable> {
        self.reach()?.complete(name, owner, fence, v, keep).await
    }

    async fn completed(&self, name: &str, version: &str) -> Result<Option<u64>, Unavailable> {
        self.reach()?.completed(name, version).await
    }

    fn watch(&self, _: &str) -> Watch {
        Watch::silent()
    }
}

fn lock<S: LockStore>(store: &S) -> DistributedLock<S> {
    DistributedLock::new(store.clone(), LockSpec::named("l"))
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_renewed_as_long_as_it_is_held() {
    let store = MemoryLocks::default();
    let guard = lock(&store).try_acquire().await.unwrap();
    sleep(10 * TTL).await;
    assert_eq!(guard.check(), Ok(guard.fence()));
    assert_eq!(lock(&store).try_acquire().await.unwrap_err(), LockError::Taken { fence: guard.fence() });
    assert_eq!(guard.release().await, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_notified_of_a_release_at_once_and_gets_a_higher_fence() {
    let store = MemoryLocks::default();
    let guard = lock(&store).try_acquire().await.unwrap();
    let fence = guard.fence();
    let waiting = tokio::spawn({
        let lock = DistributedLock::new(store, LockSpec::named("l").poll(3_600 * SECOND));
        async move { lock.acquire(60 * SECOND).await.unwrap() }
    });
    sleep(SECOND).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap().fence() > fence);
    assert_eq!(released.elapsed(), Duration::ZERO, "notified, not polled");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_without_notifications_finds_the_lock_free_by_polling() {
    let store = RemoteLocks::default();
    let guard = lock(&store).try_acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = lock(&store);
        async move { lock.acquire(60 * SECOND).await.unwrap() }
    });
    sleep(SECOND / 2).await;
    let released = Instant::now();
    guard.release().await.unwrap();
    drop(waiting.await.unwrap());
    assert!(released.elapsed() <= SECOND, "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gives_up_after_its_wait_and_returns_the_reason() {
    let store = RemoteLocks::default();
    let guard = lock(&store).try_acquire().await.unwrap();
    let start = Instant::now();
    let taken = lock(&store).acquire(5 * SECOND).await.unwrap_err();
    assert_eq!((taken, start.elapsed()), (LockError::Taken { fence: guard.fence() }, 5 * SECOND));
    store.unreachable.store(true, Ordering::Relaxed);
    let unavailable = lock(&store).acquire(5 * SECOND).await.unwrap_err();
    assert_eq!(unavailable.to_string(), "the lock store is unavailable (connection)");
    assert_eq!(start.elapsed(), 10 * SECOND);
}

/// Guarantee I-14 (docs/guarantees.md).
#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_reach_the_store_detects_the_loss_by_its_own_clock() {
    let store = RemoteLocks::default();
    let guard = lock(&store).try_acquire().await.unwrap();
    let start = Instant::now();
    store.unreachable.store(true, Ordering::Relaxed);
    let lost = guard.lost().await;
    assert_eq!(lost.fence, guard.fence());
    assert_eq!(start.elapsed(), TTL - TTL / 10, "before the store frees it");
    store.unreachable.store(false, Ordering::Relaxed);
    sleep(TTL).await;
    assert_eq!(guard.check(), Err(lost), "a lost lock stays lost");
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_does_not_lose_the_lock() {
    let store = RemoteLocks::default();
    let guard = lock(&store).try_acquire().await.unwrap();
    sleep(TTL / 3 - MS).await;
    store.unreachable.store(true, Ordering::Relaxed);
    sleep(TTL / 2).await;
    store.unreachable.store(false, Ordering::Relaxed);
    sleep(10 * TTL).await;
    assert!(!guard.is_lost());
}

/// A paused process, a blocked runtime and a suspended machine all look like this to the holder: its clock jumps.
#[tokio::test(start_paused = true)]
async fn a_holder_that_was_paused_detects_the_loss_before_its_next_write() {
    let (store, clock) = (MemoryLocks::new(Clock::manual()), Clock::manual());
    let guard = DistributedLock::new(store, LockSpec::named("l")).clock(clock.clone()).try_acquire().await.unwrap();
    clock.advance(TTL - TTL / 10 - MS);
    assert_eq!(guard.check(), Ok(guard.fence()));
    clock.advance(MS);
    assert!(guard.check().is_err(), "no background task had to run");
}

#[tokio::test(start_paused = true)]
async fn a_holder_detects_from_a_rejected_renewal_that_its_lock_is_lost() {
    let server = Clock::manual();
    let guard = lock(&MemoryLocks::new(server.clone())).try_acquire().await.unwrap();
    let start = Instant::now();
    server.advance(2 * TTL); // the clock of the server jumps
    guard.lost().await;
    assert_eq!(start.elapsed(), TTL / 3, "at the next renewal");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_releases_its_lock_in_the_background() {
    let store = MemoryLocks::default();
    drop(lock(&store).try_acquire().await.unwrap());
    sleep(MS).await;
    assert!(lock(&store).try_acquire().await.is_ok());
}

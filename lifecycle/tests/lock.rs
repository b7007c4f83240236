//! A lock of the fleet in one process, on virtual time: who holds it, who waits, and when it is lost.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

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

/// Locks that can be cut off from their holders.
#[derive(Clone, Default)]
struct Remote {
    locks: MemoryLocks,
    away: Arc<AtomicBool>,
}

impl Remote {
    fn reached(&self) -> Result<&MemoryLocks, Unavailable> {
        match self.away.load(Ordering::Relaxed) {
            false => Ok(&self.locks),
            true => Err(Unavailable { reason: "connection".to_owned() }),
        }
    }
}

impl LockStore for Remote {
    async fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> Result<Acquired, Unavailable> {
        self.reached()?.acquire(name, owner, ttl).await
    }

    async fn renew(&self, name: &str, owner: &str, fence: u64, ttl: Duration) -> Result<bool, Unavailable> {
        self.reached()?.renew(name, owner, fence, ttl).await
    }

    async fn release(&self, name: &str, owner: &str, fence: u64) -> Result<bool, Unavailable> {
        self.reached()?.release(name, owner, fence).await
    }

    async fn complete(
        &self,
        name: &str,
        owner: &str,
        fence: u64,
        v: &str,
        keep: Duration,
    ) -> Result<bool, Unavailable> {
        self.reached()?.complete(name, owner, fence, v, keep).await
    }

    async fn completed(&self, name: &str, version: &str) -> Result<Option<u64>, Unavailable> {
        self.reached()?.completed(name, version).await
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
    let held = lock(&store).try_acquire().await.unwrap();
    sleep(10 * TTL).await;
    assert_eq!(held.check(), Ok(held.fence()));
    assert_eq!(lock(&store).try_acquire().await.unwrap_err(), LockError::Taken { fence: held.fence() });
    assert_eq!(held.release().await, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_told_of_a_release_at_once_and_has_a_higher_fence() {
    let store = MemoryLocks::default();
    let held = lock(&store).try_acquire().await.unwrap();
    let fence = held.fence();
    let waiting = tokio::spawn({
        let lock = DistributedLock::new(store, LockSpec::named("l").poll(3_600 * SECOND));
        async move { lock.acquire(60 * SECOND).await.unwrap() }
    });
    sleep(SECOND).await;
    let released = Instant::now();
    held.release().await.unwrap();
    assert!(waiting.await.unwrap().fence() > fence);
    assert_eq!(released.elapsed(), Duration::ZERO, "no poll had to find it");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_told_nothing_finds_the_lock_free_by_looking() {
    let store = Remote::default();
    let held = lock(&store).try_acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = lock(&store);
        async move { lock.acquire(60 * SECOND).await.unwrap() }
    });
    sleep(SECOND / 2).await;
    let released = Instant::now();
    held.release().await.unwrap();
    drop(waiting.await.unwrap());
    assert!(released.elapsed() <= SECOND, "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gives_up_in_time_and_says_why() {
    let store = Remote::default();
    let held = lock(&store).try_acquire().await.unwrap();
    let start = Instant::now();
    let taken = lock(&store).acquire(5 * SECOND).await.unwrap_err();
    assert_eq!((taken, start.elapsed()), (LockError::Taken { fence: held.fence() }, 5 * SECOND));
    store.away.store(true, Ordering::Relaxed);
    let unavailable = lock(&store).acquire(5 * SECOND).await.unwrap_err();
    assert_eq!(unavailable.to_string(), "the lock store is unavailable (connection)");
    assert_eq!(start.elapsed(), 10 * SECOND);
}

/// FAULTS I-14.
#[tokio::test(start_paused = true)]
async fn a_holder_that_reaches_nobody_knows_by_its_own_clock_that_the_lock_is_lost() {
    let store = Remote::default();
    let held = lock(&store).try_acquire().await.unwrap();
    let start = Instant::now();
    store.away.store(true, Ordering::Relaxed);
    let lost = held.lost().await;
    assert_eq!(lost.fence, held.fence());
    assert_eq!(start.elapsed(), TTL - TTL / 10, "before the store gives it to somebody else");
    store.away.store(false, Ordering::Relaxed);
    sleep(TTL).await;
    assert_eq!(held.check(), Err(lost), "once lost, always lost");
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_costs_nobody_a_lock() {
    let store = Remote::default();
    let held = lock(&store).try_acquire().await.unwrap();
    sleep(TTL / 3 - MS).await;
    store.away.store(true, Ordering::Relaxed);
    sleep(TTL / 2).await;
    store.away.store(false, Ordering::Relaxed);
    sleep(10 * TTL).await;
    assert!(!held.is_lost());
}

/// FAULTS D7, G6 and G10: what a stopped process, or a runtime that stands still, looks like to its holder.
#[tokio::test(start_paused = true)]
async fn a_holder_that_was_stopped_knows_before_its_next_write() {
    let (store, clock) = (MemoryLocks::new(Clock::manual()), Clock::manual());
    let held = DistributedLock::new(store, LockSpec::named("l")).clock(clock.clone()).try_acquire().await.unwrap();
    clock.advance(TTL - TTL / 10 - MS);
    assert_eq!(held.check(), Ok(held.fence()));
    clock.advance(MS);
    assert!(held.check().is_err(), "nobody had to run for that");
}

#[tokio::test(start_paused = true)]
async fn a_holder_hears_from_the_store_that_its_lock_is_lost_there() {
    let server = Clock::manual();
    let held = lock(&MemoryLocks::new(server.clone())).try_acquire().await.unwrap();
    let start = Instant::now();
    server.advance(2 * TTL); // a clock that leapt
    held.lost().await;
    assert_eq!(start.elapsed(), TTL / 3, "with the next renewal");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_dropped_is_given_back_behind_ones_back() {
    let store = MemoryLocks::default();
    drop(lock(&store).try_acquire().await.unwrap());
    sleep(MS).await;
    assert!(lock(&store).try_acquire().await.is_ok());
}

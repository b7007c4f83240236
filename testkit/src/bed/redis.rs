//! The Redis store over a real Redis: the shipped scripts, on a manual clock whose time is sent with every call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::{Clock, Time};
use phalanx_core::rejection::Source;
use phalanx_store_redis::{RedisLocks, RedisOptions, RedisStore};

use super::lua::sync_replicas;
use super::{Bed, LockBed, ORIGIN};
use crate::server::Redis;

/// A bed for the Redis store over a real Redis.
#[derive(Debug)]
pub struct RedisBed {
    clock: Clock,
    url: &'static str,
    environment: String,
    replicas: Mutex<Vec<RedisStore>>,
}

impl Bed for RedisBed {
    type Store = RedisStore;

    const SOURCE: Source = Source::Fleet;
    const IMMEDIATE_TRANSITIONS: bool = false;

    async fn new() -> Self {
        let clock = Clock::manual();
        clock.set(ORIGIN);
        Self { clock, url: Redis::shared().await, environment: own_environment(), replicas: Mutex::default() }
    }

    fn store(&self) -> RedisStore {
        let client = redis::Client::open(self.url).unwrap();
        // A generous budget, because a degraded decision would only show that the machine is busy.
        let budget = Duration::from_millis(500);
        let options =
            RedisOptions { environment: self.environment.clone(), store_budget: budget, ..RedisOptions::default() };
        let store = RedisStore::over(client).options(options).virtual_clock(self.clock.clone()).build().unwrap();
        self.replicas.lock().push(store.clone());
        store
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn sync_all(&self) {
        sync_replicas(&self.replicas).await;
    }
}

impl LockBed for RedisBed {
    type Locks = RedisLocks;

    fn locks(&self) -> RedisLocks {
        self.store().locks()
    }
}

/// Returns an environment that no other bed uses, in this test process or another one on the same server.
fn own_environment() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

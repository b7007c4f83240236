//! The Redis store over a real Redis: the scripts that are shipped, on a clock that the test moves and sends along.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::{Clock, Time};
use phalanx_core::rejection::Source;
use phalanx_store_redis::{RedisLocks, RedisOptions, RedisStore};

use super::lua::settle_all;
use super::{Bed, ORIGIN};
use crate::server::Redis;

/// The Redis store over a real Redis.
#[derive(Debug)]
pub struct RedisBed {
    clock: Clock,
    url: &'static str,
    environment: String,
    replicas: Mutex<Vec<RedisStore>>,
}

impl Bed for RedisBed {
    type Store = RedisStore;
    type Locks = RedisLocks;

    const SOURCE: Source = Source::Fleet;
    const TELLS_AT_ONCE: bool = false;

    async fn new() -> Self {
        let clock = Clock::manual();
        clock.set(ORIGIN);
        Self { clock, url: Redis::shared().await, environment: own_environment(), replicas: Mutex::default() }
    }

    fn store(&self) -> RedisStore {
        let client = redis::Client::open(self.url).unwrap();
        // The budget is generous, because a twin's answer would only say that the machine is busy.
        let budget = Duration::from_millis(500);
        let options =
            RedisOptions { environment: self.environment.clone(), store_budget: budget, ..RedisOptions::default() };
        let store = RedisStore::over(client).options(options).virtual_clock(self.clock.clone()).build().unwrap();
        self.replicas.lock().push(store.clone());
        store
    }

    fn locks(&self) -> RedisLocks {
        self.store().locks()
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn settle(&self) {
        settle_all(&self.replicas).await;
    }
}

/// Beds of all test processes on one server keep apart.
fn own_environment() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

//! Locks of one process: core's machine in a table, and a bell for those who wait.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::Clock;
use phalanx_core::lock::{Acquired, Bells, Lock, LockStore, Unavailable, Watch};

/// The locks of one process. Cheap to clone; clones are the same locks. A name is never forgotten, because its fence must
/// only grow: names are for code to choose, not for strangers.
#[derive(Clone, Debug)]
pub struct MemoryLocks(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    locks: Mutex<HashMap<String, Lock>>,
    bells: Bells,
}

impl MemoryLocks {
    /// Locks on this clock, all of them free.
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(Shared { clock, locks: Mutex::default(), bells: Bells::default() }))
    }

    fn with<T>(&self, name: &str, work: impl FnOnce(&mut Lock) -> T) -> T {
        work(self.0.locks.lock().entry(name.to_owned()).or_default())
    }

    /// Tells who waits, if there is something to tell.
    fn tell(&self, name: &str, freed: bool) -> bool {
        if freed {
            self.0.bells.ring(name);
        }
        freed
    }
}

impl Default for MemoryLocks {
    fn default() -> Self {
        Self::new(Clock::detect())
    }
}

impl LockStore for MemoryLocks {
    async fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> Result<Acquired, Unavailable> {
        Ok(self.with(name, |lock| lock.acquire(self.0.clock.now(), owner, ttl)))
    }

    async fn renew(&self, name: &str, owner: &str, fence: u64, ttl: Duration) -> Result<bool, Unavailable> {
        Ok(self.with(name, |lock| lock.renew(self.0.clock.now(), owner, fence, ttl)))
    }

    async fn release(&self, name: &str, owner: &str, fence: u64) -> Result<bool, Unavailable> {
        let freed = self.with(name, |lock| lock.release(self.0.clock.now(), owner, fence));
        Ok(self.tell(name, freed))
    }

    async fn complete(
        &self,
        name: &str,
        owner: &str,
        fence: u64,
        version: &str,
        keep: Duration,
    ) -> Result<bool, Unavailable> {
        let freed = self.with(name, |lock| lock.complete(self.0.clock.now(), owner, fence, version, keep));
        Ok(self.tell(name, freed))
    }

    async fn completed(&self, name: &str, version: &str) -> Result<Option<u64>, Unavailable> {
        Ok(self.with(name, |lock| lock.completed(self.0.clock.now(), version)))
    }

    fn watch(&self, name: &str) -> Watch {
        self.0.bells.watch(name)
    }
}

//! Locks of one process: the state machines of `phalanx-core` in a map, and a notifier for waiters.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::clock::Clock;
use phalanx_core::lock::{Acquired, Lock, LockStore, ReleaseNotifier, Unavailable, Watch};

/// The locks of one process. Clones share the same locks.
///
/// A name is never forgotten, because its fence must only grow. Names must therefore come from code and not from callers.
#[derive(Clone, Debug)]
pub struct MemoryLocks(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    locks: Mutex<HashMap<String, Lock>>,
    released: ReleaseNotifier,
}

impl MemoryLocks {
    /// Creates a store on this clock in which every lock is free.
    pub fn new(clock: Clock) -> Self {
        Self(Arc::new(Shared { clock, locks: Mutex::default(), released: ReleaseNotifier::default() }))
    }

    fn with<T>(&self, name: &str, work: impl FnOnce(&mut Lock) -> T) -> T {
        work(self.0.locks.lock().entry(name.to_owned()).or_default())
    }

    /// Notifies waiters if the lock was released; returns whether it was.
    fn notify_if(&self, released: bool, name: &str) -> bool {
        if released {
            self.0.released.notify(name);
        }
        released
    }
}

impl Default for MemoryLocks {
    fn default() -> Self {
        Self::new(Clock::detect())
    }
}

impl LockStore for MemoryLocks {
    async fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> Result<Acquired, Unavailable> {
        // No reply of this store is lost, so its callers have seen every fence.
        Ok(self.with(name, |lock| lock.acquire(self.0.clock.now(), owner, ttl, lock.last_fence())))
    }

    async fn renew(&self, name: &str, owner: &str, fence: u64, ttl: Duration) -> Result<bool, Unavailable> {
        Ok(self.with(name, |lock| lock.renew(self.0.clock.now(), owner, fence, ttl)))
    }

    async fn release(&self, name: &str, owner: &str, fence: u64) -> Result<bool, Unavailable> {
        let released = self.with(name, |lock| lock.release(self.0.clock.now(), owner, fence));
        Ok(self.notify_if(released, name))
    }

    async fn withdraw(&self, name: &str, owner: &str) -> Result<bool, Unavailable> {
        let released = self.with(name, |lock| lock.withdraw(self.0.clock.now(), owner));
        Ok(self.notify_if(released, name))
    }

    async fn complete(
        &self,
        name: &str,
        owner: &str,
        fence: u64,
        version: &str,
        keep: Duration,
    ) -> Result<bool, Unavailable> {
        let released = self.with(name, |lock| lock.complete(self.0.clock.now(), owner, fence, version, keep));
        Ok(self.notify_if(released, name))
    }

    async fn completed(&self, name: &str, version: &str) -> Result<Option<u64>, Unavailable> {
        Ok(self.with(name, |lock| lock.completed(self.0.clock.now(), version)))
    }

    fn watch(&self, name: &str) -> Watch {
        self.0.released.watch(name)
    }
}

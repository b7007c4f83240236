//! The locks of a module: the fleet's where its state is the fleet's, this process' own otherwise.

use std::time::Duration;

use phalanx_core::lock::{Acquired, LockStore, Unavailable, Watch};
use phalanx_store_memory::MemoryLocks;
#[cfg(feature = "redis")]
use phalanx_store_redis::RedisLocks;

use crate::module::ResilienceModule;

/// The locks of a module, for `singleton` steps and `DistributedLock`. Cheap to clone; clones are the same locks.
#[derive(Clone, Debug)]
pub struct Locks(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Process(MemoryLocks),
    #[cfg(feature = "redis")]
    Fleet(RedisLocks),
}

impl ResilienceModule {
    /// Its locks: the fleet's if it stands on Redis, else this process' own.
    pub fn locks(&self) -> Locks {
        #[cfg(feature = "redis")]
        if let Some(redis) = self.engine.store().shared() {
            return Locks(Kind::Fleet(redis.locks()));
        }
        Locks(Kind::Process(self.locks.clone()))
    }
}

/// Hands an operation to whichever kind they are of.
macro_rules! dispatch {
    ($self:ident, $locks:ident => $work:expr) => {
        match &$self.0 {
            Kind::Process($locks) => $work,
            #[cfg(feature = "redis")]
            Kind::Fleet($locks) => $work,
        }
    };
}

impl LockStore for Locks {
    async fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> Result<Acquired, Unavailable> {
        dispatch!(self, locks => locks.acquire(name, owner, ttl).await)
    }

    async fn renew(&self, name: &str, owner: &str, fence: u64, ttl: Duration) -> Result<bool, Unavailable> {
        dispatch!(self, locks => locks.renew(name, owner, fence, ttl).await)
    }

    async fn release(&self, name: &str, owner: &str, fence: u64) -> Result<bool, Unavailable> {
        dispatch!(self, locks => locks.release(name, owner, fence).await)
    }

    async fn complete(
        &self,
        name: &str,
        owner: &str,
        fence: u64,
        version: &str,
        keep: Duration,
    ) -> Result<bool, Unavailable> {
        dispatch!(self, locks => locks.complete(name, owner, fence, version, keep).await)
    }

    async fn completed(&self, name: &str, version: &str) -> Result<Option<u64>, Unavailable> {
        dispatch!(self, locks => locks.completed(name, version).await)
    }

    fn watch(&self, name: &str) -> Watch {
        dispatch!(self, locks => locks.watch(name))
    }

    fn environment(&self) -> Option<&str> {
        dispatch!(self, locks => locks.environment())
    }
}

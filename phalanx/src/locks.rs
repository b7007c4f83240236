//! Locks of a module: shared by the fleet for a module over Redis, local to the process otherwise.

use std::time::Duration;

use phalanx_core::lock::{Acquired, LockStore, Unavailable, Watch};
use phalanx_store_memory::MemoryLocks;
#[cfg(feature = "redis")]
use phalanx_store_redis::RedisLocks;

use crate::module::ResilienceModule;

/// The locks of a module, for `singleton` steps and `DistributedLock`. Clones are cheap and share the same locks.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use phalanx::ResilienceModule;
/// use phalanx::lifecycle::{Acquired, LockStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = ResilienceModule::in_memory().build()?.locks();
/// let ttl = Duration::from_secs(30);
/// let Acquired::Held { fence } = locks.acquire("migrate", "replica-1", ttl).await? else { panic!("it is free") };
/// assert!(matches!(locks.acquire("migrate", "replica-2", ttl).await?, Acquired::Taken { .. }));
/// assert!(locks.release("migrate", "replica-1", fence).await?);
/// let next = locks.acquire("migrate", "replica-2", ttl).await?;
/// assert!(matches!(next, Acquired::Held { fence: higher } if higher > fence));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Locks(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Process(MemoryLocks),
    #[cfg(feature = "redis")]
    Fleet(RedisLocks),
}

impl ResilienceModule {
    /// Returns the module's locks: shared by the fleet over Redis, local to this process in memory.
    pub fn locks(&self) -> Locks {
        #[cfg(feature = "redis")]
        if let Some(redis) = self.engine.store().shared() {
            return Locks(Kind::Fleet(redis.locks()));
        }
        Locks(Kind::Process(self.locks.clone()))
    }
}

/// Calls the same method on the locks of either store.
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

    async fn withdraw(&self, name: &str, owner: &str) -> Result<bool, Unavailable> {
        dispatch!(self, locks => locks.withdraw(name, owner).await)
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

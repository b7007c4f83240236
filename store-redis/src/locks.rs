//! Locks of the fleet. They fail closed: without a reply of Redis in time, a lock is not held.
//!
//! Released locks are pushed on the same channel as transitions, so that one subscription serves both.

use std::time::Duration;

use phalanx_core::lock::{Acquired, LockStore, Unavailable, Watch};
use phalanx_lua as lua;

use crate::failure::Failure;
use crate::invocation::{Invocation, integers};
use crate::keys::Key;
use crate::store::RedisStore;
use crate::store::inner::StoreInner;

/// The locks of the fleet: [`RedisStore::locks`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RedisLocks(RedisStore);

impl RedisLocks {
    pub(crate) const fn new(store: RedisStore) -> Self {
        Self(store)
    }

    fn store(&self) -> &StoreInner {
        self.0.inner()
    }

    /// Sends the call and returns the integers after the server's `now`.
    async fn call<const N: usize>(&self, key: &Key, call: Invocation) -> Result<[u64; N], Unavailable> {
        self.0.inner().ensure_background();
        let reply = self.store().dispatcher(key.slot).call(call).await.map_err(unavailable)?;
        let numbers: Vec<u64> = integers(&reply).into_iter().skip(1).map_while(|n| n.try_into().ok()).collect();
        numbers.try_into().map_err(|_| unavailable(Failure::Call("unexpected reply of a lock script".to_owned())))
    }
}

fn unavailable(failure: Failure) -> Unavailable {
    Unavailable { reason: failure.label().to_owned() }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl LockStore for RedisLocks {
    async fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> Result<Acquired, Unavailable> {
        let (lock, fence) = self.store().keys.lock(name);
        let mut call = self.store().invocation(&lua::LOCK_ACQUIRE, &[&lock, &fence]);
        call.arg(owner).arg(micros(ttl));
        let [held, fence, left] = self.call(&lock, call).await?;
        Ok(match held {
            0 => Acquired::Taken { fence, left: Duration::from_micros(left) },
            _ => Acquired::Held { fence },
        })
    }

    async fn renew(&self, name: &str, owner: &str, fence: u64, ttl: Duration) -> Result<bool, Unavailable> {
        let (lock, _) = self.store().keys.lock(name);
        let mut call = self.store().invocation(&lua::LOCK_RENEW, &[&lock]);
        call.arg(owner).arg(fence).arg(micros(ttl));
        let [held] = self.call(&lock, call).await?;
        Ok(held == 1)
    }

    async fn release(&self, name: &str, owner: &str, fence: u64) -> Result<bool, Unavailable> {
        let (lock, _) = self.store().keys.lock(name);
        let mut call = self.store().invocation(&lua::LOCK_RELEASE, &[&lock]);
        call.arg(owner).arg(fence).arg(&self.store().channel).arg(&lock.id);
        let [held] = self.call(&lock, call).await?;
        Ok(held == 1)
    }

    async fn complete(
        &self,
        name: &str,
        owner: &str,
        fence: u64,
        version: &str,
        keep: Duration,
    ) -> Result<bool, Unavailable> {
        let (lock, mark) = (self.store().keys.lock(name).0, self.store().keys.completion_mark(name, version));
        let mut call = self.store().invocation(&lua::LOCK_COMPLETE, &[&lock, &mark]);
        call.arg(owner).arg(fence).arg(micros(keep)).arg(&self.store().channel).arg(&lock.id);
        let [held] = self.call(&lock, call).await?;
        Ok(held == 1)
    }

    async fn completed(&self, name: &str, version: &str) -> Result<Option<u64>, Unavailable> {
        let mark = self.store().keys.completion_mark(name, version);
        let call = self.store().invocation(&lua::LOCK_COMPLETED, &[&mark]);
        let [fence] = self.call(&mark, call).await?;
        Ok((fence > 0).then_some(fence))
    }

    fn watch(&self, name: &str) -> Watch {
        self.0.inner().ensure_background(); // receives the pushes
        self.store().lock_releases.watch(&self.store().keys.lock(name).0.id)
    }

    fn environment(&self) -> Option<&str> {
        Some(self.0.environment())
    }
}

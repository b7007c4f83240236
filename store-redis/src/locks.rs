//! Locks of the fleet. They fail closed: without a reply of Redis in time, a lock is not held.
//!
//! Released locks are pushed on the same channel as transitions, so that one subscription serves both.
//!
//! Every acquire carries the highest fence of its lock that this process has seen. So fences grow over a loss of data for
//! every process that has seen them, and an acquire whose reply was lost is told from a grant that was seen.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::lock::{Acquired, LockStore, Unavailable, Watch};
use phalanx_lua as lua;

use crate::failure::Failure;
use crate::invocation::{Invocation, integers};
use crate::keys::Key;
use crate::store::RedisStore;
use crate::store::inner::StoreInner;

/// As the fence of a release: whatever fence the owner holds the lock under.
const ANY_FENCE: u64 = 0;

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

/// The highest fences that this process has seen, by the id of the lock.
#[derive(Debug, Default)]
pub(crate) struct SeenFences(Mutex<HashMap<String, u64>>);

impl SeenFences {
    /// Far more locks than names in code. Fences follow the clock, so the lowest is of the lock that was used longest ago.
    const MAX_LOCKS: usize = 1_024;
    const MAX_FENCE: u64 = (1 << 53) - 2;

    fn highest(&self, lock: &str) -> u64 {
        self.0.lock().get(lock).copied().unwrap_or(0)
    }

    /// Ignores a fence that no script grants: sent back, it would not be exact.
    fn record(&self, lock: &str, fence: u64) {
        if fence > Self::MAX_FENCE {
            return;
        }
        let mut seen = self.0.lock();
        if let Some(highest) = seen.get_mut(lock) {
            *highest = fence.max(*highest);
            return;
        }
        if seen.len() >= Self::MAX_LOCKS
            && let Some(oldest) = seen.iter().min_by_key(|(_, fence)| **fence).map(|(lock, _)| lock.clone())
        {
            seen.remove(&oldest);
        }
        seen.insert(lock.to_owned(), fence);
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
        let seen = &self.store().seen_fences;
        call.arg(owner).arg(micros(ttl)).arg(seen.highest(&lock.id));
        let [held, fence, left] = self.call(&lock, call).await?;
        seen.record(&lock.id, fence);
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

    async fn withdraw(&self, name: &str, owner: &str) -> Result<bool, Unavailable> {
        self.release(name, owner, ANY_FENCE).await
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
        if fence == 0 {
            return Ok(None);
        }
        self.store().seen_fences.record(&mark.id, fence);
        Ok(Some(fence))
    }

    fn watch(&self, name: &str) -> Watch {
        self.0.inner().ensure_background(); // receives the pushes
        self.store().lock_releases.watch(&self.store().keys.lock(name).0.id)
    }

    fn environment(&self) -> Option<&str> {
        Some(self.0.environment())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_fences_are_kept_of_the_locks_that_were_used_last() {
        let seen = SeenFences::default();
        assert_eq!(seen.highest("l"), 0);
        for fence in [5, 9, 7] {
            seen.record("l", fence);
        }
        seen.record("l", SeenFences::MAX_FENCE + 1);
        assert_eq!(seen.highest("l"), 9);
        for lock in 0..SeenFences::MAX_LOCKS as u64 {
            seen.record(&lock.to_string(), 100 + lock);
        }
        assert_eq!((seen.highest("l"), seen.highest("0")), (0, 100));
        assert_eq!(seen.0.lock().len(), SeenFences::MAX_LOCKS);
    }
}

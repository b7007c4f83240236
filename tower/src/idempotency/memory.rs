//! [`MemoryIdempotency`]: claims and answers in the memory of this process, bounded in number and size.

use std::collections::HashMap;
use std::future::ready;
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use phalanx::Clock;
use phalanx::store::{ReleaseNotifier, Time, Watch};

use super::store::{Claim, ClaimReply, IdempotencyStore, Unavailable};
use super::stored_answer::StoredAnswer;

/// An idempotency store in memory, for a single replica and for tests.
///
/// Stores at most 10,000 answers and 64 MiB. The least recently used answer is evicted first; a retry of its request runs
/// the handler again. As many requests can run at a time; further claims fail as unavailable.
///
/// # Examples
///
/// ```
/// use phalanx_tower::idempotency::{Claim, ClaimReply, IdempotencyStore, MemoryIdempotency};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryIdempotency::new().capacity(1_000);
/// let lease = Duration::from_secs(30);
/// let claim = |owner: &str| Claim { key: "k".into(), fingerprint: "f".into(), owner: owner.into() };
///
/// assert!(matches!(store.claim(&claim("first"), lease).await?, ClaimReply::Claimed));
/// assert!(matches!(store.claim(&claim("second"), lease).await?, ClaimReply::Running));
/// assert!(store.release(&claim("first")).await?);
/// assert!(matches!(store.claim(&claim("second"), lease).await?, ClaimReply::Claimed));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryIdempotency {
    clock: Clock,
    capacity: usize,
    max_bytes: usize,
    entries: Mutex<Entries>,
    /// Wakes duplicates that wait for an answer.
    ends: ReleaseNotifier,
}

#[derive(Debug)]
struct Entries {
    running: HashMap<String, RunningEntry>,
    answered: LruCache<String, AnsweredEntry>,
    /// The size of all answers.
    bytes: usize,
}

#[derive(Debug)]
struct RunningEntry {
    fingerprint: String,
    owner: String,
    expires_at: Time,
}

#[derive(Debug)]
struct AnsweredEntry {
    fingerprint: String,
    answer: StoredAnswer,
    expires_at: Time,
}

impl Default for MemoryIdempotency {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryIdempotency {
    /// Creates a store with the default limits.
    pub fn new() -> Self {
        let entries = Entries { running: HashMap::new(), answered: LruCache::unbounded(), bytes: 0 };
        let ends = ReleaseNotifier::default();
        Self { clock: Clock::detect(), capacity: 10_000, max_bytes: 64 << 20, entries: Mutex::new(entries), ends }
    }

    /// Sets how many answers are stored, and how many requests may run at a time; at least one. Default 10,000.
    #[must_use]
    pub fn capacity(mut self, requests: usize) -> Self {
        self.capacity = requests.max(1);
        self
    }

    /// Sets the approximate memory of all answers, in bytes. Default 64 MiB.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets the clock. Default: the system clock, or tokio's while its time is paused.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    fn claim_now(&self, claim: &Claim, lease: Duration) -> Result<ClaimReply, Unavailable> {
        let now = self.clock.now();
        let entries = &mut *self.entries.lock();
        entries.remove_expired(&claim.key, now);
        if let Some(answered) = entries.answered.get(&claim.key) {
            let same = answered.fingerprint == claim.fingerprint;
            return Ok(if same { ClaimReply::Answered(answered.answer.clone()) } else { ClaimReply::Mismatch });
        }
        if let Some(running) = entries.running.get(&claim.key) {
            return Ok(match running {
                RunningEntry { fingerprint, .. } if *fingerprint != claim.fingerprint => ClaimReply::Mismatch,
                RunningEntry { owner, .. } if *owner == claim.owner => ClaimReply::Claimed,
                _ => ClaimReply::Running,
            });
        }
        if entries.running.len() >= self.capacity {
            entries.running.retain(|_, running| now < running.expires_at);
            if entries.running.len() >= self.capacity {
                return Err(Unavailable { reason: "full".to_owned() });
            }
        }
        let Claim { key, fingerprint, owner } = claim.clone();
        entries.running.insert(key, RunningEntry { fingerprint, owner, expires_at: now.after(lease) });
        Ok(ClaimReply::Claimed)
    }

    fn complete_now(&self, claim: &Claim, answer: &StoredAnswer, ttl: Duration) -> bool {
        let now = self.clock.now();
        let entries = &mut *self.entries.lock();
        entries.remove_expired(&claim.key, now);
        let taken = entries.running.get(&claim.key).is_some_and(|running| running.owner != claim.owner);
        if taken || entries.answered.contains(&claim.key) {
            return false;
        }
        entries.running.remove(&claim.key);
        entries.bytes += answer.size();
        let (fingerprint, answer) = (claim.fingerprint.clone(), answer.clone());
        let entry = AnsweredEntry { fingerprint, answer, expires_at: now.after(ttl) };
        entries.answered.put(claim.key.clone(), entry);
        while entries.answered.len() > self.capacity || entries.bytes > self.max_bytes {
            let Some((_, evicted)) = entries.answered.pop_lru() else { break };
            entries.bytes -= evicted.answer.size();
        }
        true
    }

    /// Applies `change` to the running entries if this claim holds its key.
    fn if_claimed<T>(
        &self,
        claim: &Claim,
        change: impl FnOnce(&mut HashMap<String, RunningEntry>, Time) -> T,
    ) -> Option<T> {
        let now = self.clock.now();
        let entries = &mut *self.entries.lock();
        entries.remove_expired(&claim.key, now);
        let owned = entries.running.get(&claim.key).is_some_and(|running| running.owner == claim.owner);
        owned.then(|| change(&mut entries.running, now))
    }
}

impl Entries {
    /// Removes the entries of this key that have expired.
    fn remove_expired(&mut self, key: &str, now: Time) {
        if self.running.get(key).is_some_and(|running| now >= running.expires_at) {
            self.running.remove(key);
        }
        if self.answered.peek(key).is_some_and(|answered| now >= answered.expires_at)
            && let Some(expired) = self.answered.pop(key)
        {
            self.bytes -= expired.answer.size();
        }
    }
}

impl IdempotencyStore for MemoryIdempotency {
    fn claim(&self, claim: &Claim, lease: Duration) -> impl Future<Output = Result<ClaimReply, Unavailable>> + Send {
        ready(self.claim_now(claim, lease))
    }

    fn watch(&self, claim: &Claim) -> Watch {
        self.ends.watch(&claim.key)
    }

    fn renew(&self, claim: &Claim, lease: Duration) -> impl Future<Output = Result<bool, Unavailable>> + Send {
        let renewed = self.if_claimed(claim, |running, now| {
            if let Some(entry) = running.get_mut(&claim.key) {
                entry.expires_at = now.after(lease);
            }
        });
        ready(Ok(renewed.is_some()))
    }

    fn complete(
        &self,
        claim: &Claim,
        answer: &StoredAnswer,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, Unavailable>> + Send {
        let stored = self.complete_now(claim, answer, ttl);
        if stored {
            self.ends.notify(&claim.key);
        }
        ready(Ok(stored))
    }

    fn release(&self, claim: &Claim) -> impl Future<Output = Result<bool, Unavailable>> + Send {
        let released = self.if_claimed(claim, |running, _| running.remove(&claim.key));
        if released.is_some() {
            self.ends.notify(&claim.key);
        }
        ready(Ok(released.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, StatusCode};

    fn claim(key: &[u8]) -> Claim {
        Claim::new(b"", key, [b"POST", b"/", b""])
    }

    fn answer(size: usize) -> StoredAnswer {
        StoredAnswer::new(StatusCode::OK, &HeaderMap::new(), Some(vec![0; size].into()))
    }

    const DAY: Duration = Duration::from_secs(86_400);

    #[tokio::test]
    async fn answers_are_bounded_in_number_and_size_and_the_least_recently_used_is_evicted() {
        let store = MemoryIdempotency::new().capacity(2).max_bytes(1_000);
        let [a, b, c] = [b"a", b"b", b"c"].map(|key| claim(key));
        for claim in [&a, &b] {
            assert!(store.complete(claim, &answer(100), DAY).await.unwrap());
        }
        assert!(matches!(store.claim(&a, DAY).await, Ok(ClaimReply::Answered(_))));
        assert!(store.complete(&c, &answer(100), DAY).await.unwrap());
        assert!(matches!(store.claim(&b, DAY).await, Ok(ClaimReply::Claimed)), "a was used more recently");
        assert!(store.complete(&b, &answer(900), DAY).await.unwrap());
        assert!(matches!(store.claim(&a, DAY).await, Ok(ClaimReply::Claimed)));
        assert!(store.entries.lock().bytes <= 1_000);
    }

    #[tokio::test]
    async fn running_requests_are_bounded_and_expired_ones_make_room() {
        let clock = Clock::manual();
        let store = MemoryIdempotency::new().capacity(1).clock(clock.clone());
        let (a, b) = (claim(b"a"), claim(b"b"));
        assert!(matches!(store.claim(&a, Duration::from_secs(1)).await, Ok(ClaimReply::Claimed)));
        assert!(store.claim(&b, DAY).await.is_err());
        clock.advance(Duration::from_secs(1));
        assert!(matches!(store.claim(&b, DAY).await, Ok(ClaimReply::Claimed)));
    }
}

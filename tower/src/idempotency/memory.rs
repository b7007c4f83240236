//! Requests and answers of this process, bounded in number and size.

use std::collections::HashMap;
use std::future::ready;
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;
use phalanx::Clock;
use phalanx::store::Time;

use super::kept::Kept;
use super::store::{Claim, IdempotencyStore, Ticket, Unavailable};

/// Keeps requests in memory: for one replica, and for tests.
///
/// At most 10,000 answers and 64 MiB of them: the one not asked for longest makes room, and a retry of its request would
/// happen again. As many requests can be worked on at a time; beyond that claims are rejected as unavailable.
#[derive(Debug)]
pub struct MemoryIdempotency {
    clock: Clock,
    capacity: usize,
    max_bytes: usize,
    requests: Mutex<Requests>,
}

#[derive(Debug)]
struct Requests {
    running: HashMap<String, Running>,
    answered: LruCache<String, Answered>,
    bytes: usize,
}

#[derive(Debug)]
struct Running {
    fingerprint: String,
    owner: String,
    until: Time,
}

#[derive(Debug)]
struct Answered {
    fingerprint: String,
    answer: Kept,
    until: Time,
}

impl Default for MemoryIdempotency {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryIdempotency {
    /// With its default bounds.
    pub fn new() -> Self {
        let requests = Requests { running: HashMap::new(), answered: LruCache::unbounded(), bytes: 0 };
        Self { clock: Clock::detect(), capacity: 10_000, max_bytes: 64 << 20, requests: Mutex::new(requests) }
    }

    /// How many requests are kept at a time, and how many worked on; at least one. Default 10,000.
    #[must_use]
    pub fn capacity(mut self, requests: usize) -> Self {
        self.capacity = requests.max(1);
        self
    }

    /// How much memory all answers together take, about. Default 64 MiB.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// The clock. Default: the system's, or tokio's where its time is paused.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    fn claim_now(&self, ticket: &Ticket, lease: Duration) -> Result<Claim, Unavailable> {
        let now = self.clock.now();
        let requests = &mut *self.requests.lock();
        requests.forget(&ticket.key, now);
        if let Some(answered) = requests.answered.get(&ticket.key) {
            let same = answered.fingerprint == ticket.fingerprint;
            return Ok(if same { Claim::Answered(answered.answer.clone()) } else { Claim::Mismatch });
        }
        if let Some(running) = requests.running.get(&ticket.key) {
            return Ok(match running {
                Running { fingerprint, .. } if *fingerprint != ticket.fingerprint => Claim::Mismatch,
                Running { owner, .. } if *owner == ticket.owner => Claim::Claimed,
                _ => Claim::Running,
            });
        }
        if requests.running.len() >= self.capacity {
            requests.running.retain(|_, running| now < running.until);
            if requests.running.len() >= self.capacity {
                return Err(Unavailable { reason: "full".to_owned() });
            }
        }
        let Ticket { key, fingerprint, owner } = ticket.clone();
        requests.running.insert(key, Running { fingerprint, owner, until: now.after(lease) });
        Ok(Claim::Claimed)
    }

    fn complete_now(&self, ticket: &Ticket, answer: &Kept, ttl: Duration) -> bool {
        let now = self.clock.now();
        let requests = &mut *self.requests.lock();
        requests.forget(&ticket.key, now);
        let taken = requests.running.get(&ticket.key).is_some_and(|running| running.owner != ticket.owner);
        if taken || requests.answered.contains(&ticket.key) {
            return false;
        }
        requests.running.remove(&ticket.key);
        requests.bytes += answer.size();
        let (fingerprint, answer) = (ticket.fingerprint.clone(), answer.clone());
        requests.answered.put(ticket.key.clone(), Answered { fingerprint, answer, until: now.after(ttl) });
        while requests.answered.len() > self.capacity || requests.bytes > self.max_bytes {
            let Some((_, gone)) = requests.answered.pop_lru() else { break };
            requests.bytes -= gone.answer.size();
        }
        true
    }

    fn with_own<T>(&self, ticket: &Ticket, then: impl FnOnce(&mut HashMap<String, Running>, Time) -> T) -> Option<T> {
        let now = self.clock.now();
        let requests = &mut *self.requests.lock();
        requests.forget(&ticket.key, now);
        let own = requests.running.get(&ticket.key).is_some_and(|running| running.owner == ticket.owner);
        own.then(|| then(&mut requests.running, now))
    }
}

impl Requests {
    /// Drops what ran out.
    fn forget(&mut self, key: &str, now: Time) {
        if self.running.get(key).is_some_and(|running| now >= running.until) {
            self.running.remove(key);
        }
        if self.answered.peek(key).is_some_and(|answered| now >= answered.until)
            && let Some(gone) = self.answered.pop(key)
        {
            self.bytes -= gone.answer.size();
        }
    }
}

impl IdempotencyStore for MemoryIdempotency {
    fn claim(&self, ticket: &Ticket, lease: Duration) -> impl Future<Output = Result<Claim, Unavailable>> + Send {
        ready(self.claim_now(ticket, lease))
    }

    fn renew(&self, ticket: &Ticket, lease: Duration) -> impl Future<Output = Result<bool, Unavailable>> + Send {
        let renewed = self.with_own(ticket, |running, now| {
            if let Some(claim) = running.get_mut(&ticket.key) {
                claim.until = now.after(lease);
            }
        });
        ready(Ok(renewed.is_some()))
    }

    fn complete(
        &self,
        ticket: &Ticket,
        answer: &Kept,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, Unavailable>> + Send {
        ready(Ok(self.complete_now(ticket, answer, ttl)))
    }

    fn release(&self, ticket: &Ticket) -> impl Future<Output = Result<bool, Unavailable>> + Send {
        let released = self.with_own(ticket, |running, _| running.remove(&ticket.key));
        ready(Ok(released.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, StatusCode};

    fn ticket(key: &[u8]) -> Ticket {
        Ticket::new(b"", key, [b"POST", b"/", b""])
    }

    fn answer(size: usize) -> Kept {
        Kept::new(StatusCode::OK, &HeaderMap::new(), Some(vec![0; size].into()))
    }

    const DAY: Duration = Duration::from_secs(86_400);

    #[tokio::test]
    async fn answers_are_bounded_in_number_and_size_and_the_least_used_makes_room() {
        let store = MemoryIdempotency::new().capacity(2).max_bytes(1_000);
        let [a, b, c] = [b"a", b"b", b"c"].map(|key| ticket(key));
        for ticket in [&a, &b] {
            assert!(store.complete(ticket, &answer(100), DAY).await.unwrap());
        }
        assert!(matches!(store.claim(&a, DAY).await, Ok(Claim::Answered(_))));
        assert!(store.complete(&c, &answer(100), DAY).await.unwrap());
        assert!(matches!(store.claim(&b, DAY).await, Ok(Claim::Claimed)), "a was asked for since");
        assert!(store.complete(&b, &answer(900), DAY).await.unwrap());
        assert!(matches!(store.claim(&a, DAY).await, Ok(Claim::Claimed)));
        assert!(store.requests.lock().bytes <= 1_000);
    }

    #[tokio::test]
    async fn no_more_are_worked_on_than_fit_and_the_dead_make_room() {
        let clock = Clock::manual();
        let store = MemoryIdempotency::new().capacity(1).clock(clock.clone());
        let (a, b) = (ticket(b"a"), ticket(b"b"));
        assert!(matches!(store.claim(&a, Duration::from_secs(1)).await, Ok(Claim::Claimed)));
        assert!(store.claim(&b, DAY).await.is_err());
        clock.advance(Duration::from_secs(1));
        assert!(matches!(store.claim(&b, DAY).await, Ok(Claim::Claimed)));
    }
}

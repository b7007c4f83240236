//! Requests and answers of the whole fleet, in Redis.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use phalanx::ResilienceModule;
use phalanx_store_redis::{Claim as Found, Failure, RedisIdempotency as Requests, RedisStore};

use super::kept::Kept;
use super::store::{Claim, IdempotencyStore, Ticket, Unavailable};

/// Keeps requests in Redis, for all replicas: over the connection, the budget and the latch that a module over Redis has
/// already. A Redis that is away costs each request `store_budget` at most, and is then not asked until it is well.
#[derive(Clone, Debug)]
pub struct RedisIdempotency(Requests);

impl RedisIdempotency {
    /// The Redis of a module; none for one in memory.
    pub fn of(module: &ResilienceModule) -> Option<Self> {
        module.redis_store().map(Self::over)
    }

    /// A store of one's own, for answers that should live elsewhere than limits and circuits.
    pub fn over(store: &RedisStore) -> Self {
        Self(store.idempotency())
    }
}

fn unavailable(failure: Failure) -> Unavailable {
    Unavailable { reason: failure.label().to_owned() }
}

impl IdempotencyStore for RedisIdempotency {
    async fn claim(&self, ticket: &Ticket, lease: Duration) -> Result<Claim, Unavailable> {
        let found = self.0.claim(&ticket.key, &ticket.fingerprint, &ticket.owner, lease).await;
        match found.map_err(unavailable)? {
            Found::Claimed => Ok(Claim::Claimed),
            Found::Running(_) => Ok(Claim::Running),
            Found::Mismatch => Ok(Claim::Mismatch),
            // Another version's, or damaged: that it was answered is all that can be said, and it must not run again.
            Found::Answered(bytes) => {
                let unreadable = Kept { status: StatusCode::OK, headers: HeaderMap::new(), body: None };
                Ok(Claim::Answered(Kept::decode(bytes).unwrap_or(unreadable)))
            }
        }
    }

    async fn renew(&self, ticket: &Ticket, lease: Duration) -> Result<bool, Unavailable> {
        self.0.renew(&ticket.key, &ticket.owner, lease).await.map_err(unavailable)
    }

    async fn complete(&self, ticket: &Ticket, answer: &Kept, ttl: Duration) -> Result<bool, Unavailable> {
        let Ticket { key, fingerprint, owner } = ticket;
        self.0.complete(key, fingerprint, owner, &answer.encode(), ttl).await.map_err(unavailable)
    }

    async fn release(&self, ticket: &Ticket) -> Result<bool, Unavailable> {
        self.0.release(&ticket.key, &ticket.owner).await.map_err(unavailable)
    }
}

//! [`RedisIdempotency`]: claims and answers in Redis, shared by the fleet.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use phalanx::ResilienceModule;
use phalanx::store::Watch;
use phalanx_store_redis::{Claim as RedisClaim, Failure, RedisIdempotency as Client, RedisStore};

use super::store::{Claim, ClaimReply, IdempotencyStore, Unavailable};
use super::stored_answer::StoredAnswer;

/// An idempotency store in Redis, shared by all replicas.
///
/// It uses the connection and the health latch of a Redis store. If Redis is unreachable, a request waits at most 500 ms, or
/// the `store_budget` if that is longer; once the latch has opened, requests fail at once until Redis is healthy again.
#[derive(Clone, Debug)]
pub struct RedisIdempotency(Client);

impl RedisIdempotency {
    /// Creates a store over the Redis of a module. Returns none for a module in memory.
    pub fn of(module: &ResilienceModule) -> Option<Self> {
        module.redis_store().map(Self::over)
    }

    /// Creates a store over a separate Redis store, to keep answers apart from limits and breakers.
    pub fn over(store: &RedisStore) -> Self {
        Self(store.idempotency())
    }
}

fn unavailable(failure: Failure) -> Unavailable {
    Unavailable { reason: failure.label().to_owned() }
}

fn decode(reply: Result<RedisClaim, Failure>) -> Result<ClaimReply, Unavailable> {
    match reply.map_err(unavailable)? {
        RedisClaim::Claimed => Ok(ClaimReply::Claimed),
        RedisClaim::Running(_) => Ok(ClaimReply::Running),
        RedisClaim::Mismatch => Ok(ClaimReply::Mismatch),
        RedisClaim::Answered(bytes) => {
            // An answer of another version, or a damaged one, cannot be replayed, but the handler must not run again.
            let unreadable = StoredAnswer { status: StatusCode::OK, headers: HeaderMap::new(), body: None };
            Ok(ClaimReply::Answered(StoredAnswer::decode(bytes).unwrap_or(unreadable)))
        }
    }
}

impl IdempotencyStore for RedisIdempotency {
    async fn claim(&self, claim: &Claim, lease: Duration) -> Result<ClaimReply, Unavailable> {
        decode(self.0.claim(&claim.key, &claim.fingerprint, &claim.owner, lease).await)
    }

    async fn claim_waiting(&self, claim: &Claim, lease: Duration) -> Result<ClaimReply, Unavailable> {
        decode(self.0.claim_waiting(&claim.key, &claim.fingerprint, &claim.owner, lease).await)
    }

    fn watch(&self, claim: &Claim) -> Watch {
        self.0.watch(&claim.key)
    }

    async fn renew(&self, claim: &Claim, lease: Duration) -> Result<bool, Unavailable> {
        self.0.renew(&claim.key, &claim.owner, lease).await.map_err(unavailable)
    }

    async fn complete(&self, claim: &Claim, answer: &StoredAnswer, ttl: Duration) -> Result<bool, Unavailable> {
        let Claim { key, fingerprint, owner } = claim;
        self.0.complete(key, fingerprint, owner, &answer.encode(), ttl).await.map_err(unavailable)
    }

    async fn release(&self, claim: &Claim) -> Result<bool, Unavailable> {
        self.0.release(&claim.key, &claim.owner).await.map_err(unavailable)
    }
}

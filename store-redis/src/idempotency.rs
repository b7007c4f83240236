//! Requests that must not happen twice, for the whole fleet: who works on one, and what it was answered with.
//!
//! It fails closed: what Redis did not say in time is not claimed and not kept. Claims have an owner and run out by the
//! server's clock unless they are renewed, so that a replica that dies gives its requests back.

use std::time::Duration;

use phalanx_lua as lua;
use redis::Value;

use crate::failure::Failure;
use crate::invocation::{Invocation, integers};
use crate::keys::Key;
use crate::store::RedisStore;

/// What there is under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nothing was there: the request is this owner's now, for as long as its lease.
    Claimed,
    /// Somebody works on it, and holds it for so long unless he renews it.
    Running(Duration),
    /// It was answered with this.
    Answered(Vec<u8>),
    /// Another request has this key.
    Mismatch,
}

/// The requests of the whole fleet: [`RedisStore::idempotency`]. Cheap to clone.
///
/// Keys, owners and fingerprints are hexadecimal digits: hashes of what clients say, never their words.
#[derive(Clone, Debug)]
pub struct RedisIdempotency(RedisStore);

impl RedisIdempotency {
    pub(crate) const fn new(store: RedisStore) -> Self {
        Self(store)
    }

    /// Claims a request, or finds what became of it.
    ///
    /// # Errors
    /// Redis did not answer, or cannot serve.
    pub async fn claim(&self, key: &str, fingerprint: &str, owner: &str, lease: Duration) -> Result<Claim, Failure> {
        let reply = self.ask(key, &lua::IDEMPOTENCY_CLAIM, |call| {
            call.arg(owner).arg(fingerprint).arg(micros(lease));
        });
        let reply = reply.await?;
        match (&integers(&reply)[..], &reply) {
            ([_, 1, ..], _) => Ok(Claim::Claimed),
            ([_, 0, left, ..], _) => Ok(Claim::Running(Duration::from_micros((*left).try_into().unwrap_or(0)))),
            ([_, 3, ..], _) => Ok(Claim::Mismatch),
            ([_, 2, ..], Value::Array(parts)) => match parts.get(3) {
                Some(Value::BulkString(answer)) => Ok(Claim::Answered(answer.clone())),
                _ => Err(odd()),
            },
            _ => Err(odd()),
        }
    }

    /// Keeps a claim. Whether it is still this owner's.
    ///
    /// # Errors
    /// Redis did not answer, or cannot serve.
    pub async fn renew(&self, key: &str, owner: &str, lease: Duration) -> Result<bool, Failure> {
        let reply = self.ask(key, &lua::IDEMPOTENCY_RENEW, |call| {
            call.arg(owner).arg(micros(lease));
        });
        yes(&reply.await?)
    }

    /// Keeps the answer. Whether it is kept: not if another owner has claimed the request meanwhile.
    ///
    /// # Errors
    /// Redis did not answer, or cannot serve. The answer may be kept all the same.
    pub async fn complete(
        &self,
        key: &str,
        fingerprint: &str,
        owner: &str,
        answer: &[u8],
        ttl: Duration,
    ) -> Result<bool, Failure> {
        let reply = self.ask(key, &lua::IDEMPOTENCY_COMPLETE, |call| {
            call.arg(owner).arg(fingerprint).arg(answer).arg(micros(ttl));
        });
        yes(&reply.await?)
    }

    /// Gives a claim up. Whether it was this owner's.
    ///
    /// # Errors
    /// Redis did not answer, or cannot serve. The claim runs out by itself then.
    pub async fn release(&self, key: &str, owner: &str) -> Result<bool, Failure> {
        let reply = self.ask(key, &lua::IDEMPOTENCY_RELEASE, |call| {
            call.arg(owner);
        });
        yes(&reply.await?)
    }

    async fn ask(
        &self,
        key: &str,
        script: &'static lua::Script,
        args: impl FnOnce(&mut Invocation),
    ) -> Result<Value, Failure> {
        let fleet = self.0.fleet();
        fleet.keep();
        let key: Key = fleet.keys.request(key);
        let mut call = fleet.call(script, &[&key]);
        args(&mut call);
        fleet.lane(key.slot).ask(call).await
    }
}

fn yes(reply: &Value) -> Result<bool, Failure> {
    match integers(reply)[..] {
        [_, held] => Ok(held == 1),
        _ => Err(odd()),
    }
}

fn odd() -> Failure {
    Failure::Call("not a reply about a request".to_owned())
}

/// Whole microseconds, at least one: the server takes no time to live of nothing.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).clamp(1, 2_592_000_000_000)
}

//! Idempotency keys of the fleet: which replica works on a request, and the answer it completed with.
//!
//! They fail closed: without a reply of Redis in time, nothing is claimed and no answer is stored. A claim has an owner
//! and expires by the server's clock unless it is renewed, so a replica that dies does not keep its requests.
//!
//! The end of a claim that other requests wait for is pushed on the channel of the transitions.

use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::lock::Watch;
use phalanx_lua as lua;
use redis::Value;

use crate::failure::Failure;
use crate::invocation::{Invocation, integers};
use crate::keys::Key;
use crate::store::RedisStore;

/// How long an operation may take, if the store budget is not longer. An answer that a handler has made is worth more than
/// the few milliseconds that a decision about a call may wait.
const BUDGET: Duration = Duration::from_millis(500);

/// The state of an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The key was free: this owner holds the claim until its lease expires.
    Claimed,
    /// Another owner holds the claim, for this long unless it is renewed.
    Running(Duration),
    /// The request was completed with this answer.
    Answered(Vec<u8>),
    /// The key belongs to a different request.
    Mismatch,
}

/// The idempotency keys of the fleet: [`RedisStore::idempotency`]. Cheap to clone.
///
/// Keys, owners and fingerprints are hexadecimal: hashes of client input, never the input itself.
#[derive(Clone, Debug)]
pub struct RedisIdempotency(RedisStore);

impl RedisIdempotency {
    pub(crate) const fn new(store: RedisStore) -> Self {
        Self(store)
    }

    /// Claims a key, or returns its state.
    ///
    /// # Errors
    /// Redis did not reply, or cannot serve.
    pub async fn claim(&self, key: &str, fingerprint: &str, owner: &str, lease: Duration) -> Result<Claim, Failure> {
        self.claim_as(key, fingerprint, owner, lease, false).await
    }

    /// As [`Self::claim`], for a request that waits while the key is claimed: the end of that claim is pushed.
    ///
    /// # Errors
    /// Redis did not reply, or cannot serve.
    pub async fn claim_waiting(
        &self,
        key: &str,
        fingerprint: &str,
        owner: &str,
        lease: Duration,
    ) -> Result<Claim, Failure> {
        self.claim_as(key, fingerprint, owner, lease, true).await
    }

    /// Subscribes to the end of claims of a key that [`Self::claim_waiting`] found claimed. A push can be lost, so a waiter
    /// also polls; without a subscription the watch is silent.
    pub fn watch(&self, key: &str) -> Watch {
        let store = self.0.inner();
        match store.subscribed.load(Ordering::Relaxed) {
            true => store.request_ends.watch(&store.keys.request(key).id),
            false => Watch::silent(),
        }
    }

    async fn claim_as(
        &self,
        key: &str,
        fingerprint: &str,
        owner: &str,
        lease: Duration,
        waits: bool,
    ) -> Result<Claim, Failure> {
        let reply = self.call(key, &lua::IDEMPOTENCY_CLAIM, |call, _| {
            call.arg(owner).arg(fingerprint).arg(micros(lease)).arg(u8::from(waits));
        });
        let reply = reply.await?;
        match (&integers(&reply)[..], &reply) {
            ([_, 1, ..], _) => Ok(Claim::Claimed),
            ([_, 0, left, ..], _) => Ok(Claim::Running(Duration::from_micros((*left).try_into().unwrap_or(0)))),
            ([_, 3, ..], _) => Ok(Claim::Mismatch),
            ([_, 2, ..], Value::Array(parts)) => match parts.get(3) {
                Some(Value::BulkString(answer)) => Ok(Claim::Answered(answer.clone())),
                _ => Err(unexpected_reply()),
            },
            _ => Err(unexpected_reply()),
        }
    }

    /// Extends a claim. Returns whether this owner still holds it.
    ///
    /// # Errors
    /// Redis did not reply, or cannot serve.
    pub async fn renew(&self, key: &str, owner: &str, lease: Duration) -> Result<bool, Failure> {
        let reply = self.call(key, &lua::IDEMPOTENCY_RENEW, |call, _| {
            call.arg(owner).arg(micros(lease));
        });
        is_held(&reply.await?)
    }

    /// Stores the answer. Returns whether it was stored: not if another owner has claimed the key meanwhile.
    ///
    /// # Errors
    /// Redis did not reply, or cannot serve. The answer may have been stored nevertheless.
    pub async fn complete(
        &self,
        key: &str,
        fingerprint: &str,
        owner: &str,
        answer: &[u8],
        ttl: Duration,
    ) -> Result<bool, Failure> {
        let reply = self.call(key, &lua::IDEMPOTENCY_COMPLETE, |call, push| {
            call.arg(owner).arg(fingerprint).arg(answer).arg(micros(ttl)).arg(push.channel).arg(push.id);
        });
        is_held(&reply.await?)
    }

    /// Releases a claim. Returns whether this owner held it.
    ///
    /// # Errors
    /// Redis did not reply, or cannot serve. The claim then expires.
    pub async fn release(&self, key: &str, owner: &str) -> Result<bool, Failure> {
        let reply = self.call(key, &lua::IDEMPOTENCY_RELEASE, |call, push| {
            call.arg(owner).arg(push.channel).arg(push.id);
        });
        is_held(&reply.await?)
    }

    async fn call(
        &self,
        key: &str,
        script: &'static lua::Script,
        args: impl FnOnce(&mut Invocation, Push<'_>),
    ) -> Result<Value, Failure> {
        let store = self.0.inner();
        store.ensure_background();
        let key: Key = store.keys.request(key);
        let mut call = store.invocation(script, &[&key]);
        args(&mut call, Push { channel: &store.channel, id: &key.id });
        store.dispatcher(key.slot).call_within(call, BUDGET).await
    }
}

/// Where the end of a claim is pushed, and what a push calls it.
struct Push<'a> {
    channel: &'a str,
    id: &'a str,
}

fn is_held(reply: &Value) -> Result<bool, Failure> {
    match integers(reply)[..] {
        [_, held] => Ok(held == 1),
        _ => Err(unexpected_reply()),
    }
}

fn unexpected_reply() -> Failure {
    Failure::Call("unexpected reply of an idempotency script".to_owned())
}

/// Whole microseconds, at least one: Redis rejects a TTL of zero.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).clamp(1, 2_592_000_000_000)
}

//! [`IdempotencyStore`]: stores which request holds a key, and the answers of earlier requests.

use std::fmt;
use std::future::Future;
use std::sync::LazyLock;
use std::time::Duration;

use phalanx::store::{Rng, Watch};
use sha2::{Digest, Sha256};

use super::stored_answer::StoredAnswer;

/// The claim of one delivery of a request to run its handler. The layer fills all fields with hexadecimal digits, so that
/// no text of a client reaches a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The hash of the client's key and its scope.
    pub key: String,
    /// The hash of method, path, query and body.
    pub fingerprint: String,
    /// Unique to this delivery.
    pub owner: String,
}

impl Claim {
    pub(crate) fn new(scope: &[u8], key: &[u8], request: [&[u8]; 3]) -> Self {
        // 128 random bits, so that no two deliveries on any replica share an owner.
        static SOURCES: LazyLock<[Rng; 2]> = LazyLock::new(|| [Rng::from_entropy(), Rng::from_entropy()]);
        let owner = SOURCES.each_ref().map(|source| format!("{:016x}", source.next())).concat();
        Self { key: hash(&[scope, key]), fingerprint: hash(&request), owner }
    }
}

/// Hashes each part with its length, so that different lists of parts never hash the same bytes.
fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The store's reply to a claim.
#[derive(Clone, Debug)]
pub enum ClaimReply {
    /// The key was free. The claim holds it for its lease.
    Claimed,
    /// Another claim holds the key.
    Running,
    /// The request has been answered.
    Answered(StoredAnswer),
    /// The key belongs to another request.
    Mismatch,
}

/// The store did not reply, or is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// A short reason, such as `timeout`.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the idempotency store is unavailable: {}", self.reason)
    }
}

impl std::error::Error for Unavailable {}

/// Stores claims and answers.
///
/// # Behaviour
/// - Of several claims of a key one is granted; the others get `Running` until it is answered or released.
/// - A claim that is not renewed within its lease expires.
/// - An answer is stored for its ttl, and no claim of its key is granted meanwhile.
/// - Another fingerprint under a key is a mismatch, whether the request is running or answered.
/// - Only the owner of a claim renews or releases it. An answer is stored for the owner of the claim, and for a former
///   owner if no other claim holds the key.
/// - Every operation returns within the store's own time limit, with an error if it could not be done.
pub trait IdempotencyStore: Send + Sync + 'static {
    /// Claims a key, or returns what holds it.
    fn claim(&self, claim: &Claim, lease: Duration) -> impl Future<Output = Result<ClaimReply, Unavailable>> + Send;

    /// As [`claim`](Self::claim), for a request that waits while the key is claimed: the store notifies
    /// [`watch`](Self::watch) of the end of that claim. Default: `claim`, for a store without notifications.
    fn claim_waiting(
        &self,
        claim: &Claim,
        lease: Duration,
    ) -> impl Future<Output = Result<ClaimReply, Unavailable>> + Send {
        self.claim(claim, lease)
    }

    /// Subscribes to the end of the claim that holds this key. A notification can be missed, so a waiter also polls: often
    /// if the watch is silent, which is the default.
    fn watch(&self, _: &Claim) -> Watch {
        Watch::silent()
    }

    /// Extends a claim by another lease. Returns false if it no longer holds the key.
    fn renew(&self, claim: &Claim, lease: Duration) -> impl Future<Output = Result<bool, Unavailable>> + Send;

    /// Stores the answer. Returns false if it was not stored.
    fn complete(
        &self,
        claim: &Claim,
        answer: &StoredAnswer,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, Unavailable>> + Send;

    /// Releases a claim. Returns false if it did not hold the key.
    fn release(&self, claim: &Claim) -> impl Future<Output = Result<bool, Unavailable>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_split_elsewhere_hash_differently_and_every_claim_has_its_own_owner() {
        let one = Claim::new(b"a", b"bc", [b"POST", b"/x", b""]);
        let two = Claim::new(b"ab", b"c", [b"POST", b"/", b"x"]);
        assert!(one.key != two.key && one.fingerprint != two.fingerprint && one.owner != two.owner);
        let again = Claim::new(b"a", b"bc", [b"POST", b"/x", b""]);
        assert!(one.key == again.key && one.fingerprint == again.fingerprint && one.owner != again.owner);
        assert!(
            [&one.key, &one.fingerprint, &one.owner].iter().all(|text| text.bytes().all(|b| b.is_ascii_hexdigit()))
        );
    }
}

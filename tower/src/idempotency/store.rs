//! Where it is kept who works on a request, and what it was answered with.

use std::fmt;
use std::future::Future;
use std::sync::LazyLock;
use std::time::Duration;

use phalanx::store::Rng;
use sha2::{Digest, Sha256};

use super::kept::Kept;

/// One try at a request: which request it is, what it says, and whose try this is. All three in hexadecimal digits, so
/// that no client's words enter a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The hash of the client's key and of whom it belongs to.
    pub key: String,
    /// The hash of method, path, query and body.
    pub fingerprint: String,
    /// Unique to this try.
    pub owner: String,
}

impl Ticket {
    pub(crate) fn new(scope: &[u8], key: &[u8], request: [&[u8]; 3]) -> Self {
        // Two sources of 64 bits each: no two tries of any replica are taken for one.
        static SOURCES: LazyLock<[Rng; 2]> = LazyLock::new(|| [Rng::from_entropy(), Rng::from_entropy()]);
        let owner = SOURCES.each_ref().map(|source| format!("{:016x}", source.next())).concat();
        Self { key: hash(&[scope, key]), fingerprint: hash(&request), owner }
    }
}

/// Each part with its length before it, so that no two lists of parts are the same bytes.
fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What there is under a key.
#[derive(Clone, Debug)]
pub enum Claim {
    /// Nothing was there: the request is this try's, for as long as its lease.
    Claimed,
    /// Another try works on it.
    Running,
    /// It was answered.
    Answered(Kept),
    /// Another request has this key.
    Mismatch,
}

/// The store did not answer, or cannot serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// Why, in a word.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the idempotency store is unavailable: {}", self.reason)
    }
}

impl std::error::Error for Unavailable {}

/// Keeps requests and their answers.
///
/// # Behaviour
/// - Of several tries at a key one claims it; the others see it running until it is answered or released.
/// - A claim that is not renewed for its lease is nobody's.
/// - An answer is kept for its time to live, and no claim is given meanwhile.
/// - Another fingerprint under a key is a mismatch, whether it runs or was answered.
/// - Only the owner of a claim renews or releases it; an answer can be completed by its owner, and by who lost the claim
///   if nobody else has it.
/// - It answers within its own bounded time, or says that it cannot.
pub trait IdempotencyStore: Send + Sync + 'static {
    /// Claims a request, or finds what became of it.
    fn claim(&self, ticket: &Ticket, lease: Duration) -> impl Future<Output = Result<Claim, Unavailable>> + Send;

    /// Keeps a claim for another lease. Whether it is still this try's.
    fn renew(&self, ticket: &Ticket, lease: Duration) -> impl Future<Output = Result<bool, Unavailable>> + Send;

    /// Keeps the answer. Whether it is kept.
    fn complete(
        &self,
        ticket: &Ticket,
        answer: &Kept,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, Unavailable>> + Send;

    /// Gives a claim up. Whether it was this try's.
    fn release(&self, ticket: &Ticket) -> impl Future<Output = Result<bool, Unavailable>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cut_elsewhere_are_another_request_and_every_try_is_its_own() {
        let one = Ticket::new(b"a", b"bc", [b"POST", b"/x", b""]);
        let two = Ticket::new(b"ab", b"c", [b"POST", b"/", b"x"]);
        assert!(one.key != two.key && one.fingerprint != two.fingerprint && one.owner != two.owner);
        let again = Ticket::new(b"a", b"bc", [b"POST", b"/x", b""]);
        assert!(one.key == again.key && one.fingerprint == again.fingerprint && one.owner != again.owner);
        assert!(
            [&one.key, &one.fingerprint, &one.owner].iter().all(|text| text.bytes().all(|b| b.is_ascii_hexdigit()))
        );
    }
}

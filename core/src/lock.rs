//! Locks that a fleet shares: one owner at a time, for as long as it renews, with a fence that tells late writers apart.
//!
//! The exception among the stores: exclusivity fails closed, so every operation can fail, and a lock that cannot be
//! asked about is a lock that is not held. A lock is lost when its time runs out, whoever notices; so whatever is
//! written under it carries its *fence*, a number that is higher for every new holder, and whoever keeps what is written
//! rejects a lower one than it has seen ([`Fences`]). (Kleppmann, "How to do distributed locking", 2016.)
//!
//! Beside the lock lies a *mark*, by version: that the work under it was done, and under which fence.

mod bells;
mod fences;
mod machine;

use std::fmt;
use std::future::Future;
use std::time::Duration;

pub use self::bells::{Bells, Watch};
pub use self::fences::{Fences, Stale};
pub use self::machine::Lock;

/// The longest a lock or a mark is kept without being renewed.
pub const LONGEST: Duration = Duration::from_secs(30 * 24 * 3_600);

/// What came of asking for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It is the asker's.
    Held {
        /// Higher than that of every holder before.
        fence: u64,
    },
    /// It is somebody else's.
    Taken {
        /// The holder's fence.
        fence: u64,
        /// How long it is held for, unless it is renewed or released.
        left: Duration,
    },
}

/// The store cannot say: the lock counts as not held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// What was seen: `timeout`, `connection`, or a server's own word.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lock store is unavailable ({})", self.reason)
    }
}

impl std::error::Error for Unavailable {}

/// Where locks are kept. An owner is a name that nobody else uses, anew for each time a lock is wanted.
pub trait LockStore: Clone + Send + Sync + 'static {
    /// Takes a lock, or keeps it.
    ///
    /// # Behaviour
    /// - a free lock is taken for its ttl
    /// - a lock that is held is rejected with the time left
    /// - its owner may take it again and keeps its fence
    /// - a lock that ran out is free
    /// - every new holder has a higher fence
    /// - different names never share a lock
    fn acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> impl Future<Output = Result<Acquired, Unavailable>> + Send;

    /// Keeps a lock that is held for another `ttl`; false if it is not held any more.
    ///
    /// # Behaviour
    /// - a renewed lock is held for another ttl
    /// - a lock that ran out cannot be renewed
    /// - a lock that somebody else took cannot be renewed
    fn renew(
        &self,
        name: &str,
        owner: &str,
        fence: u64,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, Unavailable>> + Send;

    /// Frees a lock, if it is this owner's under this fence, and tells who watches; false if it was not held any more.
    ///
    /// # Behaviour
    /// - a released lock is free at once
    /// - a release by anybody else changes nothing
    fn release(&self, name: &str, owner: &str, fence: u64) -> impl Future<Output = Result<bool, Unavailable>> + Send;

    /// Marks the work under a lock that is held as done, for `keep`, and frees the lock, in one; false if it was not held
    /// any more, and then nothing is marked.
    ///
    /// # Behaviour
    /// - completed work is marked with its fence and its lock is free
    /// - work whose lock was lost is not marked
    fn complete(
        &self,
        name: &str,
        owner: &str,
        fence: u64,
        version: &str,
        keep: Duration,
    ) -> impl Future<Output = Result<bool, Unavailable>> + Send;

    /// The fence under which the work of this version was last done; none if it was not.
    ///
    /// # Behaviour
    /// - a mark is of one name and one version
    /// - a mark is forgotten after its time
    fn completed(&self, name: &str, version: &str) -> impl Future<Output = Result<Option<u64>, Unavailable>> + Send;

    /// Tells when the lock may have become free. It may miss that: whoever waits also looks now and then.
    fn watch(&self, name: &str) -> Watch;

    /// The fleet that shares these locks, by its environment; none if only this process does.
    fn environment(&self) -> Option<&str> {
        None
    }
}

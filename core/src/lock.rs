//! Locks that a fleet shares: one owner at a time, for as long as it renews, with a fence against late writers.
//!
//! Unlike the other stores, locks fail closed: every operation can return an error, and a lock whose store cannot be
//! reached counts as not held. A holder may lose its lock without noticing, when the ttl runs out. Every write under the
//! lock therefore carries its *fence*, a number that is higher for every new holder, and the place that is written to
//! rejects a lower fence than it has seen ([`Fences`]). (Kleppmann, "How to do distributed locking", 2016.)
//!
//! A *mark*, by version, records that the work under a lock was completed, and under which fence. It lives for as long as
//! it is asked for.

mod fences;
mod machine;
mod release_notifier;

use std::fmt;
use std::future::Future;
use std::time::Duration;

pub use self::fences::{Fences, Stale};
pub use self::machine::Lock;
pub use self::release_notifier::{ReleaseNotifier, Watch};

/// The longest that a lock is kept without renewal, and a mark without being read.
pub const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 3_600);

/// The result of [`LockStore::acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The caller holds the lock.
    Held {
        /// Higher than the fence of every earlier holder.
        fence: u64,
    },
    /// Another owner holds the lock.
    Taken {
        /// The holder's fence.
        fence: u64,
        /// The time until the lock is free, unless it is renewed or released before.
        left: Duration,
    },
}

/// The store could not be reached: the lock counts as not held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// `timeout`, `connection`, or the server's error.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lock store is unavailable ({})", self.reason)
    }
}

impl std::error::Error for Unavailable {}

/// A store of locks. An owner is a name that is unique to one attempt to hold a lock.
pub trait LockStore: Clone + Send + Sync + 'static {
    /// Acquires a lock, also if this owner holds it already. A store whose reply can be lost grants the fence of such a
    /// grant again to its owner, and a new one if the fence has been seen.
    ///
    /// # Behaviour
    /// - a free lock is taken for its ttl
    /// - a lock that is held is rejected with the time left
    /// - its owner may take it again under a higher fence
    /// - a late release of its owner does not free a lock that was taken again
    /// - a lock that ran out is free
    /// - every new holder has a higher fence
    /// - different names never share a lock
    fn acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> impl Future<Output = Result<Acquired, Unavailable>> + Send;

    /// Extends a lock by another `ttl`; returns false if this owner no longer holds it.
    ///
    /// # Behaviour
    /// - a renewed lock is held for another ttl
    /// - a lock that ran out cannot be renewed
    /// - a lock that another owner took cannot be renewed
    fn renew(
        &self,
        name: &str,
        owner: &str,
        fence: u64,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, Unavailable>> + Send;

    /// Releases a lock that this owner holds under this fence and notifies waiters; returns false if it was not held.
    ///
    /// # Behaviour
    /// - a released lock is free at once
    /// - a release by another owner changes nothing
    fn release(&self, name: &str, owner: &str, fence: u64) -> impl Future<Output = Result<bool, Unavailable>> + Send;

    /// Releases a lock for an owner that has not received the reply to an acquire and does not know whether it holds the
    /// lock, nor under which fence. Notifies waiters; returns false if the owner did not hold it.
    ///
    /// # Behaviour
    /// - a lock that is withdrawn from is free at once
    /// - a withdrawal by another owner changes nothing
    fn withdraw(&self, name: &str, owner: &str) -> impl Future<Output = Result<bool, Unavailable>> + Send;

    /// Marks the work under a lock as completed, for `keep` after the mark was last read, and releases the lock,
    /// atomically. Returns false and marks nothing if the lock was not held.
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

    /// Returns the fence under which the work of this version was last completed, if it was, and keeps the mark for
    /// another `keep`.
    ///
    /// # Behaviour
    /// - a mark is of one name and one version
    /// - a mark that is not read is forgotten after its time
    /// - a mark that is read is kept for another time
    fn completed(&self, name: &str, version: &str) -> impl Future<Output = Result<Option<u64>, Unavailable>> + Send;

    /// Subscribes to releases of a lock. A release can be missed, so a waiter also polls.
    fn watch(&self, name: &str) -> Watch;

    /// Returns the environment of the fleet that shares these locks; none if they are of this process only.
    fn environment(&self) -> Option<&str> {
        None
    }
}

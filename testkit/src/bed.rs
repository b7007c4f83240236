//! Test beds: a small fleet over one store, with a clock that the test moves.
//!
//! Guarantees of every bed: beds share no state; the stores of one bed are replicas of one fleet; the clock starts at
//! [`ORIGIN`] and moves only by [`Bed::advance`]; after [`Bed::sync_all`] every replica has received all earlier writes
//! of every other replica. No bed sleeps.

mod lua;
#[cfg(feature = "servers")]
mod redis;

use std::future::{Future, ready};
use std::time::Duration;

use phalanx_core::clock::{Clock, Time};
use phalanx_core::lock::LockStore;
use phalanx_core::rejection::Source;
use phalanx_core::store::Store;
use phalanx_store_memory::{MemoryLocks, MemoryStore};

pub use self::lua::LuaBed;
#[cfg(feature = "servers")]
pub use self::redis::RedisBed;

/// The initial time of every bed. The same for all beds, because slices of windows are aligned to the clock's zero; as
/// large and uneven as a real server's time, so that arithmetic that only works near zero fails.
pub const ORIGIN: Time = Time::from_micros(1_700_000_003_456_789);

/// A test bed for a store.
pub trait Bed: Send + Sync + Sized + 'static {
    /// The store under test.
    type Store: Store;

    /// The source of every decision on a healthy bed. Cases check it, so that decisions of the twin cannot pass as
    /// decisions of the store under test.
    const SOURCE: Source;

    /// Whether `record` and `observe_quantile` return the transition they cause. They never wait, so a store whose state
    /// is remote may return none; the transition is then visible after [`Bed::sync_all`]. Default true.
    const IMMEDIATE_TRANSITIONS: bool = true;

    /// Creates a bed that shares no state with other beds.
    fn new() -> impl Future<Output = Self> + Send;

    /// Returns the store of another replica of this fleet. An in-process store returns the same store every time.
    fn store(&self) -> Self::Store;

    /// Returns the time of the clock that decides; for a shared store, the server's. Replicas pass the time of their own
    /// [`Store::clock`], which may differ.
    fn now(&self) -> Time;

    /// Moves that clock and the clocks of all replicas forward.
    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send;

    /// Waits until every replica has received everything sent by any replica: background writes (`record`, `refund`,
    /// `observe`, a changed spec) and pushed messages. Default: returns at once, as there is nothing to wait for in an
    /// in-process store.
    fn sync_all(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }
}

/// A bed with locks, for the cases of `LockStore`. A store without locks does not need it.
pub trait LockBed: Bed {
    /// The locks under test, on the clock of the bed.
    type Locks: LockStore;

    /// Returns the lock store of another replica, as [`Bed::store`] does.
    fn locks(&self) -> Self::Locks;
}

/// A bed for the memory store. All replicas share one store, so there is nothing to synchronize.
#[derive(Debug)]
pub struct MemoryBed {
    clock: Clock,
    store: MemoryStore,
    locks: MemoryLocks,
}

impl Bed for MemoryBed {
    type Store = MemoryStore;

    const SOURCE: Source = Source::Local;

    async fn new() -> Self {
        let clock = Clock::manual();
        clock.set(ORIGIN);
        Self { store: MemoryStore::new(clock.clone()), locks: MemoryLocks::new(clock.clone()), clock }
    }

    fn store(&self) -> MemoryStore {
        self.store.clone()
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send {
        self.clock.advance(by);
        ready(())
    }
}

impl LockBed for MemoryBed {
    type Locks = MemoryLocks;

    fn locks(&self) -> MemoryLocks {
        self.locks.clone()
    }
}

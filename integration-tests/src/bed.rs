//! A bed: a fleet in miniature that a test can lay out afresh, move in time and look at from several replicas.
//!
//! What a bed promises: beds share nothing with each other; the stores of one bed are replicas of one fleet; its
//! clock starts at [`ORIGIN`] and moves by [`Bed::advance`] only; after [`Bed::settle`] every replica knows what any
//! replica was told before. Nothing here sleeps.

mod lua;
mod redis;

use std::future::{Future, ready};
use std::time::Duration;

use phalanx_core::clock::{Clock, Time};
use phalanx_core::lock::LockStore;
use phalanx_core::rejection::Source;
use phalanx_core::store::Store;
use phalanx_store_memory::{MemoryLocks, MemoryStore};

pub use self::lua::LuaBed;
pub use self::redis::RedisBed;

/// What every new bed's clock shows: the same everywhere, because windows are cut into slices from the clock's zero,
/// and as large and crooked as a server's, because arithmetic that is only right near zero is wrong.
pub const ORIGIN: Time = Time::from_micros(1_700_000_003_456_789);

/// Where a store is judged.
pub trait Bed: Send + Sync + Sized + 'static {
    /// The store under test.
    type Store: Store;

    /// The locks under test.
    type Locks: LockStore;

    /// Whose state an answer of a healthy bed is made on. It is checked, so that a twin cannot stand in unnoticed for
    /// the store under test.
    const SOURCE: Source;

    /// Whether `record` and `observe_quantile` return the change of phase they cause. They never wait, so a store
    /// whose truth lives elsewhere cannot know yet: it may return none, and the change is there after
    /// [`Bed::settle`].
    const TELLS_AT_ONCE: bool;

    /// A bed of its own, shared with nobody.
    fn new() -> impl Future<Output = Self> + Send;

    /// A replica's store: each one another replica of the same fleet. Where all are one process, the same store.
    fn store(&self) -> Self::Store;

    /// A replica's locks, each as [`Bed::store`].
    fn locks(&self) -> Self::Locks;

    /// The moment on the clock that decides (of a shared store: the server's). A replica is asked with the reading of
    /// its own [`Store::clock`], which need not be the same.
    fn now(&self) -> Time;

    /// Moves that clock, and every replica's, forward.
    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send;

    /// Returns when everything that any replica was told has reached all of them: what is written behind the caller's
    /// back (`record`, `refund`, `observe`, another spec) as well as what is pushed.
    fn settle(&self) -> impl Future<Output = ()> + Send;
}

/// The memory store: all replicas are one process and one store, so there is nothing to settle.
#[derive(Debug)]
pub struct MemoryBed {
    clock: Clock,
    store: MemoryStore,
    locks: MemoryLocks,
}

impl Bed for MemoryBed {
    type Store = MemoryStore;
    type Locks = MemoryLocks;

    const SOURCE: Source = Source::Local;
    const TELLS_AT_ONCE: bool = true;

    async fn new() -> Self {
        let clock = Clock::manual();
        clock.set(ORIGIN);
        Self { store: MemoryStore::new(clock.clone()), locks: MemoryLocks::new(clock.clone()), clock }
    }

    fn store(&self) -> MemoryStore {
        self.store.clone()
    }

    fn locks(&self) -> MemoryLocks {
        self.locks.clone()
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn advance(&self, by: Duration) -> impl Future<Output = ()> + Send {
        self.clock.advance(by);
        ready(())
    }

    fn settle(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }
}

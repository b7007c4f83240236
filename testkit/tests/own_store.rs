//! The conformance suite on the store of `examples/own_store.rs`: all that a store of your own needs in its tests.

#[allow(unreachable_pub)] // its visibility is that of a program of its own
#[path = "../examples/own_store.rs"]
mod own_store;

use std::time::Duration;

use phalanx::Source;
use phalanx::store::Time;
use phalanx_testkit::bed::{Bed, ORIGIN};
use phalanx_testkit::{Clock, Rng, conformance_suite};

use self::own_store::OwnStore;

/// A fleet over one store, with a clock that the cases move. The replicas of an in-process store are the store itself.
struct OwnBed {
    clock: Clock,
    store: OwnStore,
}

impl Bed for OwnBed {
    type Store = OwnStore;

    const SOURCE: Source = Source::Local;

    async fn new() -> Self {
        let clock = Clock::manual();
        clock.set(ORIGIN);
        Self { store: OwnStore::new(clock.clone(), Rng::seeded(7)), clock }
    }

    fn store(&self) -> OwnStore {
        self.store.clone()
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

conformance_suite!(OwnBed);

#[test]
fn the_store_of_the_example_runs_policies() {
    own_store::main().unwrap();
}

//! Lifecycle hooks: what `phalanx_lifecycle::Runtime` calls on a [`ResilienceModule`] while it starts, drains and stops.
//!
//! The runtime has the module join the fleet, drains its calls through its gate, has it leave the fleet, and reports the store's mode as a
//! detail of readiness.

use phalanx_core::drain::Gate;
use phalanx_core::event::EventKind;
use phalanx_lifecycle::{LeaveFuture, Module};

use crate::module::ResilienceModule;

impl Module for ResilienceModule {
    fn attach(&self, gate: &Gate) -> bool {
        Self::attach(self, gate)
    }

    fn emit(&self, kind: EventKind<'_>) {
        self.engine.emit(kind);
    }

    #[cfg(feature = "redis")]
    fn join(&self) {
        self.engine.store().shared().into_iter().for_each(phalanx_store_redis::RedisStore::join);
    }

    #[cfg(feature = "redis")]
    fn leave(&self) -> LeaveFuture<'_> {
        use phalanx_store_redis::RedisStore;

        // One budget to flush pending outcomes and one to remove the membership. What is not sent in time expires by
        // itself: leases at their deadline, membership after a few seconds.
        let budget = self.engine.store().shared().map(RedisStore::budget).unwrap_or_default();
        Box::pin(async move {
            let _ = tokio::time::timeout(2 * budget, self.leave_fleet()).await;
        })
    }

    #[cfg(not(feature = "redis"))]
    fn leave(&self) -> LeaveFuture<'_> {
        Box::pin(std::future::ready(()))
    }

    #[cfg(feature = "redis")]
    fn store_mode(&self) -> Option<&'static str> {
        use crate::store::StoreMode;

        Some(match Self::store_mode(self)? {
            StoreMode::Connecting => "connecting",
            StoreMode::Shared => "shared",
            StoreMode::Partial => "partial",
            StoreMode::Degraded => "degraded",
        })
    }

    #[cfg(feature = "redis")]
    fn expected_replicas(&self) -> Option<u32> {
        self.engine.store().shared().and_then(phalanx_store_redis::RedisStore::expected_replicas)
    }

    #[cfg(feature = "redis")]
    fn environment(&self) -> Option<&str> {
        self.engine.store().shared().map(phalanx_store_redis::RedisStore::environment)
    }
}

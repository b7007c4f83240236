//! A module under a runtime: its calls are drained, its fleet is left, its store's health is a detail of readiness.

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
    fn leave(&self) -> LeaveFuture<'_> {
        use phalanx_store_redis::RedisStore;

        // One budget to tell Redis what it is owed, and one to be counted out. What it does not hear in time runs out
        // by itself: leases after their time, membership after a few seconds.
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
            StoreMode::Shared => "shared",
            StoreMode::Partial => "partial",
            StoreMode::Degraded => "degraded",
        })
    }

    #[cfg(feature = "redis")]
    fn environment(&self) -> Option<&str> {
        self.engine.store().shared().map(phalanx_store_redis::RedisStore::environment)
    }
}

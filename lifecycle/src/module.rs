//! What a runtime needs from a resilience module.

use std::future::Future;
use std::pin::Pin;

use phalanx_core::drain::Gate;
use phalanx_core::engine::Engine;
use phalanx_core::event::EventKind;
use phalanx_core::store::Store;

/// The future of [`Module::leave`].
pub type LeaveFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A module whose calls are drained at shutdown. `phalanx::ResilienceModule` implements it.
pub trait Module: Send + Sync + 'static {
    /// Routes all calls through this gate. Returns false if another gate is attached already.
    fn attach(&self, gate: &Gate) -> bool;

    /// Emits an event to the module's observers.
    fn emit(&self, kind: EventKind<'_>);

    /// Connects the module to the state that it shares, in the background. Called when the runtime starts.
    fn join(&self) {}

    /// Returns leases and probe permits to the fleet and ends its membership. Waits for the store no longer than the
    /// store's budget.
    fn leave(&self) -> LeaveFuture<'_> {
        Box::pin(std::future::ready(()))
    }

    /// Returns where the module decides at the moment: `connecting`, `shared`, `partial` or `degraded`; none if it shares
    /// no state.
    fn store_mode(&self) -> Option<&'static str> {
        None
    }

    /// Returns the most replicas that the fleet can have; none if that is not configured, or if the module shares no state.
    fn expected_replicas(&self) -> Option<u32> {
        None
    }

    /// Returns the environment whose replicas share the module's state; none if it shares no state.
    fn environment(&self) -> Option<&str> {
        None
    }
}

/// An engine over a store of its own shares no state, so it has nothing to return to a fleet.
impl<S: Store> Module for Engine<S> {
    fn attach(&self, gate: &Gate) -> bool {
        Self::attach(self, gate)
    }

    fn emit(&self, kind: EventKind<'_>) {
        Self::emit(self, kind);
    }
}

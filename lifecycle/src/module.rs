//! What a runtime has to know of a resilience module.

use std::future::Future;
use std::pin::Pin;

use phalanx_core::drain::Gate;
use phalanx_core::engine::Engine;
use phalanx_core::event::EventKind;
use phalanx_core::store::Store;

/// Handing back what belongs to the fleet.
pub type Leaving<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A module whose calls are drained. `phalanx::ResilienceModule` is one.
pub trait Module: Send + Sync + 'static {
    /// Lets all calls come in by this gate. False if they come in by another already.
    fn attach(&self, gate: &Gate) -> bool;

    /// Tells its observers.
    fn emit(&self, kind: EventKind<'_>);

    /// Hands back leases and probes and leaves the membership, waiting for the store no longer than its budget.
    fn leave(&self) -> Leaving<'_> {
        Box::pin(std::future::ready(()))
    }

    /// Who decides at the moment, in a word (`shared`, `partial`, `degraded`); none if nothing is shared.
    fn store_mode(&self) -> Option<&'static str> {
        None
    }

    /// Which fleet shares its state; none if nobody does.
    fn environment(&self) -> Option<&str> {
        None
    }
}

/// An engine over a store of its own shares nothing that a runtime could hand back.
impl<S: Store> Module for Engine<S> {
    fn attach(&self, gate: &Gate) -> bool {
        Self::attach(self, gate)
    }

    fn emit(&self, kind: EventKind<'_>) {
        Self::emit(self, kind);
    }
}

//! Life and death of a replica.
//!
//! ```text
//!   start        wave 1 ──► wave 2 ──► … ──► ready          a step that fails: what had started is stopped again
//!                  steps of a wave together                 a singleton step: one replica of the fleet, the others wait
//!   SIGTERM      readiness: draining ──► new calls: `draining`, calls in flight: up to `drain_timeout`
//!                ──► what is left is counted, told and cancelled ──► leases, probes and membership handed back
//!   stop         wave n ──► … ──► wave 1                    a step that wedges is abandoned and reported
//! ```
//!
//! * [`Runtime`]: all of it, from the first step to the last. [`Step`]: one thing to start and to stop.
//! * [`DeploymentProfile`]: what a step may do in one process, in a fleet, in a function that is frozen between calls.
//! * [`singleton()`]: a step that one replica runs for all. [`DistributedLock`]: what it stands on.
//! * [`Ticker`]: work at intervals that replicas do not do in step.
//! * [`Readiness`], [`probes`] and, with the feature `axum`, `probe_routes`: what an orchestrator asks.
//!
//! It knows a resilience module only as a [`Module`], so that it stands below the crate that brings one.

mod lock;
mod module;
mod plan;
pub mod probes;
mod profile;
mod readiness;
#[cfg(feature = "axum")]
mod routes;
mod runtime;
mod signal;
mod singleton;
mod step;
mod ticker;

pub use self::lock::{DistributedLock, LockError, LockGuard, LockLost, LockSpec};
pub use self::module::{Leaving, Module};
pub use self::plan::{StepErrorKind, StepFailure};
pub use self::profile::DeploymentProfile;
pub use self::readiness::{Readiness, Status};
#[cfg(feature = "axum")]
pub use self::routes::probe_routes;
pub use self::runtime::{Runtime, RuntimeBuilder, Shutdown, StartError};
pub use self::singleton::{SingletonSpec, singleton};
pub use self::step::{Failure, Step, StepContext, StopSignal};
pub use self::ticker::Ticker;

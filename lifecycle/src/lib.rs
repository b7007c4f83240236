//! The lifecycle of a replica: startup in waves, readiness, drain and shutdown.
//!
//! ```text
//!   start        wave 1 ──► wave 2 ──► … ──► ready         steps of a wave start concurrently; after a failure the
//!                                                          started steps are stopped again
//!                                                          a singleton step runs on one replica, the others wait
//!   SIGTERM      readiness `draining` ──► new calls are rejected, calls in flight have up to `drain_timeout`
//!                ──► remaining calls are counted and cancelled ──► leases, probes and membership are released
//!   stop         wave n ──► … ──► wave 1                   a step that exceeds its timeout is abandoned and reported
//! ```
//!
//! * [`Runtime`] runs all of it. A [`Step`] is one thing to start and to stop.
//! * [`DeploymentProfile`] decides which steps are allowed in one process, in a fleet, or in a serverless function.
//! * [`singleton()`] makes a step run on one replica for all, under a [`DistributedLock`].
//! * [`Ticker`] runs work at jittered intervals.
//! * [`Readiness`], [`health`] and, with the feature `axum`, `health_routes` answer an orchestrator's checks.
//!
//! This crate depends on a resilience module only through the trait [`Module`], so the `phalanx` crate can depend on it.

pub mod health;
mod lock;
mod module;
mod profile;
mod readiness;
mod runtime;
mod signal;
mod singleton;
mod step;
mod ticker;
mod waves;

#[cfg(feature = "axum")]
pub use self::health::health_routes;
pub use self::lock::{DistributedLock, LockError, LockGuard, LockLost, LockSpec};
pub use self::module::{LeaveFuture, Module};
pub use self::profile::DeploymentProfile;
pub use self::readiness::{Readiness, Status};
pub use self::runtime::{Runtime, RuntimeBuilder, Shutdown, StartError};
pub use self::singleton::{SingletonSpec, singleton};
pub use self::step::{BoxError, Step, StepContext, StopSignal};
pub use self::ticker::Ticker;
pub use self::waves::{StepErrorKind, StepFailure};

/// Compiles the code of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDocTests;

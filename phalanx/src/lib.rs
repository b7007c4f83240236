//! Fleet-coordinated resilience: the replicas of a service hold the line together.
//!
//! ```
//! use std::time::Duration;
//! use phalanx::{Backoff, BreakerSpec, Kind, Policy, RateLimitSpec, ResilienceModule, RetrySpec};
//!
//! # async fn charge(order: &u32) -> Result<u32, std::io::Error> { Ok(*order) }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let payments = Policy::named("payments")
//!     .rate_limit(RateLimitSpec::per_second(100).burst(200))
//!     .breaker(BreakerSpec::failure_ratio(0.5).window(Duration::from_secs(10)).break_for(Duration::from_secs(30)))
//!     .retry(RetrySpec::attempts(3).on([Kind::Infrastructure]).backoff(Backoff::exponential(Duration::from_millis(100))))
//!     .timeout(Duration::from_secs(1));
//! let module = ResilienceModule::in_memory().policy(payments).build()?; // every mistake at once, each with its path
//!
//! # let order = 7;
//! let receipt = module.run("payments", "stripe", || charge(&order)).await?;
//! # assert_eq!(receipt, 7);
//! # Ok(())
//! # }
//! ```
//!
//! Six words are all there is: a **policy** says what to do, as plain data; a **pipeline** is one policy on one route,
//! compiled; a **store** keeps the state that a fleet may share; a **context** travels with the task; a **rejection**
//! says why a policy said no; an **event** is what an observer is told.
//!
//! The stages of a policy always run in the same order, whatever order they were written in:
//! deadline → rate limit → bulkhead → breaker or throttle → retry → hedge → attempt timeout → the operation; a fallback
//! answers last.

mod backend;
#[cfg(feature = "config")]
pub mod config;
pub mod describe;
#[cfg(feature = "redis")]
mod fleet;
#[cfg(feature = "lifecycle")]
mod lifecycle_hooks;
mod locks;
mod macro_support;
mod module;
mod origin;
pub mod prelude;
pub mod standalone;
mod status_map;
#[cfg(any(feature = "otel", feature = "tracing"))]
pub mod telemetry;

pub use phalanx_core::breaker::BreakerSpec;
pub use phalanx_core::bulkhead::BulkheadSpec;
pub use phalanx_core::classify::{Class, Classify};
pub use phalanx_core::clock::Clock;
pub use phalanx_core::context::{Context, Criticality, scope};
pub use phalanx_core::decision::{Decision, Verdict};
pub use phalanx_core::error::Error;
pub use phalanx_core::event::{Event, EventKind, Observer};
pub use phalanx_core::fallback::{Fallback, Served, StaleCache};
pub use phalanx_core::hedge::HedgeSpec;
pub use phalanx_core::key::Route;
pub use phalanx_core::kind::Kind;
pub use phalanx_core::policy::validate::ConfigError;
pub use phalanx_core::policy::{OnDegraded, Policy};
pub use phalanx_core::rate_limit::RateLimitSpec;
pub use phalanx_core::rejection::{Rejection, RejectionCode, Source};
pub use phalanx_core::retry::RetrySpec;
pub use phalanx_core::retry::backoff::Backoff;
pub use phalanx_core::throttle::ThrottleSpec;
#[cfg(feature = "macros")]
pub use phalanx_macros::resilient;

pub use self::macro_support::Resilient;
pub use self::module::{Call, ModuleBuilder, Pipeline, Resilience, ResilienceModule};

/// The details of a policy: what its specs are made of, levers and overrides, whole sets of policies.
pub mod policy {
    pub use phalanx_core::breaker::{CountBy, LatencyTrip, Override, RampSpec};
    pub use phalanx_core::budget::BudgetSpec;
    pub use phalanx_core::bulkhead::{AdaptiveSpec, GradientSpec};
    pub use phalanx_core::engine::{ConfigChange, PolicySet, UnknownPolicy};
    pub use phalanx_core::kind::Kinds;
    pub use phalanx_core::levers::LeverSpec;
    pub use phalanx_core::policy::validate::Mistake;
    pub use phalanx_core::policy::{DeadlineSpec, Stage};
    pub use phalanx_core::retry::backoff::{Curve, Jitter};
}

/// Answers in the dependency's place: the marker on a degraded answer and the last good value of a key.
pub mod fallback {
    pub use phalanx_core::fallback::{Degraded, Stale};
}

/// Custom strategies that admit and settle calls between the built-in stages.
pub mod guard {
    pub use phalanx_core::guard::{CallInfo, Guard, Guards};
}

/// Where state is kept: the stores, their options, and the traits that another store implements.
pub mod store {
    pub use phalanx_core::breaker::{Admission, Sample, Ticket};
    pub use phalanx_core::clock::Time;
    pub use phalanx_core::key::StateKey;
    pub use phalanx_core::rate_limit::Take;
    pub use phalanx_core::rng::Rng;
    pub use phalanx_core::store::{
        AcquireRequest, AdmitReply, BreakerStore, Grant, LatencyDigestStore, Level, RateLimitStore, Store,
    };
    pub use phalanx_store_memory::MemoryStore;
    #[cfg(feature = "redis")]
    pub use phalanx_store_redis::{DegradedShare, RedisConnection, RedisOptions, StoreMode};

    pub use crate::backend::Backend;
    #[cfg(feature = "redis")]
    pub use crate::fleet::StateScope;
}

/// Estimators of latency and rate, usable by themselves.
pub mod estimate {
    pub use phalanx_core::estimate::*;
}

/// Life of a replica: startup in waves, drain, readiness, singleton steps, locks, tickers.
pub mod lifecycle {
    pub use phalanx_core::drain::{Drained, Gate};
    pub use phalanx_core::lock::{Acquired, Fences, LockStore};
    #[cfg(feature = "lifecycle")]
    pub use phalanx_lifecycle::*;

    pub use crate::locks::Locks;
}

/// What the sibling crates and the attribute macro need. Not covered by semantic versioning.
#[doc(hidden)]
pub mod internal {
    pub use phalanx_core as core;

    pub use crate::macro_support::{CarriesRejection, carry, repeatable};
}

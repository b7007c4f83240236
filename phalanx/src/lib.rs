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
//! deadline → rate limit → bulkhead → breaker or throttle → retry → hedge → attempt time-out → the operation; a fallback
//! answers last.

mod alone;
mod attached;
mod backend;
#[cfg(feature = "config")]
pub mod config;
mod describe;
#[cfg(feature = "redis")]
mod fleet;
#[cfg(feature = "lifecycle")]
mod life;
mod locks;
mod module;
mod origin;
mod statuses;
#[cfg(any(feature = "otel", feature = "tracing"))]
pub mod telemetry;

pub use phalanx_core::breaker::{BreakerSpec, BreakerView, Count, Forced, LatencyTrip, Phase, RampSpec, Transition};
pub use phalanx_core::budget::BudgetSpec;
pub use phalanx_core::bulkhead::{AdaptiveSpec, BulkheadSpec, BulkheadView, GradientSpec, Lowered};
pub use phalanx_core::classify::{Class, Classify};
pub use phalanx_core::clock::{Clock, Time};
pub use phalanx_core::context::{Context, Criticality, scope};
pub use phalanx_core::decision::{Decision, Verdict};
pub use phalanx_core::drain::{Drained, Gate};
pub use phalanx_core::engine::{Applied, Plan, Unknown};
pub use phalanx_core::error::Error;
pub use phalanx_core::event::{Event, Observer, What};
pub use phalanx_core::fallback::{Degraded, Fallback, Served, Stale, StaleCache};
pub use phalanx_core::guard::{CallInfo, Guard, Guards};
pub use phalanx_core::hedge::HedgeSpec;
pub use phalanx_core::key::{Route, StateKey};
pub use phalanx_core::kind::{Kind, Kinds, Outcome};
pub use phalanx_core::levers::{Force, LeverSpec};
pub use phalanx_core::pipeline::{Description, StageDescription};
pub use phalanx_core::policy::validate::{ConfigError, Mistake};
pub use phalanx_core::policy::{DeadlineSpec, OnDegraded, Policy, Stage};
pub use phalanx_core::rate_limit::RateLimitSpec;
pub use phalanx_core::rejection::{Code, Rejection, Source};
pub use phalanx_core::retry::RetrySpec;
pub use phalanx_core::retry::backoff::{Backoff, Curve, Jitter};
pub use phalanx_core::rng::Rng;
pub use phalanx_core::throttle::ThrottleSpec;
pub use phalanx_store_memory::MemoryStore;
#[cfg(feature = "redis")]
pub use phalanx_store_redis::{DegradedShare, RedisOptions, Source as RedisSource, StoreMode};

pub use self::alone::{AdaptiveThrottle, Bulkhead, CircuitBreaker, Entered, RateLimiter, Sent, Slot};
pub use self::alone::{bulkheaded, rate_limited, time_limited, with_fallback};
pub use self::attached::{Carries, Resilient};
#[doc(hidden)]
pub use self::attached::{carry as __carry, repeatable as __repeatable};
pub use self::backend::Backend;
#[cfg(feature = "config")]
pub use self::config::Config;
pub use self::describe::{LeverDescription, ModuleDescription, PolicyDescription, ValueDescription};
#[cfg(feature = "redis")]
pub use self::fleet::Scope;
pub use self::locks::Locks;
pub use self::module::{Call, ModuleBuilder, Pipeline, ResilienceModule};
pub use self::origin::Origin;

/// Life and death of a replica: start-up in waves, drain, readiness, singleton steps, tickers.
#[cfg(feature = "lifecycle")]
pub use phalanx_lifecycle as lifecycle;

#[cfg(feature = "macros")]
pub use phalanx_macros::resilient;

/// Everything below the front door: stages as algorithms, store traits, estimators.
pub use phalanx_core as base;

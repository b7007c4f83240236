//! Fleet-coordinated resilience for async Rust services.
//!
//! Phalanx puts rate limits, bulkheads, circuit breakers, adaptive throttles, retries, hedging, timeouts and fallbacks
//! around the calls that a service makes. A [`Policy`] describes them as data, a [`ResilienceModule`] runs operations
//! under policies by name, and the state behind them (token buckets, breakers, latency digests) is kept in this process
//! or shared by all replicas of the service through Redis.
//!
//! # In one process
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
//! let module = ResilienceModule::in_memory().policy(payments).build()?; // reports every validation error, each with its path
//!
//! # let order = 7;
//! let receipt = module.run("payments", "stripe", || charge(&order)).await?;
//! # assert_eq!(receipt, 7);
//! # Ok(())
//! # }
//! ```
//!
//! [`ResilienceModule::run`] takes the name of the policy, a [`Route`] (a tenant, a region, a host: breakers and buckets
//! are kept per route) and a closure that starts the operation. It returns the operation's value, or an [`Error`] that is
//! either the operation's own error or a [`Rejection`] with a [`RejectionCode`]. [`Classify`] maps errors to a [`Kind`];
//! retries and breakers decide by kind.
//!
//! # In a fleet
//!
//! With `ResilienceModule::with_redis` (feature `redis`) the replicas share state: a limit of 100 per second holds for
//! all of them together, and a breaker that opens on one replica opens on all. `build` does no I/O. A caller waits for
//! Redis at most the store budget (20 ms by default); while Redis does not answer, each replica decides from a local twin
//! of the state, and such decisions carry [`Source::Degraded`].
//!
//! ```
//! # #[cfg(not(feature = "redis"))]
//! # fn main() {}
//! # #[cfg(feature = "redis")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use phalanx::{BreakerSpec, Policy, RateLimitSpec, ResilienceModule};
//!
//! let client = redis::Client::open("redis://redis.internal")?; // or a deadpool pool, a Cluster or Sentinel client
//! let module = ResilienceModule::with_redis(client)
//!     .prefix("shop") // keys begin with `shop:`
//!     .environment("prod") // fleets of different environments never share state
//!     .policy(Policy::named("vendor").rate_limit(RateLimitSpec::per_second(50)).breaker(BreakerSpec::failure_ratio(0.5)))
//!     .build()?;
//! assert_eq!(module.replicas(), None); // nothing has been sent to Redis yet
//! # Ok(())
//! # }
//! ```
//!
//! # Stages
//!
//! The stages of a policy always run in the same order, in whatever order they were written; each is optional:
//!
//! | | stage | configured by |
//! |---|---|---|
//! | 1 | deadline: rejects a call whose caller has no time left | [`Policy::deadline`], [`Context`] |
//! | 2 | rate limit: how many calls may start per period | [`RateLimitSpec`] |
//! | 3 | bulkhead: how many calls may run at a time, with an optional queue | [`BulkheadSpec`] |
//! | 4 | breaker or throttle: stops calling, or sheds load from, a failing dependency | [`BreakerSpec`], [`ThrottleSpec`] |
//! | 5 | retry: repeats failed attempts within a budget | [`RetrySpec`], [`Backoff`] |
//! | 6 | hedge: sends a second attempt when the first is slow | [`HedgeSpec`] |
//! | 7 | timeout: cancels one attempt | [`Policy::timeout`] |
//! | | the operation | a closure |
//!
//! A [`Fallback`] answers last, whichever stage failed; it is part of a [`Call`], not of the policy. Custom
//! [guards](guard::Guard) run between the stages. Every finished call has a [`Decision`], and [`Observer`]s receive an
//! [`Event`] for each rejection, retry, breaker transition and configuration change.
//!
//! # Cargo features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `redis` | yes | `ResilienceModule::with_redis` and the Redis types in [`store`] |
//! | `lifecycle` | | [`lifecycle`]: startup in waves, drain, readiness, singleton steps, tickers |
//! | `macros` | | the attribute `#[resilient]` |
//! | `redis-tls` | | `rediss://` URLs, over rustls |
//! | `axum` | | axum routes: `/readyz`, `/livez` and, with `prometheus`, `/metrics` |
//! | `serde` | | `Serialize` and `Deserialize` for every spec |
//! | `config` | | `phalanx::config`: policies from files and environment variables; needs a format feature |
//! | `toml` | | configuration files in TOML |
//! | `yaml` | | configuration files in YAML |
//! | `json` | | configuration files in JSON |
//! | `csv` | | dependency budgets in CSV |
//! | `reload` | | reloads configuration files when they change |
//! | `schema` | | the JSON Schema of a configuration file |
//! | `tracing` | | spans and log events: `ModuleBuilder::traced` |
//! | `trace-context` | | W3C trace context in HTTP headers: `phalanx::telemetry::{inject, extract}` |
//! | `otel` | | OpenTelemetry metrics: `ModuleBuilder::metered` |
//! | `otel-bound` | | cheaper recording over OpenTelemetry's experimental bound instruments |
//! | `prometheus` | | a Prometheus page: `phalanx::telemetry::prometheus` |
//! | `chaos` | | faults injected on command: the lever [`chaos`](policy::ChaosSpec) |
//! | `http` | | [`Classify`] for `http::StatusCode` and `http::Response` |
//! | `reqwest` | | [`Classify`] for `reqwest::Error` and `reqwest::Response` |
//! | `tonic` | | [`Classify`] for `tonic::Status` |
//!
//! # Where to go next
//!
//! * [`ResilienceModule`] and [`ModuleBuilder`]: everything a service configures once.
//! * [`Pipeline`]: one policy on one route, resolved once, for hot paths. [`Call`]: cost, classifier, fallback and
//!   deadline of a single call.
//! * [`standalone`]: a rate limiter, breaker, throttle or bulkhead without a module.
//! * `#[resilient]`: policies on async functions and whole impl blocks; [`Resilient`] gives it the module.
//! * [`policy`]: what specs are made of, levers and overrides. [`describe`]: what is in force and where it came from.
//! * `phalanx-tower`: the same policies as tower layers, for servers and clients.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
#[cfg(feature = "config")]
#[cfg_attr(docsrs, doc(cfg(feature = "config")))]
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
#[cfg_attr(docsrs, doc(cfg(any(feature = "otel", feature = "tracing"))))]
pub mod telemetry;

pub use phalanx_core::breaker::BreakerSpec;
pub use phalanx_core::bulkhead::BulkheadSpec;
pub use phalanx_core::classify::{Class, Classify};
pub use phalanx_core::clock::Clock;
pub use phalanx_core::context::{Context, Criticality, Tags, scope};
pub use phalanx_core::decision::{Decision, Verdict};
pub use phalanx_core::error::Error;
pub use phalanx_core::event::{Event, EventKind, Observer};
pub use phalanx_core::fallback::{Fallback, Served, StaleCache};
pub use phalanx_core::hedge::HedgeSpec;
pub use phalanx_core::key::Route;
pub use phalanx_core::kind::Kind;
pub use phalanx_core::policy::validate::ConfigError;
pub use phalanx_core::policy::{OnDegraded, Policy};
pub use phalanx_core::rate_limit::{Consistency, RateLimitSpec};
pub use phalanx_core::rejection::{Rejection, RejectionCode, Source};
pub use phalanx_core::retry::RetrySpec;
pub use phalanx_core::retry::backoff::Backoff;
pub use phalanx_core::throttle::ThrottleSpec;
#[cfg(feature = "macros")]
#[cfg_attr(docsrs, doc(cfg(feature = "macros")))]
pub use phalanx_macros::resilient;

pub use self::macro_support::Resilient;
pub use self::module::{Call, ModuleBuilder, Pipeline, Resilience, ResilienceModule};

/// The parts of a policy: what its specs are made of, levers and overrides, and sets of policies.
///
/// A service that only builds policies with the specs at the crate root does not need this module. It is for code that
/// inspects or changes policies at runtime: [`LeverSpec`](policy::LeverSpec) for
/// [`ResilienceModule::pull`], [`PolicySet`](policy::PolicySet) for [`ResilienceModule::apply`],
/// [`Override`](policy::Override) for [`Pipeline::force`].
pub mod policy {
    pub use phalanx_core::breaker::{CountBy, LatencyTrip, Override, RampSpec};
    pub use phalanx_core::budget::BudgetSpec;
    pub use phalanx_core::bulkhead::{AdaptiveSpec, GradientSpec};
    pub use phalanx_core::chaos::{ChaosSpec, InjectedFault};
    pub use phalanx_core::engine::{ConfigChange, PolicySet, UnknownPolicy};
    pub use phalanx_core::kind::Kinds;
    pub use phalanx_core::levers::LeverSpec;
    pub use phalanx_core::policy::validate::Mistake;
    pub use phalanx_core::policy::{DeadlineSpec, Stage};
    pub use phalanx_core::rate_limit::{
        LimitCost, LimitKey, LimitSpec, Limits, MissingTag, RateOverride, RateResolver,
    };
    pub use phalanx_core::retry::backoff::{Curve, Jitter};
}

/// Markers on degraded answers, and the last good value of a key.
///
/// [`Served`] and [`Decision`] carry a [`Degraded`](fallback::Degraded) when a fallback answered;
/// [`Stale`](fallback::Stale) is the fallback that [`StaleCache::at`] returns.
pub mod fallback {
    pub use phalanx_core::fallback::{Degraded, Stale};
}

/// Custom strategies that admit and settle calls between the built-in stages.
///
/// Needed to implement a [`Guard`](guard::Guard), for example a per-tenant quota kept elsewhere.
pub mod guard {
    pub use phalanx_core::guard::{CallInfo, Guard, Guards};
}

/// Where state is kept: the memory and Redis stores, their options, and everything to write a store.
///
/// Services need it for [`MemoryStore`](store::MemoryStore) (several modules over one state, in tests) and for the
/// options of a module over Redis.
///
/// A store of your own implements [`RateLimitStore`](store::RateLimitStore), [`BreakerStore`](store::BreakerStore),
/// [`LatencyDigestStore`](store::LatencyDigestStore), [`TallyStore`](store::TallyStore), [`SlotStore`](store::SlotStore) and
/// [`Store`](store::Store), and [`LockStore`](store::LockStore) if it has locks. The state machines that decide are here too, without I/O and with the time
/// as an argument: [`Bucket`](store::Bucket), [`Breaker`](store::Breaker), [`Digest`](store::Digest),
/// [`Tally`](store::Tally) and [`Lock`](store::Lock). An
/// [`Engine`](store::Engine) runs policies over the store, and the conformance suite of `phalanx-testkit` tests it; its
/// example `own_store` is a complete one.
pub mod store {
    pub use phalanx_core::breaker::{
        Admission, Breaker, BreakerView, Override, Phase, Sample, Seen, Ticket, Transition,
    };
    pub use phalanx_core::clock::Time;
    pub use phalanx_core::engine::{Engine, EngineSpec, ObserverList};
    pub use phalanx_core::estimate::digest::Digest;
    pub use phalanx_core::key::StateKey;
    pub use phalanx_core::lock::{Acquired, Lock, LockStore, ReleaseNotifier, Unavailable, Watch};
    pub use phalanx_core::rate_limit::{Bucket, BucketPart, MAX_LIMITS, Rate, Take};
    pub use phalanx_core::rng::Rng;
    pub use phalanx_core::slots::share::SlotShare;
    pub use phalanx_core::store::{
        AcquireRequest, Addition, AdmitReply, Allowance, BreakerStore, Counts, Dues, Grant, LatencyDigestStore, Level,
        RateLimitStore, SetGrant, SetLimit, SetVerdict, SlotReply, SlotStore, StateScope, Store, TallyStore, TallyUse,
        Withdrawal,
    };
    pub use phalanx_core::table::{Entry, Retention, Table};
    pub use phalanx_core::tally::Tally;
    pub use phalanx_store_memory::MemoryStore;
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub use phalanx_store_redis::{DegradedShare, RedisConnection, RedisOptions, StoreMode};

    pub use crate::backend::Backend;
}

/// The estimators of latency and rate that the stages use, for use without a policy.
///
/// Exponentially weighted averages, streaming quantiles and mergeable latency digests.
pub mod estimate {
    pub use phalanx_core::estimate::*;
}

/// The lifecycle of a replica: startup in waves, drain, readiness, singleton steps, locks, tickers.
///
/// With the feature `lifecycle`, `Runtime` starts and stops a service around a [`ResilienceModule`] and drains its calls
/// on SIGTERM. Without it the module still has [`Gate`](lifecycle::Gate) for draining and [`Locks`](lifecycle::Locks).
pub mod lifecycle {
    pub use phalanx_core::drain::{Drained, Gate};
    pub use phalanx_core::lock::{Acquired, Fences, LockStore};
    #[cfg(feature = "lifecycle")]
    #[cfg_attr(docsrs, doc(cfg(feature = "lifecycle")))]
    pub use phalanx_lifecycle::*;

    pub use crate::locks::Locks;
}

/// What the sibling crates and the attribute macro need. Not covered by semantic versioning.
#[doc(hidden)]
pub mod internal {
    pub use phalanx_core as core;

    #[cfg(feature = "config")]
    pub use crate::config::files;
    pub use crate::macro_support::{FromRejection, flatten_rejection, repeatable};
}

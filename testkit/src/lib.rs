//! Tests for services that use [Phalanx](phalanx), and for the stores written for it.
//!
//! Everything runs in virtual time (`#[tokio::test(start_paused = true)]`, or a manual [`Clock`]) and by seeds: no test
//! sleeps, and none depends on chance.
//!
//! | to test | use |
//! |---|---|
//! | a policy against a dependency that fails, hangs, panics or is slow | [`Scripted`]: an operation that answers by a script |
//! | what happened: retries, transitions, rejections | [`Recorder`]: an observer with assertions; [`AssertDecision`] for the record of one call |
//! | outages and recoveries of Redis | [`FaultyRedis`]: a Redis in this process that fails on command |
//! | a whole fleet under faults | `simulator` (feature `simulator`): replicas in virtual time, and an oracle for every invariant |
//! | your policies under a plan of faults | `plan` (feature `plans`): fault plans as data, with evidence and plots |
//! | a store of your own | [`bed::Bed`] and [`conformance_suite!`]: one test for every line of the behaviour lists |
//! | two stores against each other | [`differential`]: random steps on the state machines of core and on any number of beds |
//! | replies on different clocks | [`replies`]: store replies with times made relative |
//! | the shipped Lua scripts, without a server | [`lua_server`]: runs them in this process on a manual clock |
//! | a real Redis, Cluster or Sentinel, TLS, a flaky network | `server` (feature `servers`): starts servers and a TCP proxy |
//!
//! [`Clock`], [`MemoryStore`] and [`Rng`] are those of `phalanx`: a clock that the test moves, a store that several modules
//! of one test share as replicas do, and seeded randomness. `ModuleBuilder::seed` seeds the jitter and shedding of a
//! module. Faults for a staging environment are not here but in `phalanx` itself (feature `chaos`): the lever
//! [`chaos`](phalanx::policy::ChaosSpec).
//!
//! # Examples
//!
//! A breaker trips and recovers, in virtual time:
//!
//! ```
//! use std::time::Duration;
//!
//! use phalanx::{BreakerSpec, Policy, RejectionCode, ResilienceModule};
//! use phalanx_testkit::{Recorder, Scripted};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), phalanx::ConfigError> {
//! let recorder = Recorder::new();
//! let breaker = BreakerSpec::consecutive_failures(3).break_for(Duration::from_secs(30));
//! let policy = Policy::named("payments").breaker(breaker);
//! let module = ResilienceModule::in_memory().policy(policy).observer(recorder.clone()).build()?;
//!
//! let stripe = Scripted::new().fail(3).then_ok("paid");
//! for _ in 0..4 {
//!     let _ = module.run("payments", "stripe", || stripe.call()).await;
//! }
//! recorder.assert_rejected(RejectionCode::CircuitOpen);
//!
//! tokio::time::advance(Duration::from_secs(30)).await;
//! assert_eq!(module.run("payments", "stripe", || stripe.call()).await, Ok("paid"));
//! recorder.assert_transitions(["closed -> open", "open -> half_open", "half_open -> closed"]);
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]
// All of this is test code: a failed expectation panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod bed;
pub mod conformance;
pub mod differential;
mod faulty_redis;
pub mod lua_server;
#[cfg(feature = "plans")]
pub mod plan;
mod recorder;
#[cfg_attr(not(feature = "simulator"), allow(dead_code))] // the simulator uses more of it
mod redis_model;
pub mod replies;
mod script;
#[cfg(feature = "servers")]
#[cfg_attr(docsrs, doc(cfg(feature = "servers")))]
pub mod server;
#[cfg(feature = "simulator")]
pub mod simulator;

pub use phalanx::Clock;
pub use phalanx::store::{MemoryStore, Rng};

pub use self::faulty_redis::FaultyRedis;
pub use self::recorder::{AssertDecision, Recorder};
pub use self::script::Scripted;

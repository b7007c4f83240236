//! Tests for users of Phalanx, and for the stores they write.
//!
//! * [`FaultyRedis`]: a Redis in this process that fails on command.
//! * [`bed`]: test beds. Each holds a store, several replicas of it and a clock that the test moves.
//! * [`conformance`]: one case per line of the `# Behaviour` lists in `core/src/{store,lock}.rs`, written against a bed;
//!   [`conformance_suite!`] generates the tests.
//! * [`differential`]: applies random operation sequences to the state machines of core and to any number of beds, which
//!   must return equal replies.
//! * [`replies`]: store replies with times made relative, so that replies on different clocks can be compared.
//! * [`lua_server`]: an in-process server that runs the shipped Lua scripts on a manual clock.
//! * `simulator` (feature `simulator`): a fleet in virtual time, with faults, and an oracle for every invariant.
//! * `server` (feature `servers`): real Redis servers (plain, Cluster, Sentinel, TLS, ACL) and a TCP proxy.
//!
//! To test a new store, implement [`bed::Bed`] for it.

// All of this is test code: a failed expectation panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod bed;
pub mod conformance;
pub mod differential;
mod faulty_redis;
pub mod lua_server;
#[cfg_attr(not(feature = "simulator"), allow(dead_code))] // the simulator uses more of it
mod redis_model;
pub mod replies;
#[cfg(feature = "servers")]
pub mod server;
#[cfg(feature = "simulator")]
pub mod simulator;

pub use self::faulty_redis::FaultyRedis;

//! Tests for users of Phalanx, and for the stores they write.
//!
//! * [`bed`]: test beds. Each holds a store, several replicas of it and a clock that the test moves.
//! * [`conformance`]: one case per line of the `# Behaviour` lists in `core/src/{store,lock}.rs`, written against a bed;
//!   [`conformance_suite!`] generates the tests.
//! * [`differential`]: applies random operation sequences to the state machines of core and to any number of beds, which
//!   must return equal replies.
//! * [`replies`]: store replies with times made relative, so that replies on different clocks can be compared.
//! * [`lua_server`]: an in-process server that runs the shipped Lua scripts on a manual clock.
//! * `plan` (feature `plans`): fault plans as data, played against a policy file in virtual time, with evidence.
//! * `server` (feature `servers`): real Redis servers (plain, Cluster, Sentinel, TLS, ACL) and a TCP proxy.
//!
//! To test a new store, implement [`bed::Bed`] for it.

// All of this is test code: a failed expectation panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod bed;
pub mod conformance;
pub mod differential;
pub mod lua_server;
#[cfg(feature = "plans")]
pub mod plan;
pub mod replies;
#[cfg(feature = "servers")]
pub mod server;

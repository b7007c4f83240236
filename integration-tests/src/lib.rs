//! Shared parts of the integration tests: test beds, the conformance suite, servers and fault injection.
//!
//! * [`bed`]: test beds. Each holds a store, several replicas of it and a clock that the test moves.
//! * [`conformance`]: one case per line of the `# Behaviour` lists in `core/src/{store,lock}.rs`, written against a bed;
//!   [`conformance_suite!`] generates the tests.
//! * [`differential`]: applies random operation sequences to the state machines of core and to any number of beds, which
//!   must return equal replies.
//! * [`replies`]: store replies with times made relative, so that replies on different clocks can be compared.
//! * [`server`]: real Redis servers (plain, cluster, Sentinel, TLS, ACL) and a TCP proxy for fault injection.
//! * [`lua_server`]: an in-process server that runs the shipped Lua scripts on a manual clock.
//! * [`replica`]: replicas of a fleet under load, in this process or in child processes.
//! * [`lifecycle_process`]: child processes that start, hold a lock, serve HTTP and drain like a service.
//!
//! To test a new store, implement [`bed::Bed`] for it.

// All of this is test code: a failed expectation panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod bed;
pub mod conformance;
pub mod differential;
pub mod lifecycle_process;
pub mod lua_server;
#[cfg(doctest)]
mod pages;
pub mod replica;
pub mod replies;
pub mod server;

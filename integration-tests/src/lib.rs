//! Shared parts of the integration tests. What users can use as well is in `phalanx-testkit`.
//!
//! * [`replica`]: replicas of a fleet under load, in this process or in child processes.
//! * [`mutants`]: mutation testing, `make mutants`.
//! * [`lifecycle_process`]: child processes that start, hold a lock, serve HTTP and drain like a service.

// All of this is test code: a failed expectation panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod lifecycle_process;
pub mod mutants;
#[cfg(doctest)]
mod pages;
pub mod replica;

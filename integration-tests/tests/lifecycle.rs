//! The lifecycle of replica processes over real signals and a real Redis: start, locks, drain and exit.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed expectation panics, in helpers too

#[path = "lifecycle/drain.rs"]
mod drain;
#[path = "lifecycle/harness.rs"]
mod harness;
#[path = "lifecycle/lock.rs"]
mod lock;
#[path = "lifecycle/singleton.rs"]
mod singleton;

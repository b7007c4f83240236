//! Life and death of replicas as processes: the bars of the lifecycle, each over real signals and a real Redis.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a panic is how a test says no, in its helpers too

#[path = "lifecycle/drain.rs"]
mod drain;
#[path = "lifecycle/kit.rs"]
mod kit;
#[path = "lifecycle/lock.rs"]
mod lock;
#[path = "lifecycle/singleton.rs"]
mod singleton;

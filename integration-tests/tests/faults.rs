//! What goes wrong between a replica and Redis, fault by fault: callers are answered meanwhile, the outage is told once,
//! and Redis decides again afterwards.

#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how a test says no, in its helpers too

#[path = "faults/absent.rs"]
mod absent;
#[path = "faults/connections.rs"]
mod connections;
#[path = "faults/drops.rs"]
mod drops;
#[path = "faults/handover.rs"]
mod handover;
#[path = "faults/keys.rs"]
mod keys;
#[path = "faults/kit.rs"]
mod kit;
#[path = "faults/latency.rs"]
mod latency;
#[path = "faults/membership.rs"]
mod membership;
#[path = "faults/rejections.rs"]
mod rejections;
#[path = "faults/runtimes.rs"]
mod runtimes;
#[path = "faults/slowness.rs"]
mod slowness;
#[path = "faults/state.rs"]
mod state;

//! Faults between a replica and Redis: during each of them callers get decisions, one outage is emitted, and Redis decides
//! again afterwards.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation panics, in helpers too

#[path = "faults/connections.rs"]
mod connections;
#[path = "faults/degraded_and_back.rs"]
mod degraded_and_back;
#[path = "faults/dropped_callers.rs"]
mod dropped_callers;
#[path = "faults/harness.rs"]
mod harness;
#[path = "faults/keys.rs"]
mod keys;
#[path = "faults/lost_state.rs"]
mod lost_state;
#[path = "faults/membership.rs"]
mod membership;
#[path = "faults/missing_redis.rs"]
mod missing_redis;
#[path = "faults/runtimes.rs"]
mod runtimes;
#[path = "faults/server_errors.rs"]
mod server_errors;
#[path = "faults/shared_latency.rs"]
mod shared_latency;
#[path = "faults/slow_redis.rs"]
mod slow_redis;

//! A fleet of processes over a real Redis: limits hold for all replicas together and state is shared, while processes and
//! servers are stopped and killed.
//!
//! These tests measure real time, so they run one after the other ([`harness::exclusive`]).

#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation panics, in helpers too

#[path = "fleet/harness.rs"]
mod harness;
#[path = "fleet/hung_redis.rs"]
mod hung_redis;
#[path = "fleet/membership.rs"]
mod membership;
#[path = "fleet/probes.rs"]
mod probes;
#[path = "fleet/rate_limit.rs"]
mod rate_limit;
#[path = "fleet/restart.rs"]
mod restart;
#[path = "fleet/shared_latency.rs"]
mod shared_latency;
#[path = "fleet/trips.rs"]
mod trips;

//! The fleet on a Redis Cluster of three masters: key placement, one failing shard, and pushed trips.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

#[path = "cluster/harness.rs"]
mod harness;
#[path = "cluster/hung_shard.rs"]
mod hung_shard;
#[path = "cluster/keys.rs"]
mod keys;
#[path = "cluster/operations.rs"]
mod operations;
#[path = "cluster/push.rs"]
mod push;
#[path = "cluster/replaced_masters.rs"]
mod replaced_masters;

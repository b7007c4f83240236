//! The fleet on a Redis Cluster of three masters: where keys lie, what one sick shard costs, how trips travel.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

#[path = "cluster/hung.rs"]
mod hung;
#[path = "cluster/keys.rs"]
mod keys;
#[path = "cluster/kit.rs"]
mod kit;
#[path = "cluster/operations.rs"]
mod operations;
#[path = "cluster/push.rs"]
mod push;
#[path = "cluster/replaced.rs"]
mod replaced;

//! The fleet on a Redis Cluster of three masters: key placement, one failing shard, cut connections, and pushed trips.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

#[path = "cluster/cut_connection.rs"]
mod cut_connection;
#[path = "cluster/harness.rs"]
mod harness;
#[path = "cluster/hung_shard.rs"]
mod hung_shard;
#[path = "cluster/keys.rs"]
mod keys;
#[path = "cluster/operations.rs"]
mod operations;
#[path = "cluster/plain_client.rs"]
mod plain_client;
#[path = "cluster/push.rs"]
mod push;
#[path = "cluster/replaced_masters.rs"]
mod replaced_masters;

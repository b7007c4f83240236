//! The in-process model of Redis against real servers: the same histories, played over both through the store's own
//! connection code, and compared step by step. A feature of the model counts once it is played here.
//!
//! Scripts run on a virtual clock, so that their replies are equal to the microsecond. Where the two differ, the model is
//! wrong.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

#[path = "model_differential/cluster.rs"]
mod cluster;
#[path = "cluster/harness.rs"]
mod events;
#[path = "model_differential/harness.rs"]
mod harness;
#[path = "model_differential/one_server.rs"]
mod one_server;
#[path = "model_differential/promotion.rs"]
mod promotion;
#[path = "model_differential/pushes.rs"]
mod pushes;
#[path = "model_differential/scripts.rs"]
mod scripts;
#[path = "model_differential/stores.rs"]
mod stores;

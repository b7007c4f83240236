//! A fleet of real processes over a real Redis: what is declared once holds for all replicas together, and what one of
//! them learns, all know; while processes and servers are stopped and killed.
//!
//! Real time is the subject here, so these tests run one after the other ([`kit::quiet`]).

#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how a test says no, in its helpers too

#[path = "fleet/hang.rs"]
mod hang;
#[path = "fleet/kit.rs"]
mod kit;
#[path = "fleet/membership.rs"]
mod membership;
#[path = "fleet/probes.rs"]
mod probes;
#[path = "fleet/rate.rs"]
mod rate;
#[path = "fleet/restart.rs"]
mod restart;
#[path = "fleet/signal.rs"]
mod signal;
#[path = "fleet/trips.rs"]
mod trips;

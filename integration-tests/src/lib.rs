//! What every store must do, and where it is judged.
//!
//! * [`bed`]: a fleet in miniature. A store, its replicas and a clock that a test moves.
//! * [`answer`]: what a store's answer means, whenever it comes and on whichever clock.
//! * [`conformance`]: one case for each line of the `# Behaviour` lists in `core/src/{store,lock}.rs`, written against a
//!   bed; [`conformance_suite!`] makes tests of them all.
//! * [`differential`]: random histories played on any number of beds and on the bare machines of core, which must
//!   agree.
//! * [`server`]: real servers, and ways to hurt them. [`replica`]: replicas of a fleet, here or in processes of their own.
//! * [`life`]: processes that start, hold a lock, serve and drain as a service does.
//!
//! A new store brings a bed, and is judged by what is here already.

// All of it is test code: a panic is how a case says no.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod answer;
pub mod bed;
pub mod conformance;
pub mod differential;
pub mod life;
pub mod lua_server;
#[cfg(doctest)]
mod pages;
pub mod replica;
pub mod server;

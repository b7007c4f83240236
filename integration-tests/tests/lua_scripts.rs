//! The shipped Lua scripts, run in this process on a manual clock, compared with the state machines of core.
//!
//! Random operations and random clock steps (forward, slightly back, far back, leaps) must give equal replies, to the
//! microsecond; corrupt keys must be repaired; rejections and reads must write nothing.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation panics, in helpers too

#[path = "lua_scripts/breaker.rs"]
mod breaker;
#[path = "lua_scripts/breaker_client.rs"]
mod breaker_client;
#[path = "lua_scripts/breaker_edges.rs"]
mod breaker_edges;
#[path = "lua_scripts/breaker_evidence.rs"]
mod breaker_evidence;
#[path = "lua_scripts/breaker_override.rs"]
mod breaker_override;
#[path = "lua_scripts/breaker_recovery.rs"]
mod breaker_recovery;
#[path = "lua_scripts/breaker_text.rs"]
mod breaker_text;
#[path = "lua_scripts/breaker_text_limits.rs"]
mod breaker_text_limits;
#[path = "lua_scripts/breaker_weighing.rs"]
mod breaker_weighing;
#[path = "lua_scripts/cells.rs"]
mod cells;
#[path = "lua_scripts/digest.rs"]
mod digest;
#[path = "lua_scripts/foreign_arguments.rs"]
mod foreign_arguments;
#[path = "lua_scripts/harness.rs"]
mod harness;
#[path = "lua_scripts/idempotency.rs"]
mod idempotency;
#[path = "lua_scripts/membership_and_locks.rs"]
mod membership_and_locks;
#[path = "lua_scripts/next_release.rs"]
mod next_release;
#[path = "lua_scripts/rate_limit.rs"]
mod rate_limit;
#[path = "lua_scripts/rate_limit_all.rs"]
mod rate_limit_all;
#[path = "lua_scripts/rate_limit_charge.rs"]
mod rate_limit_charge;
#[path = "lua_scripts/rate_limit_edges.rs"]
mod rate_limit_edges;
#[path = "lua_scripts/rate_limit_lease.rs"]
mod rate_limit_lease;
#[path = "lua_scripts/rate_limit_record.rs"]
mod rate_limit_record;
#[path = "lua_scripts/rate_limit_recovery.rs"]
mod rate_limit_recovery;
#[path = "lua_scripts/rate_limit_refill.rs"]
mod rate_limit_refill;
#[path = "lua_scripts/slots.rs"]
mod slots;
#[path = "lua_scripts/tally.rs"]
mod tally;

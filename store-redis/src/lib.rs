//! The Redis store of Phalanx: breakers, buckets and digests shared by all replicas.
//!
//! ```text
//!    replica A                                 Redis                                  replica B
//!   ┌──────────────────────────┐                                       ┌──────────────────────────┐
//!   │ circuit  front ── admit, │  outcomes in batches, bad news at once│                          │
//!   │          record: local ──┼──────────► breaker_sync.lua           │                          │
//!   │                          │               │ publish ─────────────►│ front: open              │
//!   │          half-open ──────┼──────────► breaker_admit.lua  leases  │                          │
//!   │ bucket   callers ─ batch─┼─ flight ─► rate_limit_acquire.lua ◄───┼─ flight ─ batch ─ callers│
//!   │ digest   own ── news ────┼──────────► digest_flush.lua, _read ◄──┼── news ── own            │
//!   │                          │                                       │                          │
//!   │ latch ── down? the twin decides: memory store, own share         │                          │
//!   │ keeper ── dials, probes, rounds, listens, heartbeat              │                          │
//!   └──────────────────────────┘                                       └──────────────────────────┘
//! ```
//!
//! What it promises:
//!
//! * a healthy circuit costs a caller no round trip; an exact rate limit costs one, shared by all callers of the key
//!   who arrived during the previous one;
//! * a caller waits for Redis at most `store_budget`; a Redis that is slow, gone or wrong costs a handful of such waits,
//!   then none: the latch falls, the twin decides, one event says so, and one when it is over;
//! * locks are the exception: what Redis did not say in time is not held;
//! * all state changes are Lua scripts on the server's clock; no script is repeated that may have run.

mod batch;
mod bucket;
mod circuit;
mod connection;
mod digest;
mod failure;
mod fleet;
mod idempotency;
mod invocation;
mod keeper;
mod keys;
mod lane;
mod latch;
mod locks;
mod options;
mod source;
mod store;
mod wire;

pub use self::bucket::Bucket;
pub use self::circuit::Circuit;
pub use self::digest::Digest;
pub use self::failure::Failure;
pub use self::idempotency::{Claim, RedisIdempotency};
pub use self::invocation::Invocation;
pub use self::lane::{Replied, Wire};
pub use self::locks::RedisLocks;
pub use self::options::{DegradedShare, RedisOptions};
pub use self::source::RedisConnection;
pub use self::store::{RedisStore, StoreBuilder, StoreMode};

//! The Redis store of Phalanx: breakers, token buckets, latency digests, tallies and slots shared by
//! all replicas.
//!
//! * A healthy breaker costs a caller no round trip. An exact rate limit costs one, shared with all callers of the
//!   key that arrived during the previous one; a leased one costs none.
//! * A caller waits for Redis at most `store_budget`. If Redis is slow, unreachable or cannot serve, a few calls wait
//!   that long; then the latch trips and the twin decides in this process. One event is emitted when it trips, and
//!   one when Redis decides again.
//! * Locks and idempotency keys fail closed: without a reply in time, nothing is held.
//! * All state changes are Lua scripts (`phalanx-lua`) on the server's clock. A script that may have run is never
//!   retried, except by the client of deadpool's Cluster pool.
//!
//! # Where to find what
//!
//! ```text
//! store.rs             RedisStore, StoreBuilder; store/inner.rs: what all cells share
//! bucket.rs            the cell of a rate limit     ─┐
//! breaker.rs           the cell of a breaker         ├─ one cell per key, which also decides during outages
//! digest.rs            the cell of a latency digest  │
//! tally.rs             the cell of a tally           │
//! slots.rs             the cell of slots            ─┘
//! batch.rs             callers of one key that share a round trip
//! dispatcher.rs        round trips to one server, shared by all cells; latch.rs: whether it is asked at all
//! wire.rs              the connection in use; connection.rs, cluster_connection.rs, redis_connection.rs, invocation.rs, keys.rs
//! background.rs        one task per store: connect, health, sync_loop, listen, changes, leases, slots
//! locks.rs, idempotency.rs   one call per operation, no cells
//! ```
//!
//! # An exact limit through Redis
//!
//! ```text
//!   caller        store.rs              RateLimitStore::acquire
//!     │
//!     ▼
//!   cell          bucket.rs             acquire_now: a leased bucket grants permits of its block (bucket/lease.rs); with
//!     │                                  the latch down the twin grants (bucket/twin.rs); an exhausted bucket rejects
//!     │                                  (bucket/exhausted.rs); else acquire
//!     │
//!     ▼
//!   batch         batch.rs              PendingRequest joins the open batch of the key
//!     │
//!     ▼
//!   dispatcher    dispatcher.rs         enqueue; with nothing queued or in flight: try_inline, in the caller's task
//!     │           dispatcher/round_trip.rs    RoundTrip calls fill on every queued cell
//!     │
//!     │ (1)       bucket.rs             fill: the batch becomes one call, in groups (bucket/groups.rs)
//!     ▼
//!   wire          wire.rs, connection.rs      one pipeline of EVALSHA, one timer
//!     │
//!     ▼
//!   Redis         rate_limit_acquire.lua      grants the first k callers of each group
//!     │
//!     │ (1)       bucket.rs             complete_batch: one Grant per caller; without a reply the twin grants
//!     ▼
//!   caller        batch.rs (2)          PendingRequest resolves; a dropped caller's permits are refunded
//!
//!   (1) The cell is entered again: only when a round trip starts is it known which callers share it, and only the cell
//!       can decode its reply.
//!   (2) The same future as above, polled again.
//! ```
//!
//! # A trip pushed to another replica
//!
//! ```text
//!   replica A
//!     call fails  breaker.rs            SharedBreaker::record: the fast path counts only successes
//!       │
//!       ▼
//!     queue       breaker/outbound.rs   the failure is urgent, so it does not wait for the sync loop
//!       │
//!       ▼
//!     call        breaker/outbound.rs   enqueue, then fill: one call with all pending outcomes
//!       │                               (dispatcher.rs and wire.rs as above)
//!       ▼
//!   Redis         breaker_sync.lua      counts, trips, PUBLISHes the new state
//!       │
//!       ├──► replica A   breaker/codec.rs, breaker/inbound.rs    the reply: apply, emit the transition
//!       ▼
//!   replica B
//!     push        background/listen.rs  receives the message
//!       │
//!       ▼
//!     decode      breaker/codec.rs      decode_push
//!       │
//!       ▼
//!     apply       breaker/inbound.rs    stores the snapshot, emits the transition, sets the fast path to open
//!       │
//!       ▼
//!     next call   breaker.rs            admit_now rejects from the fast path, without a round trip
//!
//!   Before a breaker of several replicas trips, Redis asks all of them for what they know (breaker/alone.rs); their answers are
//!   calls of breaker_sync.lua too. A lost push is noticed by its number (background/changes.rs).
//!   breaker.rs and breaker/codec.rs appear twice because two replicas run them.
//! ```

mod background;
mod batch;
mod breaker;
mod bucket;
mod cluster_connection;
mod connection;
mod digest;
mod dispatcher;
mod failure;
mod idempotency;
#[doc(hidden)] // for the fuzz targets
pub mod internal;
mod invocation;
mod keys;
mod latch;
mod locks;
mod options;
mod push_health;
mod redis_connection;
mod slots;
mod store;
mod tally;
#[doc(hidden)] // for the in-process Redis of `phalanx-testkit`
pub mod transport;
mod wire;

pub use self::breaker::SharedBreaker;
pub use self::bucket::{LeasedPermits, SharedBucket, SharedSet};
pub use self::digest::SharedDigest;
pub use self::dispatcher::{ScriptResult, Wire};
pub use self::failure::Failure;
pub use self::idempotency::{Claim, RedisIdempotency};
pub use self::invocation::Invocation;
#[doc(hidden)]
pub use self::latch::DegradedDecisions;
pub use self::locks::RedisLocks;
pub use self::options::{DegradedShare, RedisOptions};
pub use self::redis_connection::RedisConnection;
pub use self::slots::SharedSlots;
pub use self::store::{RedisStore, StoreBuilder, StoreMode};
pub use self::tally::SharedTally;

/// Compiles the code in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

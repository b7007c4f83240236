//! The store of one process: every key's machine in a bounded table.
//!
//! It serves alone behind `ResilienceModule::in_memory()`, and it is the twin that answers when a shared store is
//! away. Decisions are the machines' of `phalanx-core`; this crate adds tables and threads:
//!
//! * a **bucket** is one word and one compare-and-swap;
//! * a **circuit** in its two common states, closed and open, answers from one atomic word, and successes are summed
//!   per thread and told to the machine in batches ([`BreakerCell`]), so that threads on one key do not queue;
//! * a **digest** is lock-free by itself.
//!
//! Tables never forget an open circuit or a key in use for the sake of an idle one. They hold their capacity, and beyond
//! it only what somebody is using.

mod breaker;
mod bucket;
mod locks;

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, BreakerView, Override, Phase, Sample, Ticket, Transition};
use phalanx_core::clock::{Clock, Time};
use phalanx_core::estimate::digest::Digest;
use phalanx_core::key::StateKey;
use phalanx_core::rate_limit::RateLimitSpec;
use phalanx_core::rejection::Source;
use phalanx_core::rng::Rng;
use phalanx_core::store::{
    AcquireRequest, AdmitReply, BreakerStore, Grant, LatencyDigestStore, Level, RateLimitStore, Store,
};
use phalanx_core::table::{Entry, Retention, Table};

pub use self::breaker::BreakerCell;
pub use self::bucket::BucketCell;

pub use self::locks::MemoryLocks;

/// Keys a store holds of each kind unless told otherwise.
pub const DEFAULT_CAPACITY: usize = 10_000;

/// The store. Cheap to clone; clones are the same store.
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<Tables>);

#[derive(Debug)]
struct Tables {
    clock: Clock,
    rng: Rng,
    buckets: Table<BucketCell>,
    breakers: Table<BreakerCell>,
    digests: Table<DigestCell>,
}

/// A digest, and the clock by which its window slides.
#[derive(Debug)]
pub struct DigestCell {
    clock: Clock,
    digest: Digest,
}

impl Entry for DigestCell {
    fn retention(&self) -> Retention {
        if self.digest.count(self.clock.now()) == 0 { Retention::Disposable } else { Retention::Relearnable }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Clock::detect())
    }
}

impl MemoryStore {
    /// A store on this clock, with the default capacity.
    pub fn new(clock: Clock) -> Self {
        Self::with_capacity(clock, DEFAULT_CAPACITY)
    }

    /// A store that holds so many keys of each kind.
    pub fn with_capacity(clock: Clock, capacity: usize) -> Self {
        Self::seeded(clock, capacity, Rng::from_entropy())
    }

    /// A store whose chance (the jitter of breaks) is seeded.
    pub fn seeded(clock: Clock, capacity: usize, rng: Rng) -> Self {
        Self(Arc::new(Tables {
            clock,
            rng,
            buckets: Table::new(capacity),
            breakers: Table::new(capacity),
            digests: Table::new(capacity),
        }))
    }
}

impl Store for MemoryStore {
    fn clock(&self) -> &Clock {
        &self.0.clock
    }
}

impl RateLimitStore for MemoryStore {
    type Bucket = BucketCell;

    fn bucket(&self, key: &StateKey, spec: &RateLimitSpec) -> Arc<BucketCell> {
        let make = || BucketCell::new(self.0.clock.clone(), spec);
        let cell = self.0.buckets.find_or_add(key, make);
        cell.retune(spec);
        cell
    }

    #[inline]
    fn acquire_now(&self, bucket: &BucketCell, now: Time, ask: AcquireRequest) -> Option<Grant> {
        Some(bucket.acquire(now, ask))
    }

    async fn acquire(&self, bucket: &BucketCell, now: Time, ask: AcquireRequest) -> Grant {
        bucket.acquire(now, ask)
    }

    #[inline]
    fn refund(&self, bucket: &BucketCell, cost: u32, due: Time, _source: Source) {
        bucket.refund(cost, due);
    }

    async fn peek(&self, bucket: &BucketCell, now: Time) -> Level {
        bucket.peek(now)
    }

    fn cached_level(&self, bucket: &BucketCell, now: Time) -> Option<Level> {
        Some(bucket.peek(now))
    }
}

impl BreakerStore for MemoryStore {
    type Breaker = BreakerCell;

    fn breaker(&self, key: &StateKey, spec: &BreakerSpec) -> Arc<BreakerCell> {
        let make = || BreakerCell::new(self.0.clock.clone(), spec, self.0.rng.fork());
        let cell = self.0.breakers.find_or_add(key, make);
        cell.retune(spec);
        cell
    }

    #[inline]
    fn admit_now(&self, breaker: &BreakerCell, now: Time) -> Option<AdmitReply> {
        breaker.admit_now(now)
    }

    async fn admit(&self, breaker: &BreakerCell, now: Time) -> (AdmitReply, Option<Transition>) {
        breaker.admit(now)
    }

    #[inline]
    fn record(&self, breaker: &BreakerCell, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        breaker.record(now, ticket, sample)
    }

    fn retention(&self, breaker: &BreakerCell) -> Retention {
        breaker.retention()
    }

    fn observe_quantile(&self, breaker: &BreakerCell, now: Time, value: Option<Duration>) -> Option<Transition> {
        breaker.observe_quantile(now, value)
    }

    async fn force(&self, breaker: &BreakerCell, overridden: Option<Override>) {
        breaker.force(overridden);
    }

    async fn reset(&self, breaker: &BreakerCell, now: Time) -> Option<Transition> {
        breaker.reset(now)
    }

    async fn inspect(&self, breaker: &BreakerCell, now: Time) -> BreakerView {
        breaker.inspect(now)
    }

    fn cached_phase(&self, breaker: &BreakerCell) -> (Phase, Option<Override>) {
        breaker.glance()
    }
}

impl LatencyDigestStore for MemoryStore {
    type Digest = DigestCell;

    fn digest(&self, key: &StateKey, window: Duration) -> Arc<DigestCell> {
        let make = || DigestCell { clock: self.0.clock.clone(), digest: Digest::new(window) };
        let cell = self.0.digests.find_or_add(key, make);
        cell.digest.retune(window);
        cell
    }

    #[inline]
    fn observe(&self, cell: &DigestCell, now: Time, latency: Duration) {
        cell.digest.observe(now, latency);
    }

    fn quantile_since(&self, cell: &DigestCell, now: Time, since: Time, quantile: f64) -> Option<Duration> {
        cell.digest.quantile_since(now, since, quantile)
    }
}

//! The in-memory store of Phalanx: the state of every key in bounded tables of one process.
//!
//! It is the store behind `ResilienceModule::in_memory()`, and the twin that decides while Redis is away. The decisions
//! are those of the state machines in `phalanx-core`; this crate makes them safe and fast to share between threads:
//!
//! * a **bucket** is one word, changed by compare-and-swap ([`BucketCell`]);
//! * a **breaker** that is closed or open answers from one atomic word, and successes are counted by thread and recorded
//!   in batches ([`BreakerCell`]), so that threads on one key do not contend;
//! * a **digest** is lock-free by itself;
//! * a **tally** is behind a lock: policies ask it after failures only, or for an adaptive throttle ([`TallyCell`]);
//! * the **slots** of a key are one word, changed by compare-and-swap ([`SlotCell`]).
//!
//! A table removes idle keys to make room for new ones, but never a key in use, an open circuit or a bucket that is not
//! full (`phalanx_core::table`).

mod breaker;
mod bucket;
mod locks;
mod slots;
mod tally;

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
    AcquireRequest, Addition, AdmitReply, Allowance, BreakerStore, Counts, Dues, Grant, LatencyDigestStore, Level,
    RateLimitStore, SetGrant, SetLimit, SlotReply, SlotStore, Store, TallyStore, TallyUse, Withdrawal,
};
use phalanx_core::table::{Entry, Retention, Table};

pub use self::breaker::BreakerCell;
pub use self::bucket::{BucketCell, BucketSet};
pub use self::locks::MemoryLocks;
pub use self::slots::SlotCell;
pub use self::tally::TallyCell;

/// The default number of keys of each kind that a store holds.
pub const DEFAULT_CAPACITY: usize = 10_000;

/// A store that keeps breakers, buckets, digests, tallies and slots in this process. Clones share the same state.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx::store::{AcquireRequest, MemoryStore, RateLimitStore, StateKey, Store, Take};
/// use phalanx::{Clock, RateLimitSpec};
///
/// let store = MemoryStore::new(Clock::manual());
/// let bucket = store.bucket(&StateKey::new("vendor", "eu"), &RateLimitSpec::per_second(1));
/// let request = AcquireRequest { cost: 1, max_wait: Duration::ZERO };
/// let take = || store.acquire_now(&bucket, store.clock().now(), request).map(|grant| grant.take);
/// assert_eq!(take(), Some(Take::Granted { wait: Duration::ZERO }));
/// assert!(matches!(take(), Some(Take::Rejected { .. })), "one permit a second");
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<Tables>);

#[derive(Debug)]
struct Tables {
    clock: Clock,
    rng: Rng,
    buckets: Table<BucketCell>,
    breakers: Table<BreakerCell>,
    digests: Table<DigestCell>,
    /// One for each [`TallyUse`].
    tallies: [Table<TallyCell>; 3],
    slots: Table<SlotCell>,
}

/// The digest of one key, and the clock of its window.
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
    /// Creates a store on this clock, with the default capacity.
    pub fn new(clock: Clock) -> Self {
        Self::with_capacity(clock, DEFAULT_CAPACITY)
    }

    /// Creates a store that holds at most `capacity` keys of each kind.
    pub fn with_capacity(clock: Clock, capacity: usize) -> Self {
        Self::seeded(clock, capacity, Rng::from_entropy())
    }

    /// Creates a store whose random numbers (the jitter of breaks) come from `rng`.
    pub fn seeded(clock: Clock, capacity: usize, rng: Rng) -> Self {
        Self(Arc::new(Tables {
            clock,
            rng,
            buckets: Table::new(capacity),
            breakers: Table::new(capacity),
            digests: Table::new(capacity),
            tallies: std::array::from_fn(|_| Table::new(capacity)),
            slots: Table::new(capacity),
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
    type LimitSet = BucketSet;

    fn bucket(&self, key: &StateKey, spec: &RateLimitSpec) -> Arc<BucketCell> {
        let make = || BucketCell::new(self.0.clock.clone(), spec);
        let cell = self.0.buckets.find_or_add(key, make);
        cell.retune(spec);
        cell
    }

    #[inline]
    fn acquire_now(&self, bucket: &BucketCell, now: Time, request: AcquireRequest) -> Option<Grant> {
        Some(bucket.acquire(now, request))
    }

    async fn acquire(&self, bucket: &BucketCell, now: Time, request: AcquireRequest) -> Grant {
        bucket.acquire(now, request)
    }

    #[inline]
    fn refund(&self, bucket: &BucketCell, cost: u32, due: Time, _source: Source) {
        bucket.refund(cost, due);
    }

    fn charge(&self, bucket: &BucketCell, permits: u32) {
        bucket.charge(permits);
    }

    fn discharge(&self, bucket: &BucketCell, permits: u32) {
        bucket.refund(permits, self.0.clock.now());
    }

    fn limit_set(&self, limits: Vec<SetLimit<BucketCell>>) -> Arc<BucketSet> {
        Arc::new(BucketSet::new(limits))
    }

    #[inline]
    fn acquire_all_now(&self, set: &BucketSet, now: Time, request: AcquireRequest) -> Option<SetGrant> {
        Some(set.acquire(now, request))
    }

    async fn acquire_all(&self, set: &Arc<BucketSet>, now: Time, request: AcquireRequest) -> SetGrant {
        set.acquire(now, request)
    }

    fn refund_all(&self, set: &BucketSet, cost: u32, dues: &Dues, _source: Source) {
        set.refund(cost, dues);
    }

    async fn peek(&self, bucket: &BucketCell, now: Time) -> Level {
        bucket.peek(now)
    }

    fn cached_level(&self, bucket: &BucketCell, now: Time) -> Option<Level> {
        Some(bucket.peek(now))
    }

    fn bucket_retention(&self, bucket: &BucketCell) -> Retention {
        bucket.retention()
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

    fn breaker_retention(&self, breaker: &BreakerCell) -> Retention {
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

impl TallyStore for MemoryStore {
    type Tally = TallyCell;

    fn tally(&self, key: &StateKey, of: TallyUse, window: Duration) -> Arc<TallyCell> {
        let make = || TallyCell::new(self.0.clock.clone(), window);
        let cell = self.0.tallies[of as usize].find_or_add(key, make);
        cell.retune(window);
        cell
    }

    fn add(&self, tally: &TallyCell, now: Time, addition: Addition) {
        tally.add(now, addition);
    }

    fn sum(&self, tally: &TallyCell, now: Time) -> Counts {
        tally.sum(now)
    }

    fn withdraw_now(&self, tally: &TallyCell, now: Time, allowance: Allowance) -> Option<Withdrawal> {
        Some(tally.withdraw(now, allowance))
    }

    async fn withdraw(&self, tally: &TallyCell, now: Time, allowance: Allowance) -> Withdrawal {
        tally.withdraw(now, allowance)
    }

    fn put_back(&self, tally: &TallyCell, withdrawal: Withdrawal) {
        tally.put_back(withdrawal);
    }
}

impl SlotStore for MemoryStore {
    type Slots = SlotCell;

    fn slots(&self, key: &StateKey, cap: u32) -> Arc<SlotCell> {
        let cell = self.0.slots.find_or_add(key, || SlotCell::new(cap));
        cell.retune(cap);
        cell
    }

    #[inline]
    fn take_slot_now(&self, slots: &SlotCell, now: Time) -> Option<SlotReply> {
        Some(slots.take(now))
    }

    async fn take_slot(&self, slots: &SlotCell, now: Time) -> SlotReply {
        slots.take(now)
    }

    #[inline]
    fn return_slot(&self, slots: &SlotCell) {
        slots.give_back();
    }
}

#[cfg(all(test, not(phalanx_model)))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_digest_is_disposable_once_its_window_is_empty() {
        let clock = Clock::manual();
        clock.advance(100 * SECOND);
        let store = MemoryStore::new(clock.clone());
        let cell = store.digest(&StateKey::new("p", "r"), 10 * SECOND);
        assert_eq!(cell.retention(), Retention::Disposable);
        store.observe(&cell, clock.now(), SECOND);
        assert_eq!(cell.retention(), Retention::Relearnable);
        clock.advance(10 * SECOND);
        assert_eq!(cell.retention(), Retention::Disposable);
    }

    #[test]
    fn a_tally_is_disposable_once_its_window_is_empty() {
        let clock = Clock::manual();
        clock.advance(100 * SECOND);
        let store = MemoryStore::new(clock.clone());
        let cell = store.tally(&StateKey::new("p", "r"), TallyUse::Retries, 10 * SECOND);
        assert_eq!(cell.retention(), Retention::Disposable);
        store.add(&cell, clock.now(), Addition { at: clock.now(), calls: 1, marks: 0 });
        assert_eq!(cell.retention(), Retention::Relearnable);
        clock.advance(10 * SECOND);
        assert_eq!(cell.retention(), Retention::Disposable);
    }

    #[test]
    fn slots_are_disposable_once_no_call_is_in_flight() {
        let store = MemoryStore::new(Clock::manual());
        let cell = store.slots(&StateKey::new("p", "r"), 1);
        assert_eq!(cell.retention(), Retention::Disposable);
        assert!(cell.take(Time::ZERO).is_granted && !cell.take(Time::ZERO).is_granted);
        assert_eq!(cell.retention(), Retention::Pinned);
        cell.give_back();
        assert_eq!(cell.retention(), Retention::Disposable);
    }

    #[test]
    fn a_store_reports_the_retention_of_its_cells() {
        let clock = Clock::manual();
        clock.advance(100 * SECOND);
        let store = MemoryStore::new(clock.clone());
        let key = StateKey::new("p", "r");
        let bucket = store.bucket(&key, &RateLimitSpec::per_second(1));
        assert_eq!(store.bucket_retention(&bucket), Retention::Disposable);
        bucket.acquire(clock.now(), AcquireRequest { cost: 1, max_wait: Duration::ZERO });
        assert_eq!(store.bucket_retention(&bucket), Retention::Pinned);
        let breaker = store.breaker(&key, &BreakerSpec::default());
        assert_eq!(store.breaker_retention(&breaker), Retention::Disposable);
        breaker.force(Some(Override::Open));
        assert_eq!(store.breaker_retention(&breaker), Retention::Pinned);
    }
}

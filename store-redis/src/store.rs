//! `RedisStore`: implements the store traits of core over cells that share one [`inner::StoreInner`].

pub(crate) mod inner;
mod shares;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::breaker::{BreakerSpec, BreakerView, Override, Phase, Sample, Ticket, Transition};
use phalanx_core::clock::{Clock, Time};
use phalanx_core::event::Observers;
use phalanx_core::key::StateKey;
use phalanx_core::policy::validate::ConfigError;
use phalanx_core::rate_limit::RateLimitSpec;
use phalanx_core::rejection::Source;
use phalanx_core::rng::Rng;
use phalanx_core::store::{
    AcquireRequest, Addition, AdmitReply, Allowance, BreakerStore, Counts, Grant, LatencyDigestStore, Level,
    RateLimitStore, SlotReply, SlotStore, Store, TallyStore, TallyUse, Withdrawal,
};
use phalanx_core::table::{Retention, Table};
use phalanx_store_memory::DEFAULT_CAPACITY;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::background::Background;
use crate::breaker::SharedBreaker;
use crate::bucket::{LeasedPermits, SharedBucket};
use crate::digest::SharedDigest;
use crate::dispatcher::{Dispatcher, Wire};
use crate::idempotency::RedisIdempotency;
use crate::invocation;
use crate::latch::DegradedDecisions;
use crate::locks::RedisLocks;
use crate::options::RedisOptions;
use crate::redis_connection;
use crate::slots::SharedSlots;
use crate::store::inner::{StoreInner, StoreParts};
use crate::tally::SharedTally;
use crate::wire::RedisWire;

/// Dispatchers of a Cluster; further shards share them.
const MAX_DISPATCHERS: usize = 64;

/// State shared through Redis: breakers, token buckets, latency digests, locks and idempotency keys.
///
/// Cheap to clone; clones share the connection and all state. Dropping the last clone leaves the fleet's membership.
///
/// # Examples
///
/// ```
/// use phalanx_store_redis::{RedisStore, StoreMode};
///
/// // Neither `over` nor `build` connects; `join` does, in the background, or the first call that needs Redis.
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let store = RedisStore::over(client).build().expect("the default options are valid");
/// assert_eq!(store.mode(), StoreMode::Connecting);
/// assert_eq!(store.replicas(), None, "unknown before the first heartbeat");
/// # Ok::<(), redis::RedisError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RedisStore(Arc<Cells>);

#[derive(Debug)]
struct Cells {
    inner: Arc<StoreInner>,
    buckets: Table<SharedBucket>,
    breakers: Table<SharedBreaker>,
    digests: Table<SharedDigest>,
    /// One for each [`TallyUse`].
    tallies: [Table<SharedTally>; 3],
    slots: Table<SharedSlots>,
}

impl Drop for Cells {
    fn drop(&mut self) {
        self.inner.background.stop();
    }
}

/// Where decisions are made at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// In this process, until Redis replies for the first time.
    Connecting,
    /// In Redis.
    Shared,
    /// In a Cluster: in Redis, except for the keys of some shards.
    Partial,
    /// In this process.
    Degraded,
}

/// Builds a [`RedisStore`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use phalanx_store_redis::{RedisOptions, RedisStore};
///
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let options = RedisOptions { store_budget: Duration::from_secs(2), ..RedisOptions::default() };
/// let error = RedisStore::over(client).options(options).build().unwrap_err();
/// assert_eq!(error.mistakes[0].path, "redis.store_budget");
/// # Ok::<(), redis::RedisError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct StoreBuilder {
    source: redis_connection::RedisConnection,
    options: RedisOptions,
    clock: Option<Clock>,
    virtual_clock: Option<Clock>,
    rng: Rng,
    observers: Observers,
    capacity: usize,
}

impl RedisStore {
    /// Starts building a store over a client, a pool, a Cluster or a Sentinel. No I/O happens here or in `build`.
    pub fn over(source: impl Into<redis_connection::RedisConnection>) -> StoreBuilder {
        StoreBuilder {
            source: source.into(),
            options: RedisOptions::default(),
            clock: None,
            virtual_clock: None,
            rng: Rng::from_entropy(),
            observers: Observers::default(),
            capacity: DEFAULT_CAPACITY,
        }
    }

    /// Creates a store over a given wire, with a clock shared by both ends: for tests of the scripts without a server.
    /// There is no background task; [`RedisStore::settle`] syncs.
    #[doc(hidden)]
    pub fn over_wire(wire: Arc<dyn Wire>, clock: Clock, options: RedisOptions) -> Self {
        let wake = Arc::new(Notify::new());
        let runtime = Arc::new(Mutex::new(None));
        let dispatcher =
            Dispatcher::new(wire, options.store_budget, runtime.clone(), wake.clone(), Observers::default(), true);
        Self::of(
            StoreParts {
                options,
                clock,
                rng: Rng::from_entropy(),
                observers: Observers::default(),
                time: invocation::TimeSource::Virtual,
                dispatchers: Box::new([Arc::new(dispatcher)]),
                wake,
                background: Background::new(None, runtime),
                identity_seed: None,
            },
            DEFAULT_CAPACITY,
        )
    }

    fn of(parts: StoreParts, capacity: usize) -> Self {
        let (buckets, breakers, digests) = (Table::new(capacity), Table::new(capacity), Table::new(capacity));
        let (tallies, slots) = (std::array::from_fn(|_| Table::new(capacity)), Table::new(capacity));
        Self(Arc::new(Cells { inner: Arc::new(StoreInner::new(parts)), buckets, breakers, digests, tallies, slots }))
    }

    /// Sends everything that is pending, polls the state of every breaker, and waits until all of it has been answered, also
    /// by other replicas that were asked for evidence.
    pub async fn settle(&self) {
        self.flush().await;
        let started = Instant::now();
        while started.elapsed() < 4 * self.0.inner.options.store_budget
            && self.0.breakers.values().iter().any(|breaker| breaker.0.waits_for_evidence())
        {
            sleep(Duration::from_millis(1)).await;
        }
    }

    async fn flush(&self) {
        let inner = &self.0.inner;
        inner.ensure_background();
        // A reply may queue more, so rounds continue until nothing is pending; the number of rounds is limited, because
        // new calls may arrive meanwhile.
        for round in 0..4 {
            inner.background.breakers.take_in_use(); // all are visited
            inner.background.digests.take_in_use();
            inner.background.tallies.take_in_use();
            inner.background.slots.take_in_use();
            let mut breakers = self.0.breakers.values();
            breakers.sort_unstable_by(|a, b| a.id().cmp(b.id())); // the same order in every run
            if round > 0 && !breakers.iter().any(|breaker| breaker.0.needs_flush()) {
                return;
            }
            breakers.iter().for_each(|breaker| if round == 0 { breaker.0.poll() } else { breaker.0.tick() });
            let mut digests = self.0.digests.values();
            digests.sort_unstable_by(|a, b| a.id().cmp(b.id()));
            digests.iter().for_each(|digest| digest.0.tick(round == 0));
            let mut tallies: Vec<_> = self.0.tallies.iter().flat_map(Table::values).collect();
            tallies.sort_by_cached_key(|tally| tally.id());
            tallies.iter().for_each(|tally| tally.0.tick(true));
            let mut slots = self.0.slots.values();
            slots.sort_unstable_by(|a, b| a.redis_key().cmp(b.redis_key()));
            for cell in slots {
                cell.0.tick(true);
            }
            if round == 0 {
                for bucket in inner.background.leases.take_in_use() {
                    bucket.tick_leases();
                }
                inner.background.lease_drawn.notify_one();
            }
            // A caller that sends inline and is not polled any more must not block this.
            let all =
                futures_util::future::join_all(inner.dispatchers.iter().map(|dispatcher| dispatcher.until_idle()));
            let _ = tokio::time::timeout(4 * inner.options.store_budget, all).await;
        }
    }

    /// Gives leased permits and slots back and flushes, then removes this replica from the membership. For an orderly shutdown; dropping the store does the
    /// same without waiting.
    pub async fn leave(&self) {
        self.0.buckets.values().iter().for_each(|bucket| bucket.close_leases());
        self.flush().await;
        self.0.inner.background.leave().await;
    }

    /// Connects and joins the membership, in the background, on the runtime of the caller; outside a runtime the first call
    /// that needs Redis does.
    pub fn join(&self) {
        self.0.inner.ensure_background();
    }

    /// Returns the fleet's locks.
    pub fn locks(&self) -> RedisLocks {
        RedisLocks::new(self.clone())
    }

    /// Returns the longest time a caller waits for Redis.
    pub fn budget(&self) -> Duration {
        self.0.inner.options.store_budget
    }

    /// Returns the environment, which separates fleets on the same Redis.
    pub fn environment(&self) -> &str {
        &self.0.inner.options.environment
    }

    /// Returns the service whose replicas share state.
    pub fn service(&self) -> &str {
        &self.0.inner.options.service
    }

    /// Returns the most replicas that the fleet can have, if configured.
    pub fn expected_replicas(&self) -> Option<u32> {
        self.0.inner.options.expected_replicas
    }

    /// Returns the fleet's idempotency keys.
    pub fn idempotency(&self) -> RedisIdempotency {
        RedisIdempotency::new(self.clone())
    }

    pub(crate) fn inner(&self) -> &Arc<StoreInner> {
        &self.0.inner
    }

    /// Returns the number of live replicas, this one included; `None` before the first heartbeat.
    pub fn replicas(&self) -> Option<u32> {
        match self.0.inner.replicas.load(Ordering::Relaxed) {
            0 => None,
            live => Some(live),
        }
    }

    /// Returns how many breakers this replica holds open on its own, while they are closed for the fleet.
    pub fn odd_breakers(&self) -> u32 {
        self.0.inner.odd_breakers.load(Ordering::Relaxed)
    }

    /// Returns the permits that this replica has leased, of all rate limits together.
    pub fn leased_permits(&self) -> LeasedPermits {
        let held = self.0.buckets.values().iter().map(|bucket| bucket.leased()).sum();
        LeasedPermits::new(held, self.0.inner.leases.tally())
    }

    /// Returns whether pushes are lost while Redis decides: this process is not subscribed, or may not publish.
    pub fn is_push_lost(&self) -> bool {
        self.0.inner.push_health.is_lost()
    }

    /// Returns the counts of decisions that were made without Redis, one for each connection to a server.
    #[doc(hidden)]
    pub fn degraded_decisions(&self) -> Vec<Arc<DegradedDecisions>> {
        self.0.inner.dispatchers.iter().map(|dispatcher| dispatcher.latch.decisions().clone()).collect()
    }

    /// Returns where decisions are made at the moment.
    pub fn mode(&self) -> StoreMode {
        let dispatchers = self.0.inner.dispatchers_in_use();
        match dispatchers.iter().filter(|dispatcher| dispatcher.latch.is_down()).count() {
            0 if dispatchers.iter().any(|dispatcher| dispatcher.latch.has_answered()) => StoreMode::Shared,
            0 => StoreMode::Connecting,
            down if down == dispatchers.len() => StoreMode::Degraded,
            _ => StoreMode::Partial,
        }
    }
}

impl StoreBuilder {
    /// Sets prefix, environment, budgets and the degraded share.
    pub fn options(mut self, options: RedisOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets this process' clock. Decisions are made on the server's.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Lets the scripts use this clock instead of the server's: for tests that control time.
    #[doc(hidden)]
    pub fn virtual_clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock.clone());
        self.virtual_clock = Some(clock);
        self
    }

    /// Sets the source of randomness for jitter.
    pub fn rng(mut self, rng: Rng) -> Self {
        self.rng = rng;
        self
    }

    /// Sets the observers of transitions caused elsewhere and of the store's health.
    pub fn observers(mut self, observers: Observers) -> Self {
        self.observers = observers;
        self
    }

    /// Sets how many keys of each kind this process caches. Redis holds all of them.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Creates the store.
    ///
    /// # Errors
    /// Returns every invalid option with its path.
    pub fn build(self) -> Result<RedisStore, ConfigError> {
        let mistakes = self.options.mistakes();
        if !mistakes.is_empty() {
            return Err(ConfigError { mistakes });
        }
        let wake = Arc::new(Notify::new());
        let runtime = Arc::new(Mutex::new(None));
        let is_cluster = self.source.is_cluster();
        let dispatchers = if is_cluster { MAX_DISPATCHERS } else { 1 };
        let time =
            if self.virtual_clock.is_some() { invocation::TimeSource::Virtual } else { invocation::TimeSource::Server };
        let identity_seed = self.source.identity_seed();
        let wire = Arc::new(RedisWire::new(self.source, wake.clone(), self.virtual_clock));
        let (budget, observers) = (self.options.store_budget, &self.observers);
        let dispatcher = |_| {
            let (runtime, wake, observers) = (runtime.clone(), wake.clone(), observers.clone());
            Arc::new(Dispatcher::new(wire.clone(), budget, runtime, wake, observers, !is_cluster))
        };
        let dispatchers = (0..dispatchers).map(dispatcher).collect();
        let parts = StoreParts {
            clock: self.clock.unwrap_or_else(Clock::system),
            rng: self.rng,
            observers: self.observers,
            time,
            dispatchers,
            wake: wake.clone(),
            background: Background::new(Some(wire.clone()), runtime.clone()),
            identity_seed,
            options: self.options,
        };
        Ok(RedisStore::of(parts, self.capacity.max(1)))
    }
}

impl Store for RedisStore {
    fn clock(&self) -> &Clock {
        &self.0.inner.clock
    }
}

impl RateLimitStore for RedisStore {
    type Bucket = SharedBucket;

    fn bucket(&self, key: &StateKey, spec: &RateLimitSpec) -> Arc<SharedBucket> {
        let bucket = self.0.buckets.find_or_add(key, || SharedBucket::new(self.0.inner.clone(), key, spec));
        bucket.retune(spec);
        bucket
    }

    #[inline]
    fn acquire_now(&self, bucket: &SharedBucket, now: Time, ask: AcquireRequest) -> Option<Grant> {
        bucket.acquire_now(now, ask)
    }

    async fn acquire(&self, bucket: &SharedBucket, now: Time, ask: AcquireRequest) -> Grant {
        bucket.acquire(now, ask).await
    }

    fn refund(&self, bucket: &SharedBucket, cost: u32, due: Time, source: Source) {
        bucket.refund(cost, due, source);
    }

    async fn peek(&self, bucket: &SharedBucket, now: Time) -> Level {
        bucket.peek(now).await
    }

    fn cached_level(&self, bucket: &SharedBucket, now: Time) -> Option<Level> {
        bucket.cached_level(now)
    }

    /// Redis keeps buckets; what this process would lose is a twin's.
    fn bucket_retention(&self, bucket: &SharedBucket) -> Retention {
        phalanx_core::table::Entry::retention(bucket)
    }
}

impl BreakerStore for RedisStore {
    type Breaker = SharedBreaker;

    fn breaker(&self, key: &StateKey, spec: &BreakerSpec) -> Arc<SharedBreaker> {
        let breaker = self.0.breakers.find_or_add(key, || SharedBreaker::new(self.0.inner.clone(), key, spec));
        self.0.inner.background.breakers.put(breaker.id(), &breaker.0);
        breaker.retune(spec);
        breaker
    }

    #[inline]
    fn admit_now(&self, breaker: &SharedBreaker, now: Time) -> Option<AdmitReply> {
        breaker.admit_now(now)
    }

    async fn admit(&self, breaker: &SharedBreaker, now: Time) -> (AdmitReply, Option<Transition>) {
        breaker.admit(now).await
    }

    #[inline]
    fn record(&self, breaker: &SharedBreaker, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        breaker.record(now, ticket, sample)
    }

    fn observe_quantile(&self, breaker: &SharedBreaker, now: Time, value: Option<Duration>) -> Option<Transition> {
        breaker.observe_quantile(now, value)
    }

    /// Redis holds the state; eviction would only lose what a twin holds.
    fn breaker_retention(&self, breaker: &SharedBreaker) -> Retention {
        phalanx_core::table::Entry::retention(breaker)
    }

    async fn force(&self, breaker: &SharedBreaker, overridden: Option<Override>) {
        breaker.force(overridden).await;
    }

    async fn reset(&self, breaker: &SharedBreaker, now: Time) -> Option<Transition> {
        breaker.reset(now).await
    }

    async fn inspect(&self, breaker: &SharedBreaker, now: Time) -> BreakerView {
        breaker.inspect(now).await
    }

    fn cached_phase(&self, breaker: &SharedBreaker) -> (Phase, Option<Override>) {
        breaker.cached_phase()
    }
}

impl LatencyDigestStore for RedisStore {
    type Digest = SharedDigest;

    fn digest(&self, key: &StateKey, window: Duration) -> Arc<SharedDigest> {
        let digest = self.0.digests.find_or_add(key, || SharedDigest::new(self.0.inner.clone(), key, window));
        self.0.inner.background.digests.put(digest.id(), &digest.0);
        digest.retune(window);
        digest.0.mark_used(); // a new replica starts by fetching the fleet's slices
        digest
    }

    #[inline]
    fn observe(&self, digest: &SharedDigest, now: Time, latency: Duration) {
        digest.observe(now, latency);
    }

    fn quantile_since(&self, digest: &SharedDigest, now: Time, since: Time, quantile: f64) -> Option<Duration> {
        digest.quantile_since(now, since, quantile)
    }

    fn has_fleet_latencies(&self, digest: &SharedDigest) -> bool {
        digest.has_fleet_latencies()
    }
}

impl TallyStore for RedisStore {
    type Tally = SharedTally;

    fn tally(&self, key: &StateKey, of: TallyUse, window: Duration) -> Arc<SharedTally> {
        let make = || SharedTally::new(self.0.inner.clone(), key, of, window);
        let tally = self.0.tallies[of as usize].find_or_add(key, make);
        tally.retune(window);
        tally
    }

    fn add(&self, tally: &SharedTally, now: Time, addition: Addition) {
        tally.add(now, addition);
    }

    fn watch(&self, tally: &SharedTally, now: Time) {
        tally.watch(now);
    }

    fn sum(&self, tally: &SharedTally, now: Time) -> Counts {
        tally.sum(now)
    }

    fn withdraw_now(&self, tally: &SharedTally, now: Time, allowance: Allowance) -> Option<Withdrawal> {
        tally.withdraw_now(now, allowance)
    }

    async fn withdraw(&self, tally: &SharedTally, now: Time, allowance: Allowance) -> Withdrawal {
        tally.withdraw(now, allowance).await
    }

    fn put_back(&self, tally: &SharedTally, withdrawal: Withdrawal) {
        tally.put_back(withdrawal);
    }

    fn lead(&self, tally: &SharedTally) -> Duration {
        tally.lead()
    }
}

impl SlotStore for RedisStore {
    type Slots = SharedSlots;

    fn slots(&self, key: &StateKey, cap: u32) -> Arc<SharedSlots> {
        let slots = self.0.slots.find_or_add(key, || SharedSlots::new(self.0.inner.clone(), key, cap));
        slots.retune(cap);
        slots
    }

    #[inline]
    fn take_slot_now(&self, slots: &SharedSlots, now: Time) -> Option<SlotReply> {
        slots.take_now(now)
    }

    async fn take_slot(&self, slots: &SharedSlots, _now: Time) -> SlotReply {
        slots.take().await
    }

    #[inline]
    fn return_slot(&self, slots: &SharedSlots) {
        slots.give_back();
    }
}

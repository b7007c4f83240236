//! The backend of a module: state in memory or in Redis. An enum instead of a trait object or a type parameter, so that
//! nothing is boxed and users name no store type.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, BreakerView, Override, Phase, Sample, Ticket, Transition};
use phalanx_core::clock::{Clock, Time};
use phalanx_core::key::StateKey;
use phalanx_core::rate_limit::RateLimitSpec;
use phalanx_core::rejection::Source;
use phalanx_core::store::{
    AcquireRequest, Addition, AdmitReply, Allowance, BreakerStore, Counts, Dues, Grant, LatencyDigestStore, Level,
    RateLimitStore, SetGrant, SetLimit, Store, TallyStore, TallyUse, Withdrawal,
};
use phalanx_core::table::Retention;
use phalanx_store_memory::{BreakerCell, BucketCell, BucketSet, DigestCell, MemoryStore, TallyCell};
#[cfg(feature = "redis")]
use phalanx_store_redis::{RedisStore, SharedBreaker, SharedBucket, SharedDigest, SharedSet, SharedTally};

/// The store of a module.
#[derive(Clone, Debug)]
pub struct Backend {
    memory: MemoryStore,
    #[cfg(feature = "redis")]
    redis: Option<(RedisStore, Scopes)>,
}

/// Which kinds of state the fleet shares.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scopes {
    pub(crate) rate_limits: crate::store::StateScope,
    pub(crate) breakers: crate::store::StateScope,
    pub(crate) digests: crate::store::StateScope,
}

macro_rules! either {
    ($(#[$doc:meta])* $name:ident, $local:ty, $shared:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {
            /// In the memory of this process.
            Local(Arc<$local>),
            /// In Redis.
            #[cfg(feature = "redis")]
            Shared(Arc<$shared>),
        }
    };
}

either!(
    /// A bucket of either store.
    AnyBucket, BucketCell, SharedBucket
);
either!(
    /// Several limits of either store.
    AnyLimitSet, BucketSet, SharedSet
);
either!(
    /// A breaker of either store.
    AnyBreaker, BreakerCell, SharedBreaker
);
either!(
    /// A digest of either store.
    AnyDigest, DigestCell, SharedDigest
);
either!(
    /// A tally of either store.
    AnyTally, TallyCell, SharedTally
);

impl Backend {
    pub(crate) const fn memory(memory: MemoryStore) -> Self {
        Self {
            memory,
            #[cfg(feature = "redis")]
            redis: None,
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) const fn redis(memory: MemoryStore, redis: RedisStore, scopes: Scopes) -> Self {
        Self { memory, redis: Some((redis, scopes)) }
    }

    /// Returns the Redis store of a module over Redis.
    #[cfg(feature = "redis")]
    pub(crate) fn shared(&self) -> Option<&RedisStore> {
        self.redis.as_ref().map(|(store, _)| store)
    }

    #[cfg(feature = "redis")]
    fn shared_for(&self, scope: impl Fn(&Scopes) -> crate::store::StateScope) -> Option<&RedisStore> {
        self.redis
            .as_ref()
            .filter(|(_, scopes)| scope(scopes) == crate::store::StateScope::Fleet)
            .map(|(store, _)| store)
    }
}

/// Calls the matching method of either store.
macro_rules! dispatch {
    ($cell:ident: $any:ident, local => $local:expr, shared => $shared:expr) => {
        match $cell {
            $any::Local($cell) => $local,
            #[cfg(feature = "redis")]
            $any::Shared($cell) => $shared,
        }
    };
}

impl Store for Backend {
    fn clock(&self) -> &Clock {
        self.memory.clock()
    }
}

impl RateLimitStore for Backend {
    type Bucket = AnyBucket;
    type LimitSet = AnyLimitSet;

    fn bucket(&self, key: &StateKey, spec: &RateLimitSpec) -> Arc<AnyBucket> {
        #[cfg(feature = "redis")]
        if let Some(redis) = self.shared_for(|scopes| scopes.rate_limits) {
            return Arc::new(AnyBucket::Shared(redis.bucket(key, spec)));
        }
        Arc::new(AnyBucket::Local(self.memory.bucket(key, spec)))
    }

    #[inline]
    fn acquire_now(&self, bucket: &AnyBucket, now: Time, ask: AcquireRequest) -> Option<Grant> {
        dispatch!(bucket: AnyBucket, local => self.memory.acquire_now(bucket, now, ask), shared => bucket.acquire_now(now, ask))
    }

    async fn acquire(&self, bucket: &AnyBucket, now: Time, ask: AcquireRequest) -> Grant {
        dispatch!(bucket: AnyBucket, local => self.memory.acquire(bucket, now, ask).await, shared => bucket.acquire(now, ask).await)
    }

    #[inline]
    fn refund(&self, bucket: &AnyBucket, cost: u32, due: Time, source: Source) {
        dispatch!(bucket: AnyBucket, local => self.memory.refund(bucket, cost, due, source), shared => bucket.refund(cost, due, source));
    }

    fn limit_set(&self, limits: Vec<SetLimit<AnyBucket>>) -> Arc<AnyLimitSet> {
        // The buckets of a module are all of one store.
        #[cfg(feature = "redis")]
        if let Some(redis) = self.shared_for(|scopes| scopes.rate_limits) {
            let shared = limits.into_iter().filter_map(|SetLimit { bucket, cost, max_wait }| match &*bucket {
                AnyBucket::Shared(bucket) => Some(SetLimit { bucket: bucket.clone(), cost, max_wait }),
                AnyBucket::Local(_) => None,
            });
            return Arc::new(AnyLimitSet::Shared(redis.limit_set(shared.collect())));
        }
        let local = limits.into_iter().filter_map(|SetLimit { bucket, cost, max_wait }| match &*bucket {
            AnyBucket::Local(bucket) => Some(SetLimit { bucket: bucket.clone(), cost, max_wait }),
            #[cfg(feature = "redis")]
            AnyBucket::Shared(_) => None,
        });
        Arc::new(AnyLimitSet::Local(self.memory.limit_set(local.collect())))
    }

    #[inline]
    fn acquire_all_now(&self, set: &AnyLimitSet, now: Time, ask: AcquireRequest) -> Option<SetGrant> {
        dispatch!(set: AnyLimitSet, local => Some(set.acquire(now, ask)), shared => set.acquire_now(now, ask))
    }

    async fn acquire_all(&self, set: &Arc<AnyLimitSet>, now: Time, ask: AcquireRequest) -> SetGrant {
        let set = &**set;
        dispatch!(set: AnyLimitSet, local => set.acquire(now, ask), shared => SharedSet::acquire(set, now, ask).await)
    }

    fn refund_all(&self, set: &AnyLimitSet, cost: u32, dues: &Dues, source: Source) {
        dispatch!(set: AnyLimitSet, local => self.memory.refund_all(set, cost, dues, source), shared => set.refund(cost, dues, source));
    }

    async fn peek(&self, bucket: &AnyBucket, now: Time) -> Level {
        dispatch!(bucket: AnyBucket, local => self.memory.peek(bucket, now).await, shared => bucket.peek(now).await)
    }

    fn cached_level(&self, bucket: &AnyBucket, now: Time) -> Option<Level> {
        dispatch!(bucket: AnyBucket, local => self.memory.cached_level(bucket, now), shared => bucket.cached_level(now))
    }

    fn bucket_retention(&self, bucket: &AnyBucket) -> Retention {
        dispatch!(bucket: AnyBucket, local => self.memory.bucket_retention(bucket), shared => phalanx_core::table::Entry::retention(&**bucket))
    }
}

impl BreakerStore for Backend {
    type Breaker = AnyBreaker;

    fn breaker(&self, key: &StateKey, spec: &BreakerSpec) -> Arc<AnyBreaker> {
        #[cfg(feature = "redis")]
        if let Some(redis) = self.shared_for(|scopes| scopes.breakers) {
            return Arc::new(AnyBreaker::Shared(redis.breaker(key, spec)));
        }
        Arc::new(AnyBreaker::Local(self.memory.breaker(key, spec)))
    }

    #[inline]
    fn admit_now(&self, breaker: &AnyBreaker, now: Time) -> Option<AdmitReply> {
        dispatch!(breaker: AnyBreaker, local => self.memory.admit_now(breaker, now), shared => breaker.admit_now(now))
    }

    async fn admit(&self, breaker: &AnyBreaker, now: Time) -> (AdmitReply, Option<Transition>) {
        dispatch!(breaker: AnyBreaker, local => self.memory.admit(breaker, now).await, shared => breaker.admit(now).await)
    }

    #[inline]
    fn record(&self, breaker: &AnyBreaker, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        dispatch!(breaker: AnyBreaker, local => self.memory.record(breaker, now, ticket, sample), shared => breaker.record(now, ticket, sample))
    }

    fn observe_quantile(&self, breaker: &AnyBreaker, now: Time, value: Option<Duration>) -> Option<Transition> {
        dispatch!(breaker: AnyBreaker, local => self.memory.observe_quantile(breaker, now, value), shared => breaker.observe_quantile(now, value))
    }

    fn breaker_retention(&self, breaker: &AnyBreaker) -> Retention {
        dispatch!(breaker: AnyBreaker, local => self.memory.breaker_retention(breaker), shared => phalanx_core::table::Entry::retention(&**breaker))
    }

    async fn force(&self, breaker: &AnyBreaker, overridden: Option<Override>) {
        dispatch!(breaker: AnyBreaker, local => self.memory.force(breaker, overridden).await, shared => breaker.force(overridden).await);
    }

    async fn reset(&self, breaker: &AnyBreaker, now: Time) -> Option<Transition> {
        dispatch!(breaker: AnyBreaker, local => self.memory.reset(breaker, now).await, shared => breaker.reset(now).await)
    }

    async fn inspect(&self, breaker: &AnyBreaker, now: Time) -> BreakerView {
        dispatch!(breaker: AnyBreaker, local => self.memory.inspect(breaker, now).await, shared => breaker.inspect(now).await)
    }

    fn cached_phase(&self, breaker: &AnyBreaker) -> (Phase, Option<Override>) {
        dispatch!(breaker: AnyBreaker, local => self.memory.cached_phase(breaker), shared => breaker.cached_phase())
    }
}

impl LatencyDigestStore for Backend {
    type Digest = AnyDigest;

    fn digest(&self, key: &StateKey, window: Duration) -> Arc<AnyDigest> {
        #[cfg(feature = "redis")]
        if let Some(redis) = self.shared_for(|scopes| scopes.digests) {
            return Arc::new(AnyDigest::Shared(redis.digest(key, window)));
        }
        Arc::new(AnyDigest::Local(self.memory.digest(key, window)))
    }

    #[inline]
    fn observe(&self, digest: &AnyDigest, now: Time, latency: Duration) {
        dispatch!(digest: AnyDigest, local => self.memory.observe(digest, now, latency), shared => digest.observe(now, latency));
    }

    fn has_fleet_latencies(&self, digest: &AnyDigest) -> bool {
        dispatch!(digest: AnyDigest, local => self.memory.has_fleet_latencies(digest), shared => digest.has_fleet_latencies())
    }

    fn quantile_since(&self, digest: &AnyDigest, now: Time, since: Time, quantile: f64) -> Option<Duration> {
        dispatch!(digest: AnyDigest, local => self.memory.quantile_since(digest, now, since, quantile), shared => digest.quantile_since(now, since, quantile))
    }
}

/// A policy asks for a tally only where the fleet shares it, so there is no scope to look at.
impl TallyStore for Backend {
    type Tally = AnyTally;

    fn tally(&self, key: &StateKey, of: TallyUse, window: Duration) -> Arc<AnyTally> {
        #[cfg(feature = "redis")]
        if let Some(redis) = self.shared() {
            return Arc::new(AnyTally::Shared(redis.tally(key, of, window)));
        }
        Arc::new(AnyTally::Local(self.memory.tally(key, of, window)))
    }

    fn add(&self, tally: &AnyTally, now: Time, addition: Addition) {
        dispatch!(tally: AnyTally, local => self.memory.add(tally, now, addition), shared => tally.add(now, addition));
    }

    fn watch(&self, tally: &AnyTally, now: Time) {
        dispatch!(tally: AnyTally, local => self.memory.watch(tally, now), shared => tally.watch(now));
    }

    fn sum(&self, tally: &AnyTally, now: Time) -> Counts {
        dispatch!(tally: AnyTally, local => self.memory.sum(tally, now), shared => tally.sum(now))
    }

    fn withdraw_now(&self, tally: &AnyTally, now: Time, allowance: Allowance) -> Option<Withdrawal> {
        dispatch!(tally: AnyTally, local => self.memory.withdraw_now(tally, now, allowance), shared => tally.withdraw_now(now, allowance))
    }

    async fn withdraw(&self, tally: &AnyTally, now: Time, allowance: Allowance) -> Withdrawal {
        dispatch!(tally: AnyTally, local => self.memory.withdraw(tally, now, allowance).await, shared => tally.withdraw(now, allowance).await)
    }

    fn put_back(&self, tally: &AnyTally, withdrawal: Withdrawal) {
        dispatch!(tally: AnyTally, local => self.memory.put_back(tally, withdrawal), shared => tally.put_back(withdrawal));
    }

    fn lead(&self, tally: &AnyTally) -> Duration {
        dispatch!(tally: AnyTally, local => self.memory.lead(tally), shared => tally.lead())
    }
}

//! The store: the three traits over cells that share one fleet.

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
    AcquireRequest, AdmitReply, BreakerStore, Grant, LatencyDigestStore, Level, RateLimitStore, Store,
};
use phalanx_core::table::{Retention, Table};
use phalanx_store_memory::DEFAULT_CAPACITY;
use tokio::sync::Notify;

use crate::bucket::Bucket;
use crate::circuit::Circuit;
use crate::digest::Digest;
use crate::fleet::{Fleet, Parts};
use crate::idempotency::RedisIdempotency;
use crate::invocation;
use crate::keeper::Keeping;
use crate::lane::{Lane, Wire};
use crate::locks::RedisLocks;
use crate::options::RedisOptions;
use crate::source;
use crate::wire::RedisWire;

/// Lanes of a Cluster: shards beyond that share them.
const LANES: usize = 64;

/// The store. Cheap to clone; clones are the same store. When the last one is dropped, the replica leaves the fleet.
#[derive(Clone, Debug)]
pub struct RedisStore(Arc<Held>);

#[derive(Debug)]
struct Held {
    fleet: Arc<Fleet>,
    buckets: Table<Bucket>,
    circuits: Table<Circuit>,
    digests: Table<Digest>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.fleet.keeping.stop();
    }
}

/// Who decides at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Redis.
    Shared,
    /// In a Cluster: Redis, except for the keys of some shards.
    Partial,
    /// This process alone.
    Degraded,
}

/// A store being put together.
#[derive(Debug)]
#[must_use = "nothing is checked or made before `build`"]
pub struct StoreBuilder {
    source: source::RedisConnection,
    options: RedisOptions,
    clock: Option<Clock>,
    virtual_clock: Option<Clock>,
    rng: Rng,
    observers: Observers,
    capacity: usize,
}

impl RedisStore {
    /// A store over a client, a pool, a Cluster or a Sentinel. No I/O happens, now or in `build`.
    pub fn over(source: impl Into<source::RedisConnection>) -> StoreBuilder {
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

    /// A store over a wire of one's own and a clock that both ends share: how the scripts are judged without a server.
    /// Nothing happens behind the callers; [`RedisStore::settle`] makes it happen.
    #[doc(hidden)]
    pub fn over_wire(wire: Arc<dyn Wire>, clock: Clock, options: RedisOptions) -> Self {
        let wake = Arc::new(Notify::new());
        let runtime = Arc::new(Mutex::new(None));
        let lane = Lane::new(wire, options.store_budget, runtime.clone(), wake.clone(), Observers::default());
        Self::of(
            Parts {
                options,
                clock,
                rng: Rng::from_entropy(),
                observers: Observers::default(),
                time: invocation::Time::Virtual,
                lanes: Box::new([Arc::new(lane)]),
                wake,
                keeping: Keeping::new(None, runtime),
            },
            DEFAULT_CAPACITY,
        )
    }

    fn of(parts: Parts, capacity: usize) -> Self {
        let (buckets, circuits, digests) = (Table::new(capacity), Table::new(capacity), Table::new(capacity));
        Self(Arc::new(Held { fleet: Arc::new(Fleet::new(parts)), buckets, circuits, digests }))
    }

    /// Tells Redis everything it is owed, hears how every circuit stands, and returns when all of it has been answered.
    pub async fn settle(&self) {
        let fleet = &self.0.fleet;
        fleet.keep();
        // What lands may owe something itself, so it goes on until nothing is owed; a few rounds, because new calls may
        // come meanwhile.
        for round in 0..4 {
            let circuits = self.0.circuits.values();
            if round > 0 && !circuits.iter().any(|circuit| circuit.0.owes()) {
                return;
            }
            circuits.iter().for_each(|circuit| circuit.0.tick(round == 0));
            self.0.digests.values().iter().for_each(|digest| digest.0.tick(round == 0));
            // A caller who flies himself and is not polled any more must not keep this waiting.
            let all = futures_util::future::join_all(fleet.lanes.iter().map(|lane| lane.idle()));
            let _ = tokio::time::timeout(4 * fleet.options.store_budget, all).await;
        }
    }

    /// Leaves the fleet: this replica no longer counts among the living. For shutting down in good order; dropping the
    /// store does the same without waiting.
    pub async fn leave(&self) {
        self.settle().await;
        self.0.fleet.keeping.leave().await;
    }

    /// The fleet's locks.
    pub fn locks(&self) -> RedisLocks {
        RedisLocks::new(self.clone())
    }

    /// The longest a caller waits for Redis.
    pub fn budget(&self) -> Duration {
        self.0.fleet.options.store_budget
    }

    /// Which fleet this is.
    pub fn environment(&self) -> &str {
        &self.0.fleet.options.environment
    }

    /// Requests that must not happen twice.
    pub fn idempotency(&self) -> RedisIdempotency {
        RedisIdempotency::new(self.clone())
    }

    pub(crate) fn fleet(&self) -> &Arc<Fleet> {
        &self.0.fleet
    }

    /// Replicas that are alive, this one included; none before Redis was first heard of.
    pub fn replicas(&self) -> Option<u32> {
        match self.0.fleet.replicas.load(Ordering::Relaxed) {
            0 => None,
            live => Some(live),
        }
    }

    /// Who decides at the moment.
    pub fn mode(&self) -> StoreMode {
        let lanes = self.0.fleet.lanes_in_use();
        match lanes.iter().filter(|lane| lane.latch.is_down()).count() {
            0 => StoreMode::Shared,
            down if down == lanes.len() => StoreMode::Degraded,
            _ => StoreMode::Partial,
        }
    }
}

impl StoreBuilder {
    /// Prefix, environment, budgets.
    pub fn options(mut self, options: RedisOptions) -> Self {
        self.options = options;
        self
    }

    /// This process' clock. Decisions are made on the server's.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Lets the server decide on this clock instead of its own: for tests, which move it.
    #[doc(hidden)]
    pub fn virtual_clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock.clone());
        self.virtual_clock = Some(clock);
        self
    }

    /// The chance behind jitter.
    pub fn rng(mut self, rng: Rng) -> Self {
        self.rng = rng;
        self
    }

    /// Who is told of changes that come from elsewhere, and of the store's own health.
    pub fn observers(mut self, observers: Observers) -> Self {
        self.observers = observers;
        self
    }

    /// How many keys of each kind this process remembers. Redis keeps the rest.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Makes the store.
    ///
    /// # Errors
    /// Every mistake in the options, each with its path.
    pub fn build(self) -> Result<RedisStore, ConfigError> {
        let mistakes = self.options.mistakes();
        if !mistakes.is_empty() {
            return Err(ConfigError { mistakes });
        }
        let wake = Arc::new(Notify::new());
        let runtime = Arc::new(Mutex::new(None));
        let lanes = if self.source.is_cluster() { LANES } else { 1 };
        let time = if self.virtual_clock.is_some() { invocation::Time::Virtual } else { invocation::Time::Server };
        let wire = Arc::new(RedisWire::new(self.source, wake.clone(), self.virtual_clock));
        let (budget, observers) = (self.options.store_budget, &self.observers);
        let lane = |_| Arc::new(Lane::new(wire.clone(), budget, runtime.clone(), wake.clone(), observers.clone()));
        let lanes = (0..lanes).map(lane).collect();
        let parts = Parts {
            clock: self.clock.unwrap_or_else(Clock::system),
            rng: self.rng,
            observers: self.observers,
            time,
            lanes,
            wake: wake.clone(),
            keeping: Keeping::new(Some(wire.clone()), runtime.clone()),
            options: self.options,
        };
        Ok(RedisStore::of(parts, self.capacity.max(1)))
    }
}

impl Store for RedisStore {
    fn clock(&self) -> &Clock {
        &self.0.fleet.clock
    }
}

impl RateLimitStore for RedisStore {
    type Bucket = Bucket;

    fn bucket(&self, key: &StateKey, spec: &RateLimitSpec) -> Arc<Bucket> {
        let bucket = self.0.buckets.find_or_add(key, || Bucket::new(self.0.fleet.clone(), key, spec));
        bucket.retune(spec);
        bucket
    }

    #[inline]
    fn acquire_now(&self, bucket: &Bucket, now: Time, ask: AcquireRequest) -> Option<Grant> {
        bucket.acquire_now(now, ask)
    }

    async fn acquire(&self, bucket: &Bucket, now: Time, ask: AcquireRequest) -> Grant {
        bucket.acquire(now, ask).await
    }

    fn refund(&self, bucket: &Bucket, cost: u32, due: Time, source: Source) {
        bucket.refund(cost, due, source);
    }

    async fn peek(&self, bucket: &Bucket, now: Time) -> Level {
        bucket.peek(now).await
    }

    fn cached_level(&self, bucket: &Bucket, now: Time) -> Option<Level> {
        bucket.glance(now)
    }

    /// Redis keeps buckets; what this process would lose is a twin's.
    fn bucket_retention(&self, bucket: &Bucket) -> Retention {
        phalanx_core::table::Entry::retention(bucket)
    }
}

impl BreakerStore for RedisStore {
    type Breaker = Circuit;

    fn breaker(&self, key: &StateKey, spec: &BreakerSpec) -> Arc<Circuit> {
        let circuit = self.0.circuits.find_or_add(key, || Circuit::new(self.0.fleet.clone(), key, spec));
        self.0.fleet.keeping.circuits.put(circuit.id(), &circuit.0);
        circuit.retune(spec);
        circuit
    }

    #[inline]
    fn admit_now(&self, circuit: &Circuit, now: Time) -> Option<AdmitReply> {
        circuit.admit_now(now)
    }

    async fn admit(&self, circuit: &Circuit, now: Time) -> (AdmitReply, Option<Transition>) {
        circuit.admit(now).await
    }

    #[inline]
    fn record(&self, circuit: &Circuit, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        circuit.record(now, ticket, sample)
    }

    fn observe_quantile(&self, circuit: &Circuit, now: Time, value: Option<Duration>) -> Option<Transition> {
        circuit.observe_quantile(now, value)
    }

    /// Redis keeps circuits; what this process would lose is a twin's.
    fn breaker_retention(&self, circuit: &Circuit) -> Retention {
        phalanx_core::table::Entry::retention(circuit)
    }

    async fn force(&self, circuit: &Circuit, overridden: Option<Override>) {
        circuit.force(overridden).await;
    }

    async fn reset(&self, circuit: &Circuit, now: Time) -> Option<Transition> {
        circuit.reset(now).await
    }

    async fn inspect(&self, circuit: &Circuit, now: Time) -> BreakerView {
        circuit.inspect(now).await
    }

    fn cached_phase(&self, circuit: &Circuit) -> (Phase, Option<Override>) {
        circuit.glance()
    }
}

impl LatencyDigestStore for RedisStore {
    type Digest = Digest;

    fn digest(&self, key: &StateKey, window: Duration) -> Arc<Digest> {
        let digest = self.0.digests.find_or_add(key, || Digest::new(self.0.fleet.clone(), key, window));
        self.0.fleet.keeping.digests.put(digest.id(), &digest.0);
        digest.retune(window);
        digest
    }

    #[inline]
    fn observe(&self, digest: &Digest, now: Time, latency: Duration) {
        digest.observe(now, latency);
    }

    fn quantile_since(&self, digest: &Digest, now: Time, since: Time, quantile: f64) -> Option<Duration> {
        digest.quantile_since(now, since, quantile)
    }
}

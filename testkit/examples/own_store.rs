//! A store of your own, in five steps: this one keeps its state in maps of one process, under locks. A store over a server
//! has the same shape: where this one locks a cell and asks its state machine, it sends the operation to the server.
//!
//! `testkit/tests/own_store.rs` runs the conformance suite on it. `cargo run --example own_store` prints
//!
//! ```text
//! call 1: ok
//! call 2: ok
//! call 3: rate_limited
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx::store::{
    AcquireRequest, Addition, AdmitReply, Allowance, Breaker, BreakerStore, BreakerView, Bucket, BucketPart, Counts,
    Digest, Dues, Engine, EngineSpec, Grant, LatencyDigestStore, Level, MAX_LIMITS, Override, Phase, Rate,
    RateLimitStore, Retention, Rng, Sample, SetGrant, SetLimit, StateKey, Store, Take, Tally, TallyStore, TallyUse,
    Ticket, Time, Transition, Withdrawal,
};
use phalanx::{BreakerSpec, Clock, Kind, Policy, RateLimitSpec, Source};

// Step 1: what it holds. A pipeline looks its cells up once and keeps them, so a cell is an `Arc` with a lock of its own.
// The state machines take the time, the spec and chance as arguments.

/// The store. Clones share its state.
#[derive(Clone)]
pub struct OwnStore(Arc<Shared>);

struct Shared {
    clock: Clock,
    rng: Rng,
    buckets: Cells<(Bucket, Rate)>,
    breakers: Cells<(Breaker, BreakerSpec)>,
    digests: Mutex<HashMap<StateKey, Arc<Digest>>>, // a digest is safe to share without a lock
    tallies: [Cells<Tally>; 3],                     // one for each use
}

type Cells<T> = Mutex<HashMap<StateKey, Arc<Mutex<T>>>>;

impl OwnStore {
    /// Creates a store without state. The generator decides the jitter of breaks.
    pub fn new(clock: Clock, rng: Rng) -> Self {
        let (buckets, breakers, digests, tallies) = Default::default();
        Self(Arc::new(Shared { clock, rng, buckets, breakers, digests, tallies }))
    }

    fn now(&self) -> Time {
        self.0.clock.now()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find_or_make<T>(cells: &Mutex<HashMap<StateKey, Arc<T>>>, key: &StateKey, make: impl FnOnce() -> T) -> Arc<T> {
    lock(cells).entry(key.clone()).or_insert_with(|| Arc::new(make())).clone()
}

impl Store for OwnStore {
    fn clock(&self) -> &Clock {
        &self.0.clock
    }
}

// Step 2: rate limits. `acquire_now` decides without waiting, if the store can; if it returns none, the pipeline awaits
// `acquire`. No method can fail: a store that cannot reach its server decides by itself and names the
// source of that decision (`Source::Degraded`).

impl RateLimitStore for OwnStore {
    type Bucket = Mutex<(Bucket, Rate)>;
    type LimitSet = Vec<SetLimit<Self::Bucket>>;

    fn bucket(&self, key: &StateKey, spec: &RateLimitSpec) -> Arc<Self::Bucket> {
        let (now, new) = (self.now(), Rate::of(spec));
        let cell = find_or_make(&self.0.buckets, key, || Mutex::new((Bucket::full(now, new), new)));
        let (bucket, rate) = &mut *lock(&cell);
        if *rate != new {
            bucket.retune(now, *rate, new);
            *rate = new;
        }
        cell.clone()
    }

    fn acquire_now(&self, _: &Self::Bucket, _: Time, _: AcquireRequest) -> Option<Grant> {
        None // always await `acquire`, as over a server
    }

    async fn acquire(&self, cell: &Self::Bucket, now: Time, request: AcquireRequest) -> Grant {
        let (bucket, rate) = &mut *lock(cell);
        let take = bucket.take(now, *rate, request.cost, request.max_wait);
        let due = if let Take::Granted { wait } = take { now.after(wait) } else { now };
        Grant { take, left: bucket.level(*rate), source: Source::Local, due }
    }

    fn refund(&self, cell: &Self::Bucket, cost: u32, due: Time, _: Source) {
        let (bucket, rate) = &mut *lock(cell);
        bucket.refund(self.now(), *rate, cost, due);
    }

    fn limit_set(&self, mut limits: Vec<SetLimit<Self::Bucket>>) -> Arc<Self::LimitSet> {
        limits.truncate(MAX_LIMITS);
        Arc::new(limits)
    }

    fn acquire_all_now(&self, _: &Self::LimitSet, _: Time, _: AcquireRequest) -> Option<SetGrant> {
        None
    }

    async fn acquire_all(&self, set: &Arc<Self::LimitSet>, now: Time, request: AcquireRequest) -> SetGrant {
        // Always locked in one order, so that two callers never wait for each other.
        let mut order: Vec<_> = (0..set.len()).collect();
        order.sort_by_key(|index| Arc::as_ptr(&set[*index].bucket));
        let mut locked: Vec<_> = order.into_iter().map(|index| (index, lock(&set[index].bucket))).collect();
        locked.sort_by_key(|(index, _)| *index);
        let mut parts = Vec::new();
        for (limit, (_, cell)) in set.iter().zip(&mut locked) {
            let (bucket, rate) = &mut **cell;
            let max_wait = limit.max_wait.min(request.max_wait);
            parts.push(BucketPart { bucket, rate: *rate, cost: limit.cost.of(request.cost), max_wait });
        }
        let verdict = Bucket::take_all(now, &mut parts);
        let owed = |part: &BucketPart<'_>| part.bucket.level(part.rate).units.min(0).unsigned_abs();
        let waits: Vec<_> = parts.iter().map(|part| part.rate.time_for(owed(part))).collect();
        verdict.grant(Source::Local, Dues::after(now, waits.into_iter()))
    }

    fn refund_all(&self, set: &Self::LimitSet, cost: u32, dues: &Dues, source: Source) {
        for (index, limit) in set.iter().enumerate() {
            self.refund(&limit.bucket, limit.cost.of(cost), dues.of(index), source);
        }
    }

    async fn peek(&self, cell: &Self::Bucket, now: Time) -> Level {
        let (bucket, rate) = &mut *lock(cell);
        bucket.available(now, *rate); // refills it
        bucket.level(*rate)
    }

    fn cached_level(&self, cell: &Self::Bucket, now: Time) -> Option<Level> {
        let (mut bucket, rate) = *lock(cell);
        bucket.available(now, rate);
        Some(bucket.level(rate))
    }

    fn bucket_retention(&self, cell: &Self::Bucket) -> Retention {
        let (bucket, rate) = &*lock(cell);
        if bucket.is_full(self.now(), *rate) { Retention::Disposable } else { Retention::Pinned }
    }
}

// Step 3: breakers. `record` never waits: a store over a server may send the outcome later and return no transition.

impl BreakerStore for OwnStore {
    type Breaker = Mutex<(Breaker, BreakerSpec)>;

    fn breaker(&self, key: &StateKey, new: &BreakerSpec) -> Arc<Self::Breaker> {
        let make = || Mutex::new((Breaker::new(self.now(), new), new.clone()));
        let cell = find_or_make(&self.0.breakers, key, make);
        let (breaker, spec) = &mut *lock(&cell);
        if spec != new {
            breaker.retune(new);
            *spec = new.clone();
        }
        cell.clone()
    }

    fn admit_now(&self, _: &Self::Breaker, _: Time) -> Option<AdmitReply> {
        None // always await `admit`
    }

    async fn admit(&self, cell: &Self::Breaker, now: Time) -> (AdmitReply, Option<Transition>) {
        let (breaker, spec) = &mut *lock(cell);
        let (admission, transition) = breaker.admit(now, spec);
        let source = match breaker.overridden() {
            None => Source::Local,
            Some(Override::MetricsOnly) => Source::Shadow,
            Some(_) => Source::Forced,
        };
        (AdmitReply { admission, source }, transition)
    }

    fn record(&self, cell: &Self::Breaker, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        let (breaker, spec) = &mut *lock(cell);
        breaker.record(now, spec, ticket, sample, self.0.rng.unit())
    }

    fn observe_quantile(&self, cell: &Self::Breaker, now: Time, value: Option<Duration>) -> Option<Transition> {
        let (breaker, spec) = &mut *lock(cell);
        breaker.observe_quantile(now, spec, value, self.0.rng.unit())
    }

    fn breaker_retention(&self, cell: &Self::Breaker) -> Retention {
        if lock(cell).0.is_fresh(self.now()) { Retention::Disposable } else { Retention::Pinned }
    }

    async fn force(&self, cell: &Self::Breaker, overridden: Option<Override>) {
        lock(cell).0.force(overridden);
    }

    async fn reset(&self, cell: &Self::Breaker, now: Time) -> Option<Transition> {
        let (breaker, spec) = &mut *lock(cell);
        breaker.reset(now, spec)
    }

    async fn inspect(&self, cell: &Self::Breaker, now: Time) -> BreakerView {
        lock(cell).0.inspect(now)
    }

    fn cached_phase(&self, cell: &Self::Breaker) -> (Phase, Option<Override>) {
        let (breaker, _) = &*lock(cell);
        (breaker.phase(), breaker.overridden())
    }
}

// Step 4: latency digests, for adaptive hedges and breakers that trip on a quantile.

impl LatencyDigestStore for OwnStore {
    type Digest = Digest;

    fn digest(&self, key: &StateKey, window: Duration) -> Arc<Digest> {
        let digest = find_or_make(&self.0.digests, key, || Digest::new(window));
        digest.retune(window);
        digest
    }

    fn observe(&self, digest: &Digest, now: Time, latency: Duration) {
        digest.observe(now, latency);
    }

    fn quantile_since(&self, digest: &Digest, now: Time, since: Time, quantile: f64) -> Option<Duration> {
        digest.quantile_since(now, since, quantile)
    }
}

// Step 5: tallies, for budgets and adaptive throttles that are shared.

impl TallyStore for OwnStore {
    type Tally = Mutex<Tally>;

    fn tally(&self, key: &StateKey, of: TallyUse, window: Duration) -> Arc<Self::Tally> {
        let tally = find_or_make(&self.0.tallies[of as usize], key, || Mutex::new(Tally::new(window)));
        lock(&tally).retune(window);
        tally
    }

    fn add(&self, tally: &Self::Tally, now: Time, addition: Addition) {
        lock(tally).add(now, addition);
    }

    fn sum(&self, tally: &Self::Tally, now: Time) -> Counts {
        lock(tally).sum(now)
    }

    fn withdraw_now(&self, tally: &Self::Tally, now: Time, allowance: Allowance) -> Option<Withdrawal> {
        let (granted, slice) = lock(tally).withdraw(now, 1, allowance);
        Some(Withdrawal { granted: granted > 0, source: Source::Local, slice })
    }

    async fn withdraw(&self, tally: &Self::Tally, now: Time, allowance: Allowance) -> Withdrawal {
        let (granted, slice) = lock(tally).withdraw(now, 1, allowance);
        Withdrawal { granted: granted > 0, source: Source::Local, slice }
    }

    fn put_back(&self, tally: &Self::Tally, withdrawal: Withdrawal) {
        lock(tally).put_back(self.now(), withdrawal.slice, withdrawal.granted.into());
    }
}

/// An engine runs policies over it, as a `ResilienceModule` does over its stores.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> Result<(), phalanx::ConfigError> {
    let policy = Policy::named("mail").rate_limit(RateLimitSpec::per_minute(2));
    let store = OwnStore::new(Clock::manual(), Rng::seeded(7));
    let engine = Engine::new(store, EngineSpec { policies: vec![policy], ..EngineSpec::default() })?;
    for number in 1..=3 {
        match engine.run("mail", "acme", || async { Ok::<_, Kind>("ok") }).await {
            Ok(answer) => println!("call {number}: {answer}"),
            Err(error) => println!("call {number}: {}", error.rejection().map_or("failed", |it| it.code().name())),
        }
    }
    Ok(())
}

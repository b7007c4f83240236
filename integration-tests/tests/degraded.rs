//! `on_degraded`, stage by stage: how a policy treats decisions of the twin.
//!
//! The store is the in-memory one with every decision marked as degraded, which is all that a pipeline sees of an outage.

#![allow(clippy::expect_used)] // a failed expectation panics, in helpers too

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, BreakerView, Override, Phase, Sample, Ticket, Transition};
use phalanx_core::bulkhead::BulkheadSpec;
use phalanx_core::clock::{Clock, Time};
use phalanx_core::engine::{Engine, EngineSpec};
use phalanx_core::error::Error;
use phalanx_core::key::StateKey;
use phalanx_core::kind::Kind;
use phalanx_core::pipeline::Pipeline;
use phalanx_core::policy::{OnDegraded, Policy};
use phalanx_core::rate_limit::{Level, RateLimitSpec};
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::store::{
    AcquireRequest, Addition, AdmitReply, Allowance, BreakerStore, Counts, Dues, Grant, LatencyDigestStore,
    RateLimitStore, SetGrant, SetLimit, SlotReply, SlotStore, Store, TallyStore, TallyUse, Withdrawal,
};
use phalanx_core::table::Retention;
use phalanx_store_memory::{BreakerCell, BucketCell, BucketSet, DigestCell, MemoryStore, SlotCell, TallyCell};

#[derive(Clone)]
struct Twin(MemoryStore);

fn marked(answer: AdmitReply) -> AdmitReply {
    AdmitReply { source: Source::Degraded, ..answer }
}

impl Store for Twin {
    fn clock(&self) -> &Clock {
        self.0.clock()
    }
}

impl RateLimitStore for Twin {
    type Bucket = BucketCell;
    type LimitSet = BucketSet;

    fn bucket(&self, key: &StateKey, spec: &RateLimitSpec) -> Arc<BucketCell> {
        self.0.bucket(key, spec)
    }

    fn acquire_now(&self, bucket: &BucketCell, now: Time, ask: AcquireRequest) -> Option<Grant> {
        Some(Grant { source: Source::Degraded, ..self.0.acquire_now(bucket, now, ask)? })
    }

    async fn acquire(&self, bucket: &BucketCell, now: Time, ask: AcquireRequest) -> Grant {
        self.0.acquire(bucket, now, ask).await
    }

    fn refund(&self, bucket: &BucketCell, cost: u32, due: Time, source: Source) {
        self.0.refund(bucket, cost, due, source);
    }

    fn charge(&self, bucket: &BucketCell, permits: u32) {
        self.0.charge(bucket, permits);
    }

    fn discharge(&self, bucket: &BucketCell, permits: u32) {
        self.0.discharge(bucket, permits);
    }

    fn limit_set(&self, limits: Vec<SetLimit<BucketCell>>) -> Arc<BucketSet> {
        self.0.limit_set(limits)
    }

    fn acquire_all_now(&self, set: &BucketSet, now: Time, ask: AcquireRequest) -> Option<SetGrant> {
        Some(SetGrant { source: Source::Degraded, ..self.0.acquire_all_now(set, now, ask)? })
    }

    async fn acquire_all(&self, set: &Arc<BucketSet>, now: Time, ask: AcquireRequest) -> SetGrant {
        self.0.acquire_all(set, now, ask).await
    }

    fn refund_all(&self, set: &BucketSet, cost: u32, dues: &Dues, source: Source) {
        self.0.refund_all(set, cost, dues, source);
    }

    async fn peek(&self, bucket: &BucketCell, now: Time) -> Level {
        self.0.peek(bucket, now).await
    }

    fn cached_level(&self, bucket: &BucketCell, now: Time) -> Option<Level> {
        self.0.cached_level(bucket, now)
    }

    fn bucket_retention(&self, bucket: &BucketCell) -> Retention {
        self.0.bucket_retention(bucket)
    }
}

impl BreakerStore for Twin {
    type Breaker = BreakerCell;

    fn breaker(&self, key: &StateKey, spec: &BreakerSpec) -> Arc<BreakerCell> {
        self.0.breaker(key, spec)
    }

    fn admit_now(&self, breaker: &BreakerCell, now: Time) -> Option<AdmitReply> {
        self.0.admit_now(breaker, now).map(marked)
    }

    async fn admit(&self, breaker: &BreakerCell, now: Time) -> (AdmitReply, Option<Transition>) {
        let (answer, change) = self.0.admit(breaker, now).await;
        (marked(answer), change)
    }

    fn record(&self, breaker: &BreakerCell, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        self.0.record(breaker, now, ticket, sample)
    }

    fn breaker_retention(&self, breaker: &BreakerCell) -> Retention {
        self.0.breaker_retention(breaker)
    }

    fn observe_quantile(&self, breaker: &BreakerCell, now: Time, value: Option<Duration>) -> Option<Transition> {
        self.0.observe_quantile(breaker, now, value)
    }

    async fn force(&self, breaker: &BreakerCell, overridden: Option<Override>) {
        self.0.force(breaker, overridden).await;
    }

    async fn reset(&self, breaker: &BreakerCell, now: Time) -> Option<Transition> {
        self.0.reset(breaker, now).await
    }

    async fn inspect(&self, breaker: &BreakerCell, now: Time) -> BreakerView {
        self.0.inspect(breaker, now).await
    }

    fn cached_phase(&self, breaker: &BreakerCell) -> (Phase, Option<Override>) {
        self.0.cached_phase(breaker)
    }
}

impl TallyStore for Twin {
    type Tally = TallyCell;

    fn tally(&self, key: &StateKey, of: TallyUse, window: Duration) -> Arc<TallyCell> {
        self.0.tally(key, of, window)
    }

    fn add(&self, tally: &TallyCell, now: Time, addition: Addition) {
        self.0.add(tally, now, addition);
    }

    fn sum(&self, tally: &TallyCell, now: Time) -> Counts {
        self.0.sum(tally, now)
    }

    fn withdraw_now(&self, tally: &TallyCell, now: Time, allowance: Allowance) -> Option<Withdrawal> {
        Some(Withdrawal { source: Source::Degraded, ..self.0.withdraw_now(tally, now, allowance)? })
    }

    async fn withdraw(&self, tally: &TallyCell, now: Time, allowance: Allowance) -> Withdrawal {
        self.0.withdraw(tally, now, allowance).await
    }

    fn put_back(&self, tally: &TallyCell, withdrawal: Withdrawal) {
        self.0.put_back(tally, withdrawal);
    }
}

impl SlotStore for Twin {
    type Slots = SlotCell;

    fn slots(&self, key: &StateKey, cap: u32) -> Arc<SlotCell> {
        self.0.slots(key, cap)
    }

    fn take_slot_now(&self, slots: &SlotCell, now: Time) -> Option<SlotReply> {
        Some(SlotReply { source: Source::Degraded, ..self.0.take_slot_now(slots, now)? })
    }

    async fn take_slot(&self, slots: &SlotCell, now: Time) -> SlotReply {
        self.0.take_slot(slots, now).await
    }

    fn return_slot(&self, slots: &SlotCell) {
        self.0.return_slot(slots);
    }
}

impl LatencyDigestStore for Twin {
    type Digest = DigestCell;

    fn digest(&self, key: &StateKey, window: Duration) -> Arc<DigestCell> {
        self.0.digest(key, window)
    }

    fn observe(&self, digest: &DigestCell, now: Time, latency: Duration) {
        self.0.observe(digest, now, latency);
    }

    fn quantile_since(&self, digest: &DigestCell, now: Time, since: Time, quantile: f64) -> Option<Duration> {
        self.0.quantile_since(digest, now, since, quantile)
    }
}

fn pipeline(policy: Policy, on_degraded: OnDegraded) -> Pipeline<Twin> {
    pipeline_over(&Twin(MemoryStore::new(Clock::manual())), policy, on_degraded)
}

fn pipeline_over(store: &Twin, policy: Policy, on_degraded: OnDegraded) -> Pipeline<Twin> {
    let spec = EngineSpec { policies: vec![policy.on_degraded(on_degraded)], ..EngineSpec::default() };
    let engine = Engine::new(store.clone(), spec);
    engine.expect("a valid engine").pipeline("p", ()).expect("the policy exists")
}

fn limited() -> Policy {
    Policy::named("p").rate_limit(RateLimitSpec::per_second(2))
}

fn guarded() -> Policy {
    Policy::named("p").breaker(BreakerSpec::consecutive_failures(1))
}

/// A cap of the fleet of which nothing is left: [`full`] has lowered it.
fn capped() -> Policy {
    Policy::named("p").bulkhead(BulkheadSpec::fixed(1).fleet_max_concurrency(1))
}

/// Lets the fleet have no slot.
fn full(pipeline: &Pipeline<Twin>, store: &Twin) {
    store.slots(pipeline.key(), 0);
}

/// Makes failing calls and returns their rejection codes, none if the operation ran. All decisions must be degraded.
async fn codes(pipeline: &Pipeline<Twin>, calls: usize) -> Vec<Option<RejectionCode>> {
    let mut codes = Vec::new();
    for _ in 0..calls {
        let (answer, record) = pipeline.call().run_recorded(|| async { Err::<(), _>(Kind::Infrastructure) }).await;
        assert_eq!(record.source, Source::Degraded);
        codes.push(answer.err().as_ref().and_then(Error::rejection).map(|rejection| rejection.code()));
    }
    codes
}

#[tokio::test]
async fn local_uses_the_decisions_of_the_twin() {
    let limit = pipeline(limited(), OnDegraded::Local);
    assert_eq!(codes(&limit, 3).await, [None, None, Some(RejectionCode::RateLimited)]);
    let circuit = pipeline(guarded(), OnDegraded::Local);
    assert_eq!(codes(&circuit, 2).await, [None, Some(RejectionCode::CircuitOpen)]);
}

#[tokio::test]
async fn a_slot_of_the_fleet_follows_on_degraded_too() {
    for (on_degraded, expected) in [
        (OnDegraded::Local, [None, Some(RejectionCode::FleetBulkheadFull)]),
        (OnDegraded::Open, [None, None]),
        (OnDegraded::Closed, [Some(RejectionCode::StoreUnavailable); 2]),
    ] {
        let store = Twin(MemoryStore::new(Clock::manual()));
        let pipeline = pipeline_over(&store, capped(), on_degraded);
        let first = codes(&pipeline, 1).await[0];
        full(&pipeline, &store);
        assert_eq!([first, codes(&pipeline, 1).await[0]], expected, "{on_degraded:?}");
        // What was taken was given back, and what was not taken was not.
        let slots = store.slots(pipeline.key(), 1);
        assert!(slots.take(Time::ZERO).is_granted && !slots.take(Time::ZERO).is_granted, "{on_degraded:?}");
    }
}

#[tokio::test]
async fn open_admits_every_call() {
    for policy in [limited(), guarded()] {
        let pipeline = pipeline(policy, OnDegraded::Open);
        assert_eq!(codes(&pipeline, 5).await, [None; 5]);
    }
}

#[tokio::test]
async fn closed_rejects_every_call_and_takes_nothing() {
    let limit = pipeline(limited(), OnDegraded::Closed);
    assert_eq!(codes(&limit, 5).await, [Some(RejectionCode::StoreUnavailable); 5]);
    assert_eq!(limit.available_permits().await, Some(2));
    let circuit = pipeline(guarded(), OnDegraded::Closed);
    assert_eq!(codes(&circuit, 5).await, [Some(RejectionCode::StoreUnavailable); 5]);
    assert_eq!(circuit.circuit().await.map(|view| (view.calls, view.probes)), Some((0, 0)));
}

//! Conformance cases of several limits that are decided together.

#![allow(missing_docs)] // the name of a case describes it

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::key::StateKey;
use phalanx_core::rate_limit::{Consistency, LimitCost, RateLimitSpec};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, Dues, RateLimitStore, SetGrant, SetLimit, Store};

use super::{AT_ONCE, after, not_before};
use crate::bed::Bed;
use crate::conformance::SECOND;
use crate::replies::AcquireOutcome;

type Bucket<B> = <<B as Bed>::Store as RateLimitStore>::Bucket;

/// Three limits of one policy, as one replica sees them: of the policy, of a route and of a tenant.
struct Replica<B: Bed> {
    store: B::Store,
    buckets: Vec<Arc<Bucket<B>>>,
    set: Arc<<B::Store as RateLimitStore>::LimitSet>,
}

struct Fleet<B: Bed> {
    bed: B,
    one: Replica<B>,
    two: Replica<B>,
}

/// A limit of the cases.
#[derive(Clone)]
struct Limit {
    spec: RateLimitSpec,
    cost: LimitCost,
}

fn per_second(permits: u64) -> Limit {
    Limit { spec: RateLimitSpec::per_second(permits), cost: LimitCost::Call }
}

fn waiting(permits: u64, max_wait: Duration) -> Limit {
    Limit { spec: RateLimitSpec::per_second(permits).max_wait(max_wait), cost: LimitCost::Call }
}

impl<B: Bed> Replica<B> {
    fn new(bed: &B, limits: &[Limit; 3]) -> Self {
        let store = bed.store();
        let route = StateKey::new("api", "eu");
        let keys = [
            StateKey::new("api", ()).of_policy_limit("all"),
            route.of_limit("route"),
            StateKey::of_tag("api", "tenant", "tenant", Some("acme")),
        ];
        let buckets: Vec<_> = keys.iter().zip(limits).map(|(key, limit)| store.bucket(key, &limit.spec)).collect();
        let limit = |(bucket, limit): (&Arc<Bucket<B>>, &Limit)| {
            let max_wait = limit.spec.max_wait.unwrap_or_default();
            SetLimit { bucket: bucket.clone(), cost: limit.cost, max_wait }
        };
        let set = store.limit_set(buckets.iter().zip(limits).map(limit).collect());
        Self { store, buckets, set }
    }

    async fn ask(&self, cost: u32) -> (AcquireOutcome, SetGrant) {
        let (now, request) = (self.store.clock().now(), AcquireRequest { cost, max_wait: Duration::MAX });
        let grant = match self.store.acquire_all_now(&self.set, now, request) {
            Some(grant) => grant,
            None => self.store.acquire_all(&self.set, now, request).await,
        };
        let leased = B::SOURCE == Source::Fleet && grant.source == Source::Leased;
        assert!(grant.source == B::SOURCE || leased, "not decided by the store under test: {}", grant.source);
        (AcquireOutcome::new(grant.take, now), grant)
    }

    async fn take(&self, cost: u32) -> AcquireOutcome {
        self.ask(cost).await.0
    }

    async fn permits(&self) -> Vec<u64> {
        let mut permits = Vec::new();
        for bucket in &self.buckets {
            permits.push(self.store.peek(bucket, self.store.clock().now()).await.permits());
        }
        permits
    }
}

impl<B: Bed> Fleet<B> {
    async fn new(limits: [Limit; 3]) -> Self {
        let bed = B::new().await;
        let (one, two) = (Replica::new(&bed, &limits), Replica::new(&bed, &limits));
        bed.sync_all().await;
        Self { bed, one, two }
    }
}

pub async fn several_limits_are_charged_together<B: Bed>() {
    let fleet = Fleet::<B>::new([10, 7, 5].map(per_second)).await;
    let (outcome, grant) = fleet.one.ask(2).await;
    assert_eq!((outcome, grant.limit, grant.left.permits()), (AT_ONCE, 2, 3), "the fewest are left of the third");
    assert_eq!(fleet.two.permits().await, [8, 5, 3]);
    assert_eq!(fleet.two.take(3).await, AT_ONCE);
    assert_eq!(fleet.one.permits().await, [5, 2, 0]);
}

pub async fn a_limit_that_rejects_leaves_the_others_untouched<B: Bed>() {
    let fleet = Fleet::<B>::new([10, 7, 5].map(per_second)).await;
    assert_eq!(fleet.one.take(5).await, AT_ONCE);
    for replica in [&fleet.one, &fleet.two, &fleet.one] {
        let (outcome, grant) = replica.ask(1).await;
        assert_eq!((outcome, grant.limit), (not_before(SECOND / 5), 2));
        assert_eq!(grant.left.permits(), 0);
        assert_eq!(fleet.two.permits().await, [5, 2, 0], "nothing is taken from the others");
    }
    fleet.bed.advance(SECOND / 5).await;
    assert_eq!(fleet.two.take(1).await, AT_ONCE);
    assert_eq!(fleet.one.permits().await, [6, 2, 0], "refilled meanwhile");
}

pub async fn of_several_limits_that_reject_the_last_to_recover_is_named<B: Bed>() {
    let slow = Limit { spec: RateLimitSpec::per_minute(3), cost: LimitCost::Call };
    let fleet = Fleet::<B>::new([per_second(3), slow, per_second(3)]).await;
    assert_eq!(fleet.one.take(3).await, AT_ONCE);
    let (outcome, grant) = fleet.two.ask(1).await;
    assert_eq!((outcome, grant.limit), (not_before(20 * SECOND), 1));
}

pub async fn a_call_waits_for_the_slowest_of_its_limits<B: Bed>() {
    let fleet = Fleet::<B>::new([waiting(4, SECOND), waiting(2, SECOND), per_second(100)]).await;
    assert_eq!(fleet.one.take(2).await, AT_ONCE);
    assert_eq!(fleet.two.take(2).await, after(SECOND), "the first limit has them at once");
    let (outcome, grant) = fleet.one.ask(1).await;
    assert_eq!(outcome, not_before(SECOND + SECOND / 2));
    assert_eq!(grant.limit, 1, "it would have to wait for longer than it may");
    assert_eq!(fleet.two.permits().await, [0, 0, 96]);
    fleet.bed.advance(SECOND).await;
    assert_eq!(fleet.one.permits().await, [4, 0, 100]);
}

pub async fn a_limit_takes_its_own_cost<B: Bed>() {
    let requests = Limit { cost: LimitCost::Fixed(1), ..per_second(10) };
    let fleet = Fleet::<B>::new([requests.clone(), requests, per_second(100)]).await;
    assert_eq!(fleet.one.take(70).await, AT_ONCE);
    assert_eq!(fleet.two.take(0).await, AT_ONCE, "of the third limit it takes nothing");
    assert_eq!(fleet.one.permits().await, [8, 8, 30]);
}

pub async fn a_cost_above_the_burst_of_one_limit_is_rejected_for_good<B: Bed>() {
    let fleet = Fleet::<B>::new([10, 7, 100].map(per_second)).await;
    for cost in [8, u32::MAX] {
        let (outcome, grant) = fleet.one.ask(cost).await;
        assert_eq!(outcome, AcquireOutcome::Rejected { retry_after: None }, "{cost}");
        assert_eq!(grant.limit, if cost == 8 { 1 } else { 0 }, "the first that can never grant it");
    }
    assert_eq!(fleet.two.permits().await, [10, 7, 100]);
}

pub async fn leased_limits_are_spent_together_or_not_at_all<B: Bed>() {
    let leased = |permits| {
        let spec = RateLimitSpec::per_second(permits).consistency(Consistency::Leased);
        Limit { spec, cost: LimitCost::Call }
    };
    let fleet = Fleet::<B>::new([10_000, 8_000, 2_000].map(leased)).await;
    let mut granted = 0;
    // A second of demand: blocks are drawn, spent and refilled on the way.
    for step in 0..1_000 {
        let replica = if step % 3 == 0 { &fleet.two } else { &fleet.one };
        for _ in 0..6 {
            let (outcome, grant) = replica.ask(1).await;
            match outcome {
                AcquireOutcome::Granted { .. } => granted += 1,
                AcquireOutcome::Rejected { .. } => assert_eq!(grant.limit, 2, "the others have enough for it"),
            }
        }
        fleet.bed.advance(Duration::from_millis(1)).await;
    }
    assert!((3_000..=4_000).contains(&granted), "{granted}: 2,000 at once and 2,000 in the second");
    // Nothing was taken from the wide limits but what was granted: they are full again within the time of a lease.
    fleet.bed.sync_all().await;
    fleet.bed.advance(SECOND).await;
    fleet.bed.sync_all().await;
    fleet.bed.advance(SECOND).await;
    assert_eq!(fleet.one.permits().await, [10_000, 8_000, 2_000]);
}

pub async fn a_refund_reaches_every_limit<B: Bed>() {
    let fleet = Fleet::<B>::new([waiting(10, SECOND), waiting(4, SECOND), waiting(2, SECOND)]).await;
    let (_, first) = fleet.one.ask(2).await;
    let (outcome, second) = fleet.two.ask(1).await;
    assert_eq!(outcome, after(SECOND / 2));
    assert_eq!(fleet.one.permits().await, [7, 1, 0]);
    fleet.two.store.refund_all(&fleet.two.set, 1, &second.dues, second.source);
    fleet.bed.sync_all().await;
    fleet.one.store.refund_all(&fleet.one.set, 2, &first.dues, first.source);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.two.permits().await, [10, 4, 2]);
    // Late: what time has refilled meanwhile is not given back twice.
    let (_, third) = fleet.one.ask(2).await;
    fleet.bed.advance(SECOND / 4).await;
    fleet.one.store.refund_all(&fleet.one.set, 2, &third.dues, third.source);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.two.permits().await, [10, 4, 2]);
    assert!(matches!(third.dues, Dues::Same(_)), "it did not wait");
}

//! Conformance cases of `RateLimitStore`.

#![allow(missing_docs)] // the name of a case describes it

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::key::StateKey;
use phalanx_core::rate_limit::{Consistency, RateLimitSpec};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, Level, RateLimitStore, Store};

mod several;

pub use self::several::*;
use super::{MICRO, SECOND, keys_that_look_alike};
use crate::bed::Bed;
use crate::replies::{AcquireOutcome, acquire_permits};

const AT_ONCE: AcquireOutcome = after(Duration::ZERO);

const fn after(wait: Duration) -> AcquireOutcome {
    AcquireOutcome::Granted { wait }
}

const fn not_before(wait: Duration) -> AcquireOutcome {
    AcquireOutcome::Rejected { retry_after: Some(wait) }
}

/// One bucket, shared by two replicas.
struct Fleet<B: Bed> {
    bed: B,
    key: StateKey,
    one: Replica<B>,
    two: Replica<B>,
}

/// The result of asking for permits: the outcome, and the level of the bucket after it.
#[derive(Debug)]
struct Asked {
    take: AcquireOutcome,
    left: Level,
    due: Time,
    source: Source,
}

struct Replica<B: Bed> {
    store: B::Store,
    bucket: Arc<<B::Store as RateLimitStore>::Bucket>,
}

impl<B: Bed> Fleet<B> {
    async fn new(spec: &RateLimitSpec) -> Self {
        let bed = B::new().await;
        let key = StateKey::new("payments", "eu");
        let (one, two) = (Replica::new(&bed, &key, spec), Replica::new(&bed, &key, spec));
        bed.sync_all().await;
        Self { bed, key, one, two }
    }

    /// Refunds permits that were granted, or are granted for a time `wait` from now.
    async fn refund(&self, replica: &Replica<B>, cost: u32, wait: Duration) {
        self.refund_due(replica, cost, self.bed.now().after(wait)).await;
    }

    /// Refunds permits that were due at this time of the clock that decides.
    async fn refund_due(&self, replica: &Replica<B>, cost: u32, due: Time) {
        replica.store.refund(&replica.bucket, cost, due, B::SOURCE);
        self.bed.sync_all().await;
    }

    /// Charges permits for work that is done.
    async fn charge(&self, replica: &Replica<B>, permits: u32) {
        replica.store.charge(&replica.bucket, permits);
        self.bed.sync_all().await;
    }

    /// Changes the spec on both replicas; they keep the handles they resolved first.
    async fn retune(&self, spec: &RateLimitSpec) {
        self.one.store.bucket(&self.key, spec);
        self.two.store.bucket(&self.key, spec);
        self.bed.sync_all().await;
    }
}

impl<B: Bed> Replica<B> {
    fn new(bed: &B, key: &StateKey, spec: &RateLimitSpec) -> Self {
        let store = bed.store();
        Self { bucket: store.bucket(key, spec), store }
    }

    async fn ask(&self, cost: u32, max_wait: Duration) -> Asked {
        let now = self.store.clock().now();
        let grant = acquire_permits(&self.store, &self.bucket, now, AcquireRequest { cost, max_wait }).await;
        let leased = B::SOURCE == Source::Fleet && grant.source == Source::Leased;
        assert!(grant.source == B::SOURCE || leased, "not decided by the store under test: {}", grant.source);
        Asked { take: AcquireOutcome::new(grant.take, now), left: grant.left, due: grant.due, source: grant.source }
    }

    /// Acquires one permit without waiting.
    async fn take(&self) -> AcquireOutcome {
        self.ask(1, Duration::ZERO).await.take
    }

    async fn peek(&self) -> Level {
        self.store.peek(&self.bucket, self.store.clock().now()).await
    }

    async fn permits(&self) -> u64 {
        self.peek().await.permits()
    }
}

pub async fn a_new_bucket_is_full<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10).burst(25)).await;
    assert_eq!(fleet.one.peek().await, Level { units: 25 * 100_000, price: 100_000 });
    assert_eq!(fleet.two.ask(25, Duration::ZERO).await.take, AT_ONCE);
    let by_default = Replica::new(&fleet.bed, &StateKey::new("other", ()), &RateLimitSpec::per_second(10));
    assert_eq!(by_default.permits().await, 10);
}

pub async fn the_same_key_is_the_same_bucket<B: Bed>() {
    let spec = RateLimitSpec::per_second(10);
    let fleet = Fleet::<B>::new(&spec).await;
    assert_eq!(fleet.one.ask(6, Duration::ZERO).await.take, AT_ONCE);
    assert_eq!(fleet.two.permits().await, 4);
    let latecomer = Replica::new(&fleet.bed, &StateKey::new("payments", "eu"), &spec);
    assert_eq!(latecomer.ask(4, Duration::ZERO).await.take, AT_ONCE);
    assert_eq!(fleet.one.take().await, not_before(SECOND / 10));
    assert_eq!(fleet.two.take().await, not_before(SECOND / 10));
}

pub async fn different_keys_never_share_a_bucket<B: Bed>() {
    let bed = B::new().await;
    let buckets = keys_that_look_alike().map(|key| Replica::new(&bed, &key, &RateLimitSpec::per_second(10)));
    // Each is full although all earlier ones were emptied, and none is refilled by a later one.
    for bucket in &buckets {
        assert_eq!(bucket.permits().await, 10);
        assert_eq!(bucket.ask(10, Duration::ZERO).await.take, AT_ONCE);
    }
    for bucket in &buckets {
        assert_eq!(bucket.take().await, not_before(SECOND / 10));
    }
}

pub async fn another_spec_keeps_the_permits_that_fit<B: Bed>() {
    let wide = RateLimitSpec::per_second(100);
    let fleet = Fleet::<B>::new(&wide).await;
    fleet.one.ask(40, Duration::ZERO).await;
    let slow = RateLimitSpec::per_minute(30).burst(50);
    fleet.retune(&slow).await;
    let price = 2_000_000;
    assert_eq!(fleet.one.peek().await, Level { units: 50 * 2_000_000, price }, "of 60, 50 fit");
    assert_eq!(fleet.two.ask(20, Duration::ZERO).await.take, AT_ONCE);
    fleet.retune(&wide).await;
    assert_eq!(fleet.one.permits().await, 30, "all fit, and none is added");
    fleet.retune(&slow).await;
    assert_eq!(fleet.two.ask(31, Duration::ZERO).await.take, not_before(2 * SECOND), "the new rate applies");
}

pub async fn permits_come_back_at_the_declared_rate<B: Bed>() {
    // A third of a second is not a whole number of microseconds: a store that rounds loses or mints permits here.
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(3)).await;
    assert_eq!(fleet.one.ask(3, Duration::ZERO).await.take, AT_ONCE);
    for _ in 0..100 {
        fleet.bed.advance(333_333 * MICRO).await;
        assert_eq!(fleet.two.take().await, not_before(MICRO));
        fleet.bed.advance(MICRO).await;
        assert_eq!(fleet.one.take().await, AT_ONCE);
        fleet.bed.advance(333_333 * MICRO).await;
        assert_eq!(fleet.two.take().await, AT_ONCE);
        fleet.bed.advance(333_333 * MICRO).await;
        assert_eq!(fleet.one.take().await, AT_ONCE);
        assert_eq!(fleet.two.peek().await, Level { units: 0, price: 1_000_000 });
    }
    fleet.bed.advance(3_600 * SECOND).await;
    assert_eq!(fleet.one.permits().await, 3, "never more than the burst");
}

pub async fn an_empty_bucket_rejects_and_names_the_time_to_retry<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(3).burst(1)).await;
    assert_eq!(fleet.one.take().await, AT_ONCE);
    assert_eq!(fleet.two.take().await, not_before(333_334 * MICRO));
    fleet.bed.advance(333_333 * MICRO).await;
    assert_eq!(fleet.two.take().await, not_before(MICRO));
    fleet.bed.advance(MICRO).await;
    assert_eq!(fleet.two.take().await, AT_ONCE, "granted after the reported wait");
}

pub async fn a_rejection_takes_nothing<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10)).await;
    fleet.one.ask(7, Duration::ZERO).await;
    for replica in [&fleet.one, &fleet.two, &fleet.one] {
        let rejected = replica.ask(4, Duration::ZERO).await;
        assert_eq!(rejected.take, not_before(SECOND / 10));
        assert_eq!(rejected.left, Level { units: 300_000, price: 100_000 });
    }
    assert_eq!(fleet.two.ask(3, Duration::ZERO).await.take, AT_ONCE);
}

pub async fn a_cost_takes_that_many_permits<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10)).await;
    let first = fleet.one.ask(3, Duration::ZERO).await;
    assert_eq!((first.take, first.left.permits()), (AT_ONCE, 7));
    let second = fleet.two.ask(5, Duration::ZERO).await;
    assert_eq!((second.take, second.left.permits()), (AT_ONCE, 2));
    let third = fleet.one.ask(4, Duration::ZERO).await;
    assert_eq!((third.take, third.left.permits()), (not_before(SECOND / 5), 2));
}

pub async fn a_cost_above_the_burst_is_rejected_for_good<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10).burst(5)).await;
    let never = AcquireOutcome::Rejected { retry_after: None };
    assert_eq!(fleet.one.ask(6, Duration::ZERO).await.take, never);
    assert_eq!(fleet.two.ask(6, 3_600 * SECOND).await.take, never, "even if the caller would wait");
    assert_eq!(fleet.two.ask(u32::MAX, 3_600 * SECOND).await.take, never);
    assert_eq!(fleet.one.ask(5, Duration::ZERO).await.take, AT_ONCE, "nothing was taken");
}

pub async fn waiters_are_served_in_the_order_they_came<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10).burst(2)).await;
    let (one, two) = (&fleet.one, &fleet.two);
    assert_eq!(one.ask(2, SECOND).await.take, AT_ONCE);
    assert_eq!(two.ask(1, SECOND).await.take, after(SECOND / 10));
    assert_eq!(one.ask(2, SECOND).await.take, after(3 * SECOND / 10));
    fleet.bed.advance(SECOND / 20).await;
    assert_eq!(two.ask(1, SECOND).await.take, after(7 * SECOND / 20), "after the three reserved before it");
    let left = one.peek().await;
    assert_eq!(left, Level { units: -350_000, price: 100_000 }, "four are reserved, half of one has been refilled");
    fleet.bed.advance(7 * SECOND / 20).await;
    assert_eq!(
        two.take().await,
        not_before(SECOND / 10),
        "refilled permits belong to the waiters, not to a new caller"
    );
}

pub async fn a_wait_longer_than_allowed_is_rejected<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10).burst(1)).await;
    assert_eq!(fleet.one.take().await, AT_ONCE);
    let too_long = fleet.two.ask(1, SECOND / 10 - MICRO).await.take;
    assert_eq!(too_long, not_before(SECOND / 10));
    assert_eq!(fleet.two.ask(1, SECOND / 10).await.take, after(SECOND / 10), "a wait of exactly max_wait is allowed");
    assert_eq!(fleet.one.ask(1, SECOND / 10).await.take, not_before(SECOND / 5));
}

pub async fn a_refund_is_there_for_the_next_call<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10)).await;
    fleet.one.ask(10, Duration::ZERO).await;
    fleet.refund(&fleet.one, 2, Duration::ZERO).await;
    assert_eq!(fleet.two.ask(2, Duration::ZERO).await.take, AT_ONCE);
    assert_eq!(fleet.two.take().await, not_before(SECOND / 10));
    // A waiter that gives up: the next caller waits for fewer permits.
    assert_eq!(fleet.one.ask(3, SECOND).await.take, after(3 * SECOND / 10));
    fleet.refund(&fleet.one, 3, 3 * SECOND / 10).await;
    assert_eq!(fleet.two.ask(1, SECOND).await.take, after(SECOND / 10));
}

pub async fn a_place_with_others_behind_it_waits_for_them<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(1).burst(1)).await;
    let mut dues = Vec::new();
    for wait in 0..4 {
        let asked = fleet.one.ask(1, 9 * SECOND).await;
        assert_eq!(asked.take, after(wait * SECOND));
        dues.push(asked.due);
    }
    // The next caller must not overtake the two waiters behind the one that gave up, nor start together with one.
    fleet.refund_due(&fleet.one, 1, dues[1]).await;
    assert_eq!(fleet.two.ask(1, 4 * SECOND - MICRO).await.take, not_before(4 * SECOND));
    fleet.refund_due(&fleet.two, 1, dues[3]).await;
    assert_eq!(fleet.two.ask(1, 3 * SECOND - MICRO).await.take, not_before(3 * SECOND), "the last place is free");
    fleet.refund_due(&fleet.two, 1, dues[2]).await;
    assert_eq!(fleet.two.ask(1, 9 * SECOND).await.take, after(SECOND), "so are all places behind the first");
}

pub async fn a_crowd_that_leaves_gives_all_its_places_back<B: Bed>() {
    const CROWD: u32 = 30;
    let orders: [fn(u32) -> u32; 3] = [|place| place, |place| CROWD - 1 - place, |place| place * 7 % CROWD];
    for order in orders {
        let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(3).burst(3)).await;
        fleet.one.ask(3, Duration::ZERO).await;
        let mut dues = Vec::new();
        for place in 0..CROWD {
            let replica = if place % 2 == 0 { &fleet.one } else { &fleet.two };
            dues.push(replica.ask(1, 60 * SECOND).await.due);
        }
        for place in (0..CROWD).map(order) {
            fleet.refund_due(&fleet.two, 1, dues[place as usize]).await;
        }
        assert_eq!(fleet.one.peek().await, Level { units: 0, price: 1_000_000 });
        assert_eq!(fleet.two.ask(1, SECOND).await.take, after(333_334 * MICRO), "the queue is empty");
    }
}

pub async fn a_refund_returns_only_what_has_not_been_refilled_since<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(100)).await;
    let first = fleet.one.ask(100, Duration::ZERO).await;
    fleet.bed.advance(SECOND).await;
    // The bucket is full again, so the first hundred, given back now, must not be there a second time.
    let second = fleet.two.ask(100, Duration::ZERO).await;
    assert_eq!(second.take, AT_ONCE);
    fleet.refund_due(&fleet.one, 100, first.due).await;
    assert_eq!(fleet.one.permits().await, 0);
    fleet.bed.advance(SECOND / 4).await;
    fleet.refund_due(&fleet.two, 100, second.due).await;
    assert_eq!(fleet.one.permits().await, 100, "25 were refilled, and 75 are returned");
}

pub async fn a_refund_never_overfills<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10)).await;
    fleet.one.ask(4, Duration::ZERO).await;
    for cost in [5, u32::MAX] {
        fleet.refund(&fleet.two, cost, Duration::ZERO).await;
        assert_eq!(fleet.one.peek().await, Level { units: 10 * 100_000, price: 100_000 });
    }
    // Time and a refund together do not overfill either.
    fleet.one.ask(10, Duration::ZERO).await;
    fleet.bed.advance(SECOND - MICRO).await;
    fleet.refund(&fleet.one, 10, Duration::ZERO).await;
    assert_eq!(fleet.two.permits().await, 10);
    fleet.bed.advance(SECOND).await;
    assert_eq!(fleet.two.permits().await, 10);
}

pub async fn a_peek_takes_nothing<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10)).await;
    fleet.one.ask(9, Duration::ZERO).await;
    for replica in [&fleet.one, &fleet.two, &fleet.two] {
        assert_eq!(replica.peek().await, Level { units: 100_000, price: 100_000 });
    }
    assert_eq!(fleet.two.take().await, AT_ONCE);
    // Frequent peeks must not lose the refill to rounding.
    for _ in 0..99 {
        fleet.bed.advance(1_001 * MICRO).await;
        fleet.one.peek().await;
    }
    assert_eq!(fleet.two.take().await, not_before((100_000 - 99 * 1_001) * MICRO));
}

pub async fn the_cached_level_is_that_of_the_last_call<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10)).await;
    let cached = |replica: &Replica<B>| {
        let level = replica.store.cached_level(&replica.bucket, replica.store.clock().now());
        level.map(Level::permits)
    };
    for left in [9, 8, 7] {
        fleet.one.take().await;
        assert_eq!(cached(&fleet.one), Some(left));
    }
    fleet.two.ask(5, Duration::ZERO).await;
    assert_eq!(cached(&fleet.two), Some(2));
    assert_eq!(fleet.two.permits().await, 2, "reading the cached level takes nothing");
}

/// A thousand permits a second and two hundred at once: a lease lasts 25 ms, and a block has up to twelve permits.
fn leased() -> RateLimitSpec {
    RateLimitSpec::per_second(1_000).burst(200).consistency(Consistency::Leased)
}

/// Lets both replicas call so often in each of some milliseconds. Returns the number of calls that were admitted in each.
async fn call_each_millisecond<B: Bed>(fleet: &Fleet<B>, millis: u64, calls: [u64; 2]) -> Vec<u64> {
    let mut admitted = Vec::new();
    for _ in 0..millis {
        let mut count = 0;
        for (replica, calls) in [&fleet.one, &fleet.two].into_iter().zip(calls) {
            for _ in 0..calls {
                count += u64::from(replica.take().await == AT_ONCE);
            }
        }
        admitted.push(count);
        fleet.bed.advance(1_000 * MICRO).await;
        fleet.bed.sync_all().await;
    }
    admitted
}

pub async fn a_leased_limit_admits_no_more_than_its_burst_and_its_rate<B: Bed>() {
    let fleet = Fleet::<B>::new(&leased()).await;
    // Demand of one, of both, of none, and then of both at once.
    let mut admitted = Vec::new();
    for (millis, calls) in [(60, [2, 0]), (60, [2, 2]), (300, [0, 0]), (60, [0, 3]), (400, [0, 0]), (40, [300, 300])] {
        admitted.extend(call_each_millisecond(&fleet, millis, calls).await);
    }
    for start in 0..admitted.len() {
        let mut sum = 0;
        for (length, count) in admitted[start..].iter().enumerate() {
            sum += count;
            assert!(sum <= 200 + length as u64, "{sum} in {length} ms from {start}");
        }
    }
    let at_the_end: u64 = admitted[admitted.len() - 40..].iter().sum();
    assert!(at_the_end >= 200, "{at_the_end} of the burst and 39 ms");
}

pub async fn leased_permits_that_are_not_called_for_come_back<B: Bed>() {
    let fleet = Fleet::<B>::new(&leased()).await;
    call_each_millisecond(&fleet, 60, [2, 0]).await;
    // No calls: within two halves of a lease the replica has given back what it held.
    call_each_millisecond(&fleet, 30, [0, 0]).await;
    let before = fleet.two.permits().await;
    fleet.bed.advance((200 - before) as u32 * 1_000 * MICRO).await;
    assert_eq!(fleet.two.permits().await, 200, "full after the time that the refill takes");
    assert_eq!(fleet.two.ask(200, Duration::ZERO).await.take, AT_ONCE);
}

pub async fn a_leased_permit_that_is_refunded_is_there_for_the_next_call<B: Bed>() {
    let fleet = Fleet::<B>::new(&leased()).await;
    call_each_millisecond(&fleet, 60, [2, 0]).await;
    let mut last = None;
    for _ in 0..1_000 {
        let asked = fleet.one.ask(1, Duration::ZERO).await;
        if asked.take != AT_ONCE {
            break;
        }
        last = Some(asked);
    }
    let last = last.expect("there were permits");
    assert_ne!(fleet.one.take().await, AT_ONCE);
    fleet.one.store.refund(&fleet.one.bucket, 1, last.due, last.source);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.one.take().await, AT_ONCE);
    assert_ne!(fleet.one.take().await, AT_ONCE);
}

pub async fn a_charge_takes_permits_that_are_there<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10)).await;
    fleet.charge(&fleet.one, 4).await;
    fleet.charge(&fleet.two, 1).await;
    fleet.charge(&fleet.two, 0).await;
    assert_eq!(fleet.two.peek().await, Level { units: 500_000, price: 100_000 });
    assert_eq!(fleet.two.ask(5, Duration::ZERO).await.take, AT_ONCE);
    assert_eq!(fleet.one.take().await, not_before(SECOND / 10));
}

pub async fn a_charge_beyond_the_level_is_a_debt_that_time_pays_off<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10)).await;
    fleet.charge(&fleet.one, 8).await;
    fleet.charge(&fleet.two, 7).await;
    assert_eq!(fleet.one.peek().await, Level { units: -500_000, price: 100_000 });
    assert_eq!(fleet.two.take().await, not_before(6 * SECOND / 10));
    fleet.bed.advance(6 * SECOND / 10 - MICRO).await;
    assert_eq!(fleet.one.take().await, not_before(MICRO));
    assert_eq!(
        fleet.one.ask(2, SECOND).await.take,
        after(100_001 * MICRO),
        "a caller that waits comes behind the debt"
    );
    fleet.bed.advance(100_001 * MICRO).await;
    assert_eq!(fleet.two.peek().await, Level { units: 0, price: 100_000 });
}

pub async fn a_charge_may_exceed_the_burst<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10)).await;
    fleet.charge(&fleet.one, 100).await;
    assert_eq!(fleet.two.peek().await, Level { units: -9_000_000, price: 100_000 });
    fleet.bed.advance(91 * SECOND / 10 - MICRO).await;
    assert_eq!(fleet.two.take().await, not_before(MICRO));
    fleet.bed.advance(MICRO).await;
    assert_eq!(fleet.two.take().await, AT_ONCE);
    let most = Fleet::<B>::new(&RateLimitSpec::new(1, 86_400 * SECOND).burst(2)).await;
    most.charge(&most.one, u32::MAX).await;
    assert_eq!(most.two.peek().await.units, -(1 << 52), "as much as can be counted");
}

pub async fn a_refund_pays_off_debt<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10)).await;
    let estimate = fleet.one.ask(5, Duration::ZERO).await;
    fleet.charge(&fleet.two, 20).await;
    fleet.bed.advance(SECOND / 10).await;
    fleet.refund_due(&fleet.one, 5, estimate.due).await;
    assert_eq!(
        fleet.two.peek().await.units,
        -1_000_000,
        "one of five was refilled since, and one of fifteen was paid off"
    );
    fleet.refund(&fleet.one, 12, Duration::ZERO).await;
    assert_eq!(fleet.two.ask(2, Duration::ZERO).await.take, AT_ONCE);
    // Behind a caller that waits, only time pays it off.
    fleet.charge(&fleet.two, 10).await;
    assert_eq!(fleet.two.ask(1, 2 * SECOND).await.take, after(11 * SECOND / 10));
    fleet.refund(&fleet.one, 5, Duration::ZERO).await;
    assert_eq!(fleet.one.peek().await.units, -1_100_000);
}

pub async fn a_charge_leaves_the_places_of_waiters_alone<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10).burst(1)).await;
    fleet.one.take().await;
    let mut dues = Vec::new();
    for place in 1..=3 {
        let asked = fleet.one.ask(1, SECOND).await;
        assert_eq!(asked.take, after(place * SECOND / 10));
        dues.push(asked.due);
    }
    fleet.charge(&fleet.two, 5).await;
    assert_eq!(fleet.one.peek().await.units, -800_000);
    fleet.refund_due(&fleet.one, 1, dues[0]).await;
    assert_eq!(fleet.one.peek().await.units, -800_000, "two wait behind it");
    fleet.refund_due(&fleet.two, 1, dues[2]).await;
    assert_eq!(fleet.one.peek().await.units, -700_000, "the last that waits");
    fleet.refund_due(&fleet.one, 1, dues[1]).await;
    assert_eq!(fleet.one.peek().await.units, -500_000, "the debt alone");
    assert_eq!(fleet.two.ask(1, SECOND).await.take, after(6 * SECOND / 10));
}

pub async fn another_spec_keeps_the_debt<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10)).await;
    let estimate = fleet.one.ask(5, Duration::ZERO).await;
    fleet.charge(&fleet.one, 20).await;
    fleet.retune(&RateLimitSpec::per_second(20)).await;
    assert_eq!(fleet.two.peek().await, Level { units: -15 * 50_000, price: 50_000 });
    fleet.refund_due(&fleet.one, 5, estimate.due).await;
    assert_eq!(fleet.two.peek().await, Level { units: -10 * 50_000, price: 50_000 });
}

pub async fn a_leased_limit_in_debt_leases_nothing<B: Bed>() {
    let fleet = Fleet::<B>::new(&leased()).await;
    call_each_millisecond(&fleet, 60, [2, 0]).await;
    fleet.charge(&fleet.two, 1_000).await;
    // What was leased before is spent within a lease.
    call_each_millisecond(&fleet, 30, [2, 1]).await;
    let admitted = call_each_millisecond(&fleet, 200, [2, 1]).await;
    assert_eq!(admitted.iter().sum::<u64>(), 0);
    fleet.bed.advance(SECOND).await;
    assert_eq!(fleet.one.take().await, AT_ONCE);
}

pub async fn a_charge_that_is_given_back_is_there_for_the_next_call<B: Bed>() {
    let fleet = Fleet::<B>::new(&RateLimitSpec::per_second(10)).await;
    fleet.charge(&fleet.one, 12).await;
    fleet.one.store.discharge(&fleet.one.bucket, 6);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.two.ask(4, Duration::ZERO).await.take, AT_ONCE);
    fleet.one.store.discharge(&fleet.one.bucket, 0);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.two.take().await, not_before(SECOND / 10));
}

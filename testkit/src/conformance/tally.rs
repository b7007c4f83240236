//! Conformance cases of `TallyStore`.

#![allow(missing_docs)] // the name of a case describes it

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::key::StateKey;
use phalanx_core::store::{Addition, Allowance, Counts, Store, TallyStore, TallyUse, Withdrawal};

use super::{MICRO, SECOND, advance_to_edge, keys_that_look_alike};
use crate::bed::Bed;

const WINDOW: Duration = Duration::from_secs(10);
const USES: [TallyUse; 3] = [TallyUse::Throttle, TallyUse::Retries, TallyUse::Hedges];
/// A mark for every ten calls.
const TENTH: Allowance = Allowance { per_call: 0.1, floor: 0.0 };

/// One tally, shared by two replicas.
struct Fleet<B: Bed> {
    bed: B,
    one: Replica<B>,
    two: Replica<B>,
}

struct Replica<B: Bed> {
    store: B::Store,
    tally: Arc<<B::Store as TallyStore>::Tally>,
}

impl<B: Bed> Fleet<B> {
    async fn new() -> Self {
        let bed = B::new().await;
        let key = StateKey::new("search", "eu");
        let replica = || Replica::new(&bed, &key, TallyUse::Retries);
        let (one, two) = (replica(), replica());
        advance_to_edge(&bed, WINDOW).await;
        Self { one, two, bed }
    }

    /// Returns the sums, which must be the same for both replicas.
    async fn sum(&self) -> Counts {
        self.one.watch();
        self.two.watch();
        self.bed.sync_all().await;
        let sum = self.one.sum();
        assert_eq!(self.two.sum(), sum);
        sum
    }
}

impl<B: Bed> Replica<B> {
    fn new(bed: &B, key: &StateKey, of: TallyUse) -> Self {
        let store = bed.store();
        Self { tally: store.tally(key, of, WINDOW), store }
    }

    fn add(&self, calls: i64, marks: i64) {
        let now = self.store.clock().now();
        self.store.add(&self.tally, now, Addition { at: now, calls, marks });
    }

    fn watch(&self) {
        self.store.watch(&self.tally, self.store.clock().now());
    }

    fn sum(&self) -> Counts {
        self.store.sum(&self.tally, self.store.clock().now())
    }

    async fn withdraw(&self, allowance: Allowance) -> Withdrawal {
        let withdrawal = self.store.withdraw(&self.tally, self.store.clock().now(), allowance).await;
        assert_eq!(withdrawal.source, B::SOURCE);
        withdrawal
    }

    /// Asks this many times and returns how often a mark is granted.
    async fn withdraw_all(&self, times: usize, allowance: Allowance) -> usize {
        let mut granted = 0;
        for _ in 0..times {
            granted += usize::from(self.withdraw(allowance).await.granted);
        }
        granted
    }
}

fn counts(calls: u64, marks: u64) -> Counts {
    Counts { calls, marks }
}

pub async fn a_new_tally_is_empty<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    assert_eq!(fleet.sum().await, counts(0, 0));
    assert!(!fleet.one.withdraw(TENTH).await.granted);
}

pub async fn the_same_key_is_the_same_tally<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    fleet.one.add(3, 1);
    fleet.two.add(4, 2);
    assert_eq!(fleet.sum().await, counts(7, 3));
    let latecomer = Replica::new(&fleet.bed, &StateKey::new("search", "eu"), TallyUse::Retries);
    latecomer.watch();
    fleet.bed.sync_all().await;
    assert_eq!(latecomer.sum(), counts(7, 3));
}

pub async fn different_keys_never_share_a_tally<B: Bed>() {
    let bed = B::new().await;
    let tallies = keys_that_look_alike().map(|key| Replica::new(&bed, &key, TallyUse::Throttle));
    for (i, tally) in tallies.iter().enumerate() {
        tally.watch();
        bed.sync_all().await;
        assert_eq!(tally.sum(), counts(0, 0));
        tally.add(i as i64 + 1, 0);
    }
    bed.sync_all().await;
    for (i, tally) in tallies.iter().enumerate() {
        assert_eq!(tally.sum(), counts(i as u64 + 1, 0));
    }
}

pub async fn different_uses_never_share_a_tally<B: Bed>() {
    let bed = B::new().await;
    let key = StateKey::new("search", "eu");
    let tallies = USES.map(|of| Replica::new(&bed, &key, of));
    for (i, tally) in tallies.iter().enumerate() {
        tally.watch();
        tally.add(i as i64 + 1, 1);
    }
    bed.sync_all().await;
    for (i, tally) in tallies.iter().enumerate() {
        assert_eq!(tally.sum(), counts(i as u64 + 1, 1));
    }
}

pub async fn another_window_starts_the_tally_over<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    fleet.one.add(10, 0);
    assert_eq!(fleet.sum().await, counts(10, 0));
    for replica in [&fleet.one, &fleet.two] {
        replica.store.tally(&StateKey::new("search", "eu"), TallyUse::Retries, 2 * WINDOW);
    }
    assert_eq!(fleet.sum().await, counts(0, 0));
    fleet.two.add(3, 0);
    fleet.bed.advance(WINDOW).await;
    assert_eq!(fleet.sum().await, counts(3, 0));
}

pub async fn what_was_added_counts_for_one_window<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    fleet.one.add(5, 2);
    fleet.bed.sync_all().await;
    fleet.bed.advance(SECOND).await;
    fleet.two.add(7, 0);
    assert_eq!(fleet.sum().await, counts(12, 2));
    fleet.bed.advance(WINDOW - SECOND - MICRO).await;
    assert_eq!(fleet.sum().await, counts(12, 2));
    fleet.bed.advance(MICRO).await;
    assert_eq!(fleet.sum().await, counts(7, 0), "the first slice has left the window");
    fleet.bed.advance(SECOND).await;
    assert_eq!(fleet.sum().await, counts(0, 0));
}

pub async fn what_is_taken_back_was_never_counted<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    let began = fleet.bed.now();
    fleet.one.add(5, 1);
    fleet.bed.sync_all().await;
    fleet.bed.advance(3 * SECOND).await;
    fleet.one.add(2, 0);
    let (now, taken_back) = (fleet.one.store.clock().now(), Addition { at: began, calls: -2, marks: -1 });
    fleet.one.store.add(&fleet.one.tally, now, taken_back);
    assert_eq!(fleet.sum().await, counts(5, 0));
    fleet.bed.advance(WINDOW - 3 * SECOND).await;
    assert_eq!(fleet.sum().await, counts(2, 0), "it was taken back from its own slice");
    let (now, taken_back) = (fleet.one.store.clock().now(), Addition { at: began, calls: -2, marks: 0 });
    fleet.one.store.add(&fleet.one.tally, now, taken_back);
    assert_eq!(fleet.sum().await, counts(2, 0), "a slice that has left the window is not touched");
}

pub async fn a_watched_tally_is_the_sum_of_all_replicas<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    fleet.one.add(100, 90);
    fleet.two.watch();
    fleet.two.add(1, 0);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.two.sum(), counts(101, 90));
    fleet.two.add(2, 1);
    assert_eq!(fleet.two.sum(), counts(103, 91), "what was not sent yet counts too");
    fleet.bed.advance(WINDOW - MICRO).await;
    assert_eq!(fleet.two.sum(), counts(103, 91));
    fleet.bed.advance(MICRO).await;
    assert_eq!(fleet.two.sum(), counts(0, 0), "the window slides without a request");
}

pub async fn marks_never_exceed_their_share_of_the_calls_of_all_replicas<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    fleet.one.add(99, 0);
    fleet.two.add(100, 0);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.one.withdraw_all(12, TENTH).await, 12, "also what the other leaves");
    assert_eq!(fleet.two.withdraw_all(12, TENTH).await, 7);
    assert_eq!(fleet.one.withdraw_all(3, TENTH).await, 0);
    fleet.two.add(1, 0);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.one.withdraw_all(3, TENTH).await, 1);
    assert_eq!(fleet.sum().await, counts(200, 20));
}

pub async fn a_minimum_is_always_allowed<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    let allowance = Allowance { per_call: 0.0, floor: 3.0 };
    assert_eq!(fleet.one.withdraw_all(2, allowance).await, 2);
    assert_eq!(fleet.two.withdraw_all(2, allowance).await, 1, "one minimum for the fleet");
    assert_eq!(fleet.sum().await, counts(0, 3));
}

pub async fn a_rejected_withdrawal_takes_nothing<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    fleet.one.add(9, 0);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.one.withdraw_all(20, TENTH).await, 0);
    fleet.two.add(1, 0);
    fleet.bed.sync_all().await;
    assert!(fleet.one.withdraw(TENTH).await.granted);
    assert_eq!(fleet.sum().await, counts(10, 1));
}

pub async fn a_mark_counts_for_one_window<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    let allowance = Allowance { per_call: 0.0, floor: 1.0 };
    assert!(fleet.one.withdraw(allowance).await.granted);
    fleet.bed.advance(WINDOW - MICRO).await;
    assert!(!fleet.two.withdraw(allowance).await.granted);
    fleet.bed.advance(MICRO).await;
    assert!(fleet.two.withdraw(allowance).await.granted);
}

pub async fn a_mark_that_is_put_back_is_there_for_the_next_call<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    let allowance = Allowance { per_call: 0.0, floor: 2.0 };
    let mark = fleet.one.withdraw(allowance).await;
    assert!(mark.granted && fleet.two.withdraw(allowance).await.granted);
    let rejected = fleet.two.withdraw(allowance).await;
    assert!(!rejected.granted);
    fleet.two.store.put_back(&fleet.two.tally, rejected); // changes nothing
    fleet.bed.advance(3 * SECOND).await;
    fleet.one.store.put_back(&fleet.one.tally, mark);
    assert_eq!(fleet.sum().await, counts(0, 1));
    assert!(fleet.two.withdraw(allowance).await.granted);
    assert!(!fleet.one.withdraw(allowance).await.granted);
    fleet.bed.advance(WINDOW - 3 * SECOND).await;
    assert_eq!(fleet.sum().await, counts(0, 1), "it was put back into its own slice");
}

pub async fn a_mark_of_an_earlier_window_is_not_put_back<B: Bed>() {
    let fleet = Fleet::<B>::new().await;
    let allowance = Allowance { per_call: 0.0, floor: 1.0 };
    let mark = fleet.one.withdraw(allowance).await;
    fleet.bed.advance(WINDOW).await;
    assert!(fleet.two.withdraw(allowance).await.granted);
    fleet.one.store.put_back(&fleet.one.tally, mark);
    assert_eq!(fleet.sum().await, counts(0, 1));
    assert!(!fleet.one.withdraw(allowance).await.granted);
}

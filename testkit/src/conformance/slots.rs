//! Conformance cases of `SlotStore`.

#![allow(missing_docs)] // the name of a case describes it

use std::sync::Arc;

use phalanx_core::key::StateKey;
use phalanx_core::rejection::Source;
use phalanx_core::store::{SlotReply, SlotStore, Store};

use super::{SECOND, keys_that_look_alike};
use crate::bed::Bed;

/// The slots of one key, shared by two replicas.
struct Fleet<B: Bed> {
    bed: B,
    one: Replica<B>,
    two: Replica<B>,
}

struct Replica<B: Bed> {
    store: B::Store,
    slots: Arc<<B::Store as SlotStore>::Slots>,
}

impl<B: Bed> Fleet<B> {
    async fn new(cap: u32) -> Self {
        let bed = B::new().await;
        let replica = || Replica::new(&bed, &key(), cap);
        let (one, two) = (replica(), replica());
        Self { one, two, bed }
    }
}

impl<B: Bed> Replica<B> {
    fn new(bed: &B, key: &StateKey, cap: u32) -> Self {
        let store = bed.store();
        Self { slots: store.slots(key, cap), store }
    }

    async fn take(&self) -> bool {
        let reply = self.store.take_slot(&self.slots, self.store.clock().now()).await;
        assert_ne!(reply.source, Source::Degraded);
        reply.is_granted
    }

    /// Asks this many times and returns how often a slot is granted.
    async fn take_all(&self, times: usize) -> usize {
        let mut granted = 0;
        for _ in 0..times {
            granted += usize::from(self.take().await);
        }
        granted
    }

    fn give_back(&self, slots: usize) {
        (0..slots).for_each(|_| self.store.return_slot(&self.slots));
    }
}

fn key() -> StateKey {
    StateKey::new("search", "eu")
}

pub async fn the_same_key_is_the_same_slots<B: Bed>() {
    let fleet = Fleet::<B>::new(1).await;
    assert!(fleet.one.take().await);
    assert!(!fleet.two.take().await);
    let latecomer = Replica::new(&fleet.bed, &key(), 1);
    assert!(!latecomer.take().await);
}

pub async fn different_keys_never_share_slots<B: Bed>() {
    let bed = B::new().await;
    let all = keys_that_look_alike().map(|key| Replica::new(&bed, &key, 1));
    for slots in &all {
        assert!(slots.take().await);
    }
    for slots in &all {
        assert!(!slots.take().await);
    }
}

pub async fn another_cap_keeps_the_calls_in_flight<B: Bed>() {
    let fleet = Fleet::<B>::new(3).await;
    assert_eq!(fleet.one.take_all(3).await, 3);
    for replica in [&fleet.one, &fleet.two] {
        replica.store.slots(&key(), 2);
    }
    fleet.one.give_back(1);
    fleet.bed.sync_all().await;
    assert!(!fleet.two.take().await, "two calls are in flight");
    fleet.one.give_back(1);
    fleet.bed.sync_all().await;
    assert!(fleet.two.take().await);
    assert!(!fleet.two.take().await);
    for replica in [&fleet.one, &fleet.two] {
        replica.store.slots(&key(), 4);
    }
    assert_eq!(fleet.two.take_all(3).await, 2);
}

pub async fn a_slot_that_was_used_is_taken_again_without_a_wait<B: Bed>() {
    let fleet = Fleet::<B>::new(4).await;
    let Replica { store, slots } = &fleet.one;
    assert!(fleet.one.take().await);
    fleet.one.give_back(1);
    let again = store.take_slot_now(slots, store.clock().now());
    assert!(matches!(again, Some(SlotReply { is_granted: true, source }) if source != Source::Degraded), "{again:?}");
}

pub async fn calls_in_flight_never_exceed_the_cap<B: Bed>() {
    let fleet = Fleet::<B>::new(5).await;
    let mut granted = 0;
    for _ in 0..5 {
        granted += fleet.one.take_all(1).await + fleet.two.take_all(1).await;
    }
    assert_eq!(granted, 5);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.one.take_all(2).await + fleet.two.take_all(2).await, 0);
}

pub async fn a_full_fleet_rejects_and_takes_nothing<B: Bed>() {
    let fleet = Fleet::<B>::new(2).await;
    assert_eq!(fleet.one.take_all(2).await, 2);
    assert_eq!(fleet.two.take_all(3).await, 0);
    fleet.one.give_back(2);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.two.take_all(3).await, 2);
    assert!(!fleet.one.take().await);
}

pub async fn slots_that_are_not_used_are_there_for_the_others<B: Bed>() {
    let fleet = Fleet::<B>::new(4).await;
    assert_eq!(fleet.one.take_all(4).await, 4);
    fleet.one.give_back(3);
    fleet.bed.sync_all().await;
    assert_eq!(fleet.two.take_all(4).await, 3);
}

pub async fn a_slot_is_held_for_as_long_as_its_call_takes<B: Bed>() {
    let fleet = Fleet::<B>::new(1).await;
    assert!(fleet.one.take().await);
    for _ in 0..6 {
        fleet.bed.advance(SECOND).await;
        fleet.bed.sync_all().await;
        assert!(!fleet.two.take().await);
    }
    fleet.one.give_back(1);
    fleet.bed.sync_all().await;
    assert!(fleet.two.take().await);
}

pub async fn a_slot_that_is_returned_is_there_for_the_next_call<B: Bed>() {
    let fleet = Fleet::<B>::new(1).await;
    for _ in 0..3 {
        for replica in [&fleet.one, &fleet.two] {
            assert!(replica.take().await);
            assert!(!replica.take().await);
            replica.give_back(1);
            fleet.bed.sync_all().await;
        }
    }
}

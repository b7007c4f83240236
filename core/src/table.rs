//! A bounded table of living state, by key.
//!
//! When it is full, a newcomer takes the place of somebody who loses nothing (state as good as new), else of somebody
//! not seen for a while; never of state that is in use or that must not be forgotten (an open circuit). If nobody can
//! go, the newcomer gets no place ([`Table::find_or_make`]), or one beyond the capacity ([`Table::find_or_add`]) for
//! tables whose users are bounded themselves; it shrinks back as soon as somebody can go.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use parking_lot::RwLock;

use crate::key::{BorrowedKey, StateKey};

/// What would be lost with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retention {
    /// Nothing: it is as good as new.
    Disposable,
    /// Something that will be learned again.
    Relearnable,
    /// It must not be forgotten.
    Pinned,
}

/// State that can be put into a [`Table`].
pub trait Entry {
    /// What would be lost with it.
    fn retention(&self) -> Retention;
}

/// The table.
#[derive(Debug)]
pub struct Table<V> {
    hasher: RandomState,
    shard_capacity: usize,
    shards: Box<[RwLock<Shard<V>>]>,
}

type Shard<V> = HashMap<StateKey, Place<V>, RandomState>;

#[derive(Debug)]
struct Place<V> {
    value: Arc<V>,
    /// Seen since the last search for a victim.
    seen: AtomicBool,
}

impl hashbrown::Equivalent<StateKey> for BorrowedKey<'_> {
    fn equivalent(&self, key: &StateKey) -> bool {
        *self == key.borrowed()
    }
}

impl<V: Entry> Table<V> {
    /// A table for at most `capacity` keys.
    pub fn new(capacity: usize) -> Self {
        let shards = if capacity < 256 { 1 } else { 16 };
        let hasher = RandomState::new();
        let shard = || RwLock::new(HashMap::with_hasher(hasher.clone()));
        Self { shard_capacity: (capacity / shards).max(1), shards: (0..shards).map(|_| shard()).collect(), hasher }
    }

    /// The state of a key, if it has a place.
    pub fn get(&self, key: &StateKey) -> Option<Arc<V>> {
        self.find(key.borrowed())
    }

    pub(crate) fn find(&self, key: BorrowedKey<'_>) -> Option<Arc<V>> {
        let shard = self.shard(key).read();
        let place = shard.get(&key)?;
        if !place.seen.load(Ordering::Relaxed) {
            place.seen.store(true, Ordering::Relaxed);
        }
        Some(place.value.clone())
    }

    /// The state of a key, made if it has none yet; none if the table is full and nobody can go.
    pub fn find_or_make(&self, key: &StateKey, make: impl FnOnce() -> V) -> Option<Arc<V>> {
        self.find_or(key, make, false)
    }

    /// The state of a key, made if it has none yet, also beyond the capacity if nobody can go.
    pub fn find_or_add(&self, key: &StateKey, make: impl Fn() -> V) -> Arc<V> {
        self.find_or(key, &make, true).unwrap_or_else(|| Arc::new(make()))
    }

    fn find_or(&self, key: &StateKey, make: impl FnOnce() -> V, beyond: bool) -> Option<Arc<V>> {
        if let Some(found) = self.get(key) {
            return Some(found);
        }
        let mut shard = self.shard(key.borrowed()).write();
        if let Some(place) = shard.get(key) {
            return Some(place.value.clone());
        }
        while shard.len() >= self.shard_capacity {
            match victim(&shard) {
                Some(victim) => shard.remove(&victim),
                None if beyond => break,
                None => return None,
            };
        }
        let value = Arc::new(make());
        let place = Place { value: value.clone(), seen: AtomicBool::new(true) };
        shard.insert(key.clone(), place);
        Some(value)
    }

    /// Everything in it.
    pub fn values(&self) -> Vec<Arc<V>> {
        let of = |shard: &RwLock<Shard<V>>| {
            let shard = shard.read();
            shard.values().map(|place| place.value.clone()).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// How many keys have a place.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    /// Whether nobody has.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, key: BorrowedKey<'_>) -> &RwLock<Shard<V>> {
        if let [only] = &*self.shards {
            return only;
        }
        // The high bits: the low ones choose the bucket inside the shard.
        let hash = self.hasher.hash_one(key);
        &self.shards[(hash >> 32) as usize % self.shards.len()]
    }
}

/// The one whose loss costs least. Everybody else has to be seen again before the next search.
fn victim<V: Entry>(shard: &Shard<V>) -> Option<StateKey> {
    let free = shard.iter().filter(|(_, place)| Arc::strong_count(&place.value) == 1);
    let ranked = free.map(|(key, place)| {
        let seen = place.seen.swap(false, Ordering::Relaxed);
        ((place.value.retention(), seen), key)
    });
    let (rank, key) = ranked.min_by_key(|(rank, _)| *rank)?;
    (rank.0 < Retention::Pinned).then(|| key.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct State(Retention);

    impl Entry for State {
        fn retention(&self) -> Retention {
            self.0
        }
    }

    fn key(route: &str) -> StateKey {
        StateKey::new("p", route)
    }

    fn put(table: &Table<State>, route: &str, retention: Retention) -> Option<Arc<State>> {
        table.find_or_make(&key(route), || State(retention))
    }

    #[test]
    fn it_never_holds_more_than_its_capacity() {
        let table = Table::new(1_000);
        for i in 0..5_000 {
            put(&table, &i.to_string(), Retention::Relearnable);
        }
        assert!(table.len() <= 1_000);
    }

    #[test]
    fn an_open_circuit_or_a_key_in_use_never_goes_for_an_idle_one() {
        let table = Table::new(3);
        put(&table, "open", Retention::Pinned);
        let _in_use = put(&table, "used", Retention::Disposable);
        put(&table, "idle", Retention::Relearnable);
        put(&table, "new", Retention::Pinned);
        assert!(table.get(&key("open")).is_some() && table.get(&key("used")).is_some());
        assert!(table.get(&key("idle")).is_none());
        assert!(put(&table, "late", Retention::Disposable).is_none(), "nobody can go");
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn who_loses_nothing_goes_first_then_who_was_not_seen() {
        let table = Table::new(3);
        put(&table, "a", Retention::Relearnable);
        put(&table, "b", Retention::Relearnable);
        put(&table, "fresh", Retention::Disposable);
        put(&table, "c", Retention::Relearnable);
        assert!(table.get(&key("fresh")).is_none());
        table.get(&key("a"));
        table.get(&key("c"));
        put(&table, "d", Retention::Relearnable);
        assert!(table.get(&key("b")).is_none(), "a and c were seen since");
    }
}

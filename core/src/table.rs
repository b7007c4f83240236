//! A bounded table of state by key.
//!
//! A new key in a full table takes the room of an entry that nothing uses: first of one that is as good as new, then of
//! one whose state is relearned within seconds, least recently used first. An entry in use is never removed, and neither
//! is one that must not be forgotten: a circuit that is open, a bucket that is not full. If no entry can be removed,
//! [`Table::find_or_make`] returns none. [`Table::find_or_add`] adds the entry beyond the capacity instead; it is for
//! tables whose users are bounded elsewhere.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use parking_lot::RwLock;

use crate::key::{BorrowedKey, StateKey};

/// A search looks at every entry of a shard. After one that found nothing to remove, this fraction of the shard's size is
/// the number of new keys that are turned down without another search.
const SKIPPED_FRACTION: usize = 16;

/// Whether an entry may be removed to make room for a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retention {
    /// Yes: it is as good as new, so nothing is lost.
    Disposable,
    /// Yes, if no entry is disposable: its state is measured again within seconds.
    Relearnable,
    /// No: a new entry would undo a decision, as that of an open circuit or a drained bucket.
    Pinned,
}

/// State that can be kept in a [`Table`].
pub trait Entry {
    /// Returns whether the state may be forgotten.
    fn retention(&self) -> Retention;
}

/// The table.
#[derive(Debug)]
pub struct Table<V> {
    hasher: RandomState,
    shard_capacity: usize,
    shards: Box<[RwLock<Shard<V>>]>,
}

#[derive(Debug)]
struct Shard<V> {
    entries: HashMap<StateKey, TableEntry<V>, RandomState>,
    /// New keys that are turned down before the next search.
    skip: usize,
}

#[derive(Debug)]
struct TableEntry<V> {
    value: Arc<V>,
    /// Used since the last search for an entry to remove.
    used: AtomicBool,
}

impl hashbrown::Equivalent<StateKey> for BorrowedKey<'_> {
    fn equivalent(&self, key: &StateKey) -> bool {
        *self == key.borrowed()
    }
}

impl<V: Entry> Table<V> {
    /// Creates a table for at most `capacity` keys.
    pub fn new(capacity: usize) -> Self {
        let shards = if capacity < 256 { 1 } else { 16 };
        let hasher = RandomState::new();
        let shard = || RwLock::new(Shard { entries: HashMap::with_hasher(hasher.clone()), skip: 0 });
        Self { shard_capacity: (capacity / shards).max(1), shards: (0..shards).map(|_| shard()).collect(), hasher }
    }

    /// Returns the state of a key, if the table holds it.
    pub fn get(&self, key: &StateKey) -> Option<Arc<V>> {
        self.find(key.borrowed())
    }

    pub(crate) fn find(&self, key: BorrowedKey<'_>) -> Option<Arc<V>> {
        let shard = self.shard(key).read();
        let entry = shard.entries.get(&key)?;
        if !entry.used.load(Ordering::Relaxed) {
            entry.used.store(true, Ordering::Relaxed);
        }
        Some(entry.value.clone())
    }

    /// Returns the state of a key and makes it if there is none; none if the table is full and no entry can be removed.
    pub fn find_or_make(&self, key: &StateKey, make: impl FnOnce() -> V) -> Option<Arc<V>> {
        if let Some(found) = self.get(key) {
            return Some(found);
        }
        let mut shard = self.shard(key.borrowed()).write();
        if let Some(entry) = shard.entries.get(key) {
            return Some(entry.value.clone());
        }
        while shard.entries.len() >= self.shard_capacity {
            if shard.skip > 0 {
                shard.skip -= 1;
                return None;
            }
            let Some(victim) = shard.victim(Retention::Relearnable) else {
                shard.skip = shard.entries.len() / SKIPPED_FRACTION;
                return None;
            };
            shard.entries.remove(&victim);
        }
        Some(shard.add(key, make()))
    }

    /// Returns the state of a key and makes it if there is none, beyond the capacity if no entry can be removed.
    ///
    /// Entries in use are as many as their users. Pinned entries that nothing uses are kept up to twice the capacity, so
    /// that the table cannot grow without bound.
    pub fn find_or_add(&self, key: &StateKey, make: impl FnOnce() -> V) -> Arc<V> {
        if let Some(found) = self.get(key) {
            return found;
        }
        let mut shard = self.shard(key.borrowed()).write();
        if let Some(entry) = shard.entries.get(key) {
            return entry.value.clone();
        }
        while shard.entries.len() >= self.shard_capacity {
            let overfull = shard.entries.len() >= 2 * self.shard_capacity;
            let most = if overfull { Retention::Pinned } else { Retention::Relearnable };
            let Some(victim) = shard.victim(most) else { break };
            shard.entries.remove(&victim);
        }
        shard.add(key, make())
    }

    /// Returns the state of every key.
    pub fn values(&self) -> Vec<Arc<V>> {
        let of = |shard: &RwLock<Shard<V>>| {
            let shard = shard.read();
            shard.entries.values().map(|entry| entry.value.clone()).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().entries.len()).sum()
    }

    /// Returns whether there are no keys.
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

impl<V: Entry> Shard<V> {
    fn add(&mut self, key: &StateKey, value: V) -> Arc<V> {
        let value = Arc::new(value);
        self.entries.insert(key.clone(), TableEntry { value: value.clone(), used: AtomicBool::new(true) });
        value
    }

    /// Returns the unused entry whose loss costs least, if that is at most `most`. Starts a new round of `used` marks.
    fn victim(&self, most: Retention) -> Option<StateKey> {
        let unused = self.entries.iter().filter(|(_, entry)| Arc::strong_count(&entry.value) == 1);
        let ranked = unused.map(|(key, entry)| {
            let used = entry.used.swap(false, Ordering::Relaxed);
            ((entry.value.retention(), used), key)
        });
        let (rank, key) = ranked.min_by_key(|(rank, _)| *rank)?;
        (rank.0 <= most).then(|| key.clone())
    }
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
        assert!(table.is_empty());
        for i in 0..5_000 {
            put(&table, &i.to_string(), Retention::Relearnable);
        }
        assert!(table.len() <= 1_000 && !table.is_empty());
    }

    #[test]
    fn a_pinned_entry_or_one_in_use_is_never_removed_for_a_new_key() {
        let table = Table::new(3);
        put(&table, "open", Retention::Pinned);
        let _in_use = put(&table, "used", Retention::Disposable);
        put(&table, "idle", Retention::Relearnable);
        put(&table, "new", Retention::Pinned);
        assert!(table.get(&key("open")).is_some() && table.get(&key("used")).is_some());
        assert!(table.get(&key("idle")).is_none());
        assert!(put(&table, "late", Retention::Disposable).is_none(), "no entry can be removed");
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn a_disposable_entry_is_removed_first_then_the_least_recently_used() {
        let table = Table::new(3);
        put(&table, "a", Retention::Relearnable);
        put(&table, "b", Retention::Relearnable);
        put(&table, "fresh", Retention::Disposable);
        put(&table, "c", Retention::Relearnable);
        assert!(table.get(&key("fresh")).is_none());
        table.get(&key("a"));
        table.get(&key("c"));
        put(&table, "d", Retention::Relearnable);
        assert!(table.get(&key("b")).is_none(), "a and c were used since");
    }

    #[test]
    fn a_search_that_found_nothing_is_repeated_only_after_some_more_new_keys() {
        use std::sync::atomic::AtomicUsize;

        static ASKED: AtomicUsize = AtomicUsize::new(0);
        struct Counted;
        impl Entry for Counted {
            fn retention(&self) -> Retention {
                ASKED.fetch_add(1, Ordering::Relaxed);
                Retention::Pinned
            }
        }
        let table = Table::new(160);
        for i in 0..160 + 110 {
            table.find_or_make(&key(&i.to_string()), || Counted);
        }
        assert_eq!((table.len(), ASKED.load(Ordering::Relaxed)), (160, 10 * 160), "one search for eleven new keys");
    }

    #[test]
    fn a_table_that_may_outgrow_its_capacity_still_does_not_grow_without_bound() {
        let table = Table::new(10);
        let add = |i: u32| table.find_or_add(&key(&i.to_string()), || State(Retention::Pinned));
        let in_use: Vec<_> = (0..30).map(add).collect();
        assert_eq!(table.len(), 30, "entries in use are as many as their users");
        drop(in_use);
        (30..1_000).for_each(|i| drop(add(i)));
        assert_eq!(table.len(), 20, "pinned entries that nothing uses: twice the capacity");
        table.find_or_add(&key("x"), || State(Retention::Disposable));
        assert_eq!(table.len(), 20);
    }
}

//! A cache of the last good value of each key, bounded in number and age, as a fallback.

use std::future::{Future, ready};
use std::hash::Hash;
use std::time::Duration;

use lru::LruCache;
use parking_lot::Mutex;

use super::{Fallback, Served};
use crate::clock::{Clock, Time};
use crate::error::Error;

/// A cache of the last good value of each key.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx::{Clock, StaleCache};
///
/// let clock = Clock::manual();
/// let cache = StaleCache::with_clock(1_000, Duration::from_secs(60), clock.clone());
/// cache.put("eu", 7);
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(cache.get(&"eu"), Some((7, Duration::from_secs(60))));
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(cache.get(&"eu"), None, "too old");
/// ```
#[derive(Debug)]
pub struct StaleCache<K: Hash + Eq, V> {
    clock: Clock,
    max_age: Duration,
    capacity: usize,
    values: Mutex<LruCache<K, (Time, V)>>,
}

impl<K: Hash + Eq, V: Clone> StaleCache<K, V> {
    /// Creates a cache of at most `capacity` values (at least one), none older than `max_age`.
    pub fn new(capacity: usize, max_age: Duration) -> Self {
        Self::with_clock(capacity, max_age, Clock::detect())
    }

    /// Creates a cache on another clock.
    pub fn with_clock(capacity: usize, max_age: Duration, clock: Clock) -> Self {
        // Unbounded, because a bounded one allocates its whole capacity at once.
        Self { clock, max_age, capacity: capacity.max(1), values: Mutex::new(LruCache::unbounded()) }
    }

    /// Stores a value. A full cache drops the least recently used key.
    pub fn put(&self, key: K, value: V) {
        let mut values = self.values.lock();
        values.put(key, (self.clock.now(), value));
        if values.len() > self.capacity {
            values.pop_lru();
        }
    }

    /// Returns the last good value and its age, unless it is too old.
    pub fn get(&self, key: &K) -> Option<(V, Duration)> {
        let mut values = self.values.lock();
        let (kept_at, value) = values.get(key)?;
        let age = self.clock.now().since(*kept_at);
        if age > self.max_age {
            values.pop(key);
            return None;
        }
        Some((value.clone(), age))
    }

    /// Returns a fallback for one call: a successful answer is stored under `key`, and a failure is answered from there.
    pub const fn at(&self, key: K) -> Stale<'_, K, V> {
        Stale { cache: self, key }
    }
}

/// A [`StaleCache`] at one key.
#[derive(Debug)]
pub struct Stale<'a, K: Hash + Eq, V> {
    cache: &'a StaleCache<K, V>,
    key: K,
}

impl<K: Hash + Eq + Clone, V: Clone, E> Fallback<V, E> for Stale<'_, K, V> {
    fn answer(&self, _: Option<&Error<E>>) -> impl Future<Output = Option<Served<V>>> {
        let kept = self.cache.get(&self.key);
        ready(kept.map(|(value, age)| Served::stale(value, age)))
    }

    fn remember(&self, value: &V) {
        self.cache.put(self.key.clone(), value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_served_with_its_age_until_it_is_too_old() {
        let clock = Clock::manual();
        let cache = StaleCache::with_clock(2, Duration::from_secs(60), clock.clone());
        cache.put("eu", 7);
        clock.advance(Duration::from_secs(60));
        assert_eq!(cache.get(&"eu"), Some((7, Duration::from_secs(60))));
        clock.advance(Duration::from_micros(1));
        assert_eq!(cache.get(&"eu"), None);
    }

    #[test]
    fn the_largest_capacity_allocates_nothing_until_it_is_used() {
        let cache = StaleCache::with_clock(usize::MAX, Duration::from_secs(60), Clock::manual());
        cache.put(1, "a");
        assert!(cache.get(&1).is_some());
    }

    #[test]
    fn it_is_bounded_and_drops_the_least_recently_used_key() {
        let cache = StaleCache::with_clock(2, Duration::from_secs(60), Clock::manual());
        cache.put(1, "a");
        cache.put(2, "b");
        cache.get(&1);
        cache.put(3, "c");
        assert!(cache.get(&2).is_none() && cache.get(&1).is_some());
    }
}

//! The keys that occur most often among any number of keys, in a bounded number of counters: the space-saving algorithm.
//!
//! A key without a counter takes over the smallest one, with its count: so no key that occurred more often than the total ÷
//! counters is missing, and each count is too high by at most what was taken over (Metwally, Agrawal and El Abbadi, "Efficient
//! computation of frequent and top-k elements in data streams", 2005).

use std::sync::Arc;

use parking_lot::Mutex;

use crate::key::StateKey;

/// Keys that are counted.
const COUNTERS: usize = 64;

/// A key and how often it occurred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    /// The policy and the route.
    pub key: Arc<StateKey>,
    /// How often at most.
    pub count: u64,
    /// How much less it may have been.
    pub overcount: u64,
}

/// Counts keys.
#[derive(Debug, Default)]
pub(crate) struct TopKeys(Mutex<Vec<TopKey>>);

impl TopKeys {
    /// Counts a key. While another thread counts one, it may be left out: callers do not wait for statistics.
    #[cold]
    pub(crate) fn count(&self, key: &Arc<StateKey>) {
        let Some(mut counters) = self.0.try_lock() else { return };
        let found = counters.iter_mut().find(|counter| Arc::ptr_eq(&counter.key, key) || counter.key == *key);
        if let Some(counter) = found {
            counter.count = counter.count.saturating_add(1);
        } else if counters.len() < COUNTERS {
            counters.push(TopKey { key: key.clone(), count: 1, overcount: 0 });
        } else if let Some(least) = counters.iter_mut().min_by_key(|counter| counter.count) {
            *least = TopKey { key: key.clone(), count: least.count.saturating_add(1), overcount: least.count };
        }
    }

    /// Returns up to `most` keys, the most frequent first.
    pub(crate) fn top(&self, most: usize) -> Vec<TopKey> {
        let mut top = self.0.lock().clone();
        let name = |top: &TopKey| (top.key.policy().to_owned(), top.key.route().map(ToOwned::to_owned));
        top.sort_by_cached_key(|top| (std::cmp::Reverse(top.count), name(top)));
        top.truncate(most);
        top
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(route: u32) -> Arc<StateKey> {
        Arc::new(StateKey::new("p", &route.to_string()))
    }

    #[test]
    fn the_most_frequent_keys_come_first_with_their_counts() {
        let keys = TopKeys::default();
        for route in 0..10 {
            for _ in 0..=route {
                keys.count(&key(route));
            }
        }
        let top: Vec<_> = keys.top(3).iter().map(|top| (top.key.route().unwrap().to_owned(), top.count)).collect();
        assert_eq!(top, [("9".to_owned(), 10), ("8".to_owned(), 9), ("7".to_owned(), 8)]);
        assert_eq!(keys.top(100).len(), 10);
    }

    #[test]
    fn no_frequent_key_is_missing_among_many_and_no_count_is_too_low() {
        let keys = TopKeys::default();
        let frequent = key(0);
        let mut total = 0;
        for rare in 1..20_000_u32 {
            keys.count(&key(rare));
            total += 1;
            if rare % 20 == 0 {
                keys.count(&frequent);
                total += 1;
            }
        }
        let top = keys.top(COUNTERS);
        assert_eq!(top.len(), COUNTERS);
        let found = top.iter().find(|top| top.key == frequent).unwrap();
        assert!(found.count >= 999 && found.count - found.overcount <= 999, "{found:?}");
        let sum: u64 = top.iter().map(|top| top.count).sum();
        assert_eq!(sum, total, "the counters share the total");
    }
}

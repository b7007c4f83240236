//! What the edge ignored, changed or cut off, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often the edge did something a client may wonder about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EdgeCounts {
    /// Header values that could not be read, and were ignored.
    pub garbled: u64,
    /// Deadlines ignored because only a wrong clock explains them.
    pub skewed: u64,
    /// Deadlines shortened to the server's longest, or raised to its shortest.
    pub clamped: u64,
    /// Requests answered 504 because no time was left when they came.
    pub expired: u64,
    /// Requests answered 504 because the handler did not end in time.
    pub cut_off: u64,
    /// Criticalities that were not raised, because the peer is not trusted.
    pub upgrades_rejected: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) garbled: Counter,
    pub(crate) skewed: Counter,
    pub(crate) clamped: Counter,
    pub(crate) expired: Counter,
    pub(crate) cut_off: Counter,
    pub(crate) upgrades_rejected: Counter,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        if n > 0 {
            self.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn read(&self) -> EdgeCounts {
        EdgeCounts {
            garbled: self.garbled.get(),
            skewed: self.skewed.get(),
            clamped: self.clamped.get(),
            expired: self.expired.get(),
            cut_off: self.cut_off.get(),
            upgrades_rejected: self.upgrades_rejected.get(),
        }
    }
}

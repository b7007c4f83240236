//! Counters of the edge: headers it ignored or changed, and requests it answered 504.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often the edge ignored or changed a header, or answered 504.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EdgeCounts {
    /// Malformed header values, which were ignored.
    pub malformed: u64,
    /// Deadlines ignored because they differ from the server's clock by more than `max_skew`.
    pub skewed: u64,
    /// Deadlines shortened to `max_deadline` or raised to `min_deadline`.
    pub clamped: u64,
    /// Requests answered 504 because their deadline had passed on arrival.
    pub expired: u64,
    /// Requests answered 504 because the handler did not finish in time.
    pub timed_out: u64,
    /// Requests of untrusted peers that asked for a higher criticality and did not get it.
    pub upgrades_rejected: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) malformed: Counter,
    pub(crate) skewed: Counter,
    pub(crate) clamped: Counter,
    pub(crate) expired: Counter,
    pub(crate) timed_out: Counter,
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
            malformed: self.malformed.get(),
            skewed: self.skewed.get(),
            clamped: self.clamped.get(),
            expired: self.expired.get(),
            timed_out: self.timed_out.get(),
            upgrades_rejected: self.upgrades_rejected.get(),
        }
    }
}

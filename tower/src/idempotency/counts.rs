//! What became of requests with a key, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often the layer did what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdempotencyCounts {
    /// Handlers that were run.
    pub run: u64,
    /// Answers that were given again.
    pub replayed: u64,
    /// Requests rejected because another one has their key.
    pub mismatched: u64,
    /// Requests rejected because the first of their key was still being worked on.
    pub in_progress: u64,
    /// Keys given back because the handler failed or rejected.
    pub released: u64,
    /// Answers that were not kept: too large, or the store was away.
    pub not_kept: u64,
    /// Answers of work whose claim somebody else had taken meanwhile: it may have happened twice.
    pub overtaken: u64,
    /// Work cut off because it did not finish in time.
    pub unfinished: u64,
    /// Requests for which the store was away.
    pub unavailable: u64,
}

macro_rules! counters {
    ($($name:ident),+) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter),+ }

        impl Counters {
            pub(crate) fn read(&self) -> IdempotencyCounts {
                IdempotencyCounts { $($name: self.$name.0.load(Ordering::Relaxed)),+ }
            }
        }
    };
}

counters!(run, replayed, mismatched, in_progress, released, not_kept, overtaken, unfinished, unavailable);

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

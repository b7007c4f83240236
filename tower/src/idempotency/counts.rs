//! Counters of requests with an idempotency key.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often each outcome of a request with a key occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdempotencyCounts {
    /// Handlers that ran.
    pub run: u64,
    /// Stored answers that were sent again.
    pub replayed: u64,
    /// Requests rejected because another request has the same key.
    pub mismatched: u64,
    /// Requests rejected because the first request of their key was still running.
    pub in_progress: u64,
    /// Keys released because the handler failed or a policy rejected the request.
    pub released: u64,
    /// Answers that were not stored: too large, or the store was unavailable.
    pub not_stored: u64,
    /// Answers of handlers that had lost their claim to another request: the effect may have happened twice.
    pub overtaken: u64,
    /// Handlers cancelled because another request had taken their key.
    pub lost_claim: u64,
    /// Handlers cancelled because they did not finish within `finish_within`.
    pub unfinished: u64,
    /// Requests that found the store unavailable.
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

counters!(run, replayed, mismatched, in_progress, released, not_stored, overtaken, lost_claim, unfinished, unavailable);

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

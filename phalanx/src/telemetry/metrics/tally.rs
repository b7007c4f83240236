//! Counters of finished calls, striped by thread: writing a cache line that another core has just written costs ten times as
//! much as writing one's own.
//!
//! Counters only grow, so a reader that adds up the stripes while others count sees no more than has happened and no less
//! than it saw before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;

use phalanx_core::thread_number::thread_number;

/// More stripes than this do not pay for their memory.
const MAX_STRIPES: usize = 8;

/// `N` striped counters.
#[derive(Debug)]
pub(super) struct Tally<const N: usize>(Box<[Stripe<N>]>);

/// Aligned to two cache lines, because processors fetch them in pairs.
#[repr(align(128))]
#[derive(Debug)]
struct Stripe<const N: usize>([AtomicU64; N]);

impl<const N: usize> Tally<N> {
    pub(super) fn new() -> Self {
        let threads = available_parallelism().map_or(1, usize::from).next_power_of_two().min(MAX_STRIPES);
        Self((0..threads).map(|_| Stripe([const { AtomicU64::new(0) }; N])).collect())
    }

    #[inline]
    pub(super) fn add(&self, counter: usize) {
        let stripe = &self.0[thread_number() & (self.0.len() - 1)];
        if let Some(counter) = stripe.0.get(counter) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn sums(&self) -> [u64; N] {
        std::array::from_fn(|counter| self.0.iter().map(|stripe| stripe.0[counter].load(Ordering::Relaxed)).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_increments_are_all_counted() {
        let tally = Tally::<3>::new();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| (0..30_000).for_each(|i| tally.add(i % 3)));
            }
        });
        assert_eq!(tally.sums(), [40_000; 3]);
    }
}

//! Counts of finished calls, striped by thread.
//!
//! Counters only grow, so a reader that sums the stripes while threads count sees no more than has happened and no less
//! than it saw before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;

use phalanx_core::striped::Striped;

/// Each series has a tally of its own: more stripes than this do not pay for their memory.
const MAX_STRIPES: usize = 8;

/// `N` striped counters.
#[derive(Debug)]
pub(super) struct Tally<const N: usize>(Striped<[AtomicU64; N]>);

impl<const N: usize> Tally<N> {
    pub(super) fn new() -> Self {
        let stripes = available_parallelism().map_or(1, usize::from).min(MAX_STRIPES);
        Self(Striped::with_stripes(stripes, || [const { AtomicU64::new(0) }; N]))
    }

    #[inline]
    pub(super) fn add(&self, counter: usize) {
        if let Some(counter) = self.0.mine().get(counter) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn sums(&self) -> [u64; N] {
        std::array::from_fn(|counter| self.0.iter().map(|stripe| stripe[counter].load(Ordering::Relaxed)).sum())
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

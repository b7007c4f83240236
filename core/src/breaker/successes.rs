//! Successes counted by thread, one word for each stripe.
//!
//! A word holds a count, and the epoch and the slice of the window that it belongs to. A thread that finds another epoch
//! or slice in its word takes the old count out first. Nothing is lost and nothing is counted twice: a word is only
//! replaced by compare-and-swap or taken by swap.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::striped::Striped;

/// Bits of the count; above them the slice, above that the epoch, both cut to what fits.
const COUNT_BITS: u32 = 20;
const SLICE_BITS: u32 = 32;

/// Successes of one slice of one epoch. Epoch and slice are cut to 12 and 32 bits: [`Batch::belongs_to`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) count: u64,
    tag: u64,
}

impl Batch {
    const fn of(word: u64) -> Option<Self> {
        let count = word & ((1 << COUNT_BITS) - 1);
        let tag = word >> COUNT_BITS;
        match count {
            0 => None,
            _ => Some(Self { count, tag }),
        }
    }

    /// Returns whether the successes are of this epoch.
    pub(crate) const fn belongs_to(self, epoch: u64) -> bool {
        self.tag >> SLICE_BITS == tag(epoch, 0) >> SLICE_BITS
    }

    /// Restores the whole slice number, given one that is at most 2^31 slices away.
    pub(crate) const fn slice(self, near: u64) -> u64 {
        let low = self.tag as u32;
        let distance = low.wrapping_sub(near as u32) as i32;
        near.wrapping_add_signed(distance as i64)
    }
}

const fn tag(epoch: u64, slice: u64) -> u64 {
    const EPOCH_MASK: u64 = (1 << (64 - COUNT_BITS - SLICE_BITS)) - 1;
    (epoch & EPOCH_MASK) << SLICE_BITS | slice & u32::MAX as u64
}

/// The success counters of one breaker.
#[derive(Debug)]
pub(crate) struct SuccessCounters(Striped<AtomicU64>);

impl SuccessCounters {
    pub(crate) fn new() -> Self {
        Self(Striped::new(AtomicU64::default))
    }

    /// Counts one success. Returns what the thread's word held of another slice or epoch; the caller must record it.
    #[inline]
    pub(crate) fn add(&self, epoch: u64, slice: u64) -> Option<Batch> {
        let word = self.0.mine();
        let fresh = tag(epoch, slice) << COUNT_BITS | 1;
        let mut found = word.load(Ordering::Relaxed);
        loop {
            let same = found >> COUNT_BITS == fresh >> COUNT_BITS;
            let full = found & ((1 << COUNT_BITS) - 1) == (1 << COUNT_BITS) - 1;
            let adds = same && !full;
            let next = if adds { found + 1 } else { fresh };
            match word.compare_exchange_weak(found, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if adds => return None,
                Ok(old) => return Batch::of(old),
                Err(now) => found = now,
            }
        }
    }

    /// Takes all counts out.
    pub(crate) fn drain(&self) -> impl Iterator<Item = Batch> {
        let taken = self.0.iter().map(|word| {
            // A load first: a swap would take the cache line away from its thread even if there is nothing to take.
            match word.load(Ordering::Relaxed) {
                0 => 0,
                _ => word.swap(0, Ordering::AcqRel),
            }
        });
        taken.filter_map(Batch::of)
    }
}

#[cfg(all(test, not(phalanx_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_new_slice_returns_the_count_of_the_old_one() {
        let counters = SuccessCounters::new();
        for _ in 0..5 {
            assert_eq!(counters.add(3, 100), None);
        }
        let old = counters.add(3, 101).unwrap();
        assert_eq!((old.count, old.slice(101)), (5, 100));
        assert!(old.belongs_to(3) && !old.belongs_to(4));
        assert_eq!(counters.drain().map(|batch| batch.count).sum::<u64>(), 1);
        assert_eq!(counters.drain().count(), 0);
    }

    #[test]
    fn a_full_count_is_returned_too() {
        let counters = SuccessCounters::new();
        let returned: u64 = (0..3_000_000).filter_map(|_| counters.add(1, 1)).map(|batch| batch.count).sum();
        let left: u64 = counters.drain().map(|batch| batch.count).sum();
        assert_eq!(returned + left, 3_000_000);
    }

    #[test]
    fn a_slice_number_is_restored_across_the_wrap_of_its_low_bits() {
        let counters = SuccessCounters::new();
        let slice = (7 << 32) - 1;
        counters.add(1, slice);
        let old = counters.add(1, slice + 1).unwrap();
        assert_eq!(old.slice(slice + 1), slice);
    }

    #[test]
    fn threads_that_add_and_drain_at_once_lose_nothing() {
        let counters = SuccessCounters::new();
        let total = AtomicU64::new(0);
        let record = |batch: Batch| {
            total.fetch_add(batch.count, Ordering::Relaxed);
        };
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let (counters, record) = (&counters, &record);
                threads.spawn(move || {
                    for i in 0..50_000_u64 {
                        counters.add(1, i / 1_000).into_iter().for_each(record);
                        if thread == 0 && i % 100 == 0 {
                            counters.drain().for_each(record);
                        }
                    }
                });
            }
        });
        counters.drain().for_each(record);
        assert_eq!(total.into_inner(), 200_000);
    }
}

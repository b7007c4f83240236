//! Successes counted per thread: one word a stripe, each on a cache line of its own.
//!
//! Adding to a line that another core has just written costs an order of magnitude more than adding to one's own, so
//! threads count apart. A word holds which epoch and which slice of the window its count belongs to; whoever finds
//! another epoch or slice in it takes the old count out first. Nothing is lost and nothing is counted twice: a word is
//! only ever replaced by compare-and-swap or taken by swap.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;

use crate::thread_number::thread_number;

use crate::cache_line::CacheLine;

/// Bits of the count; above them the slice, above that the epoch, both cut to what fits.
const COUNT_BITS: u32 = 20;
const SLICE_BITS: u32 = 32;

/// Twice as many as processors, because threads meet on a stripe by chance; more than this do not pay for their memory.
const FEWEST: usize = 4;
const MOST: usize = 16;

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

    /// Whether these are successes of this epoch.
    pub(crate) const fn belongs_to(self, epoch: u64) -> bool {
        self.tag >> SLICE_BITS == tag(epoch, 0) >> SLICE_BITS
    }

    /// The slice it belongs to, given one that is at most 2^31 slices away.
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

/// The counters of one circuit.
#[derive(Debug)]
pub(crate) struct Stripes(Box<[CacheLine<AtomicU64>]>);

impl Stripes {
    pub(crate) fn new() -> Self {
        let threads = available_parallelism().map_or(1, usize::from);
        let lines = (2 * threads).next_power_of_two().clamp(FEWEST, MOST);
        Self((0..lines).map(|_| CacheLine::default()).collect())
    }

    /// Counts one success. What the thread's word held of another slice or epoch comes back and must be told.
    #[inline]
    pub(crate) fn add(&self, epoch: u64, slice: u64) -> Option<Batch> {
        let word = &self.0[thread_number() & (self.0.len() - 1)].0;
        let fresh = tag(epoch, slice) << COUNT_BITS | 1;
        let mut found = word.load(Ordering::Relaxed);
        loop {
            let same = found >> COUNT_BITS == fresh >> COUNT_BITS;
            let full = found & ((1 << COUNT_BITS) - 1) == (1 << COUNT_BITS) - 1;
            let goes_on = same && !full;
            let next = if goes_on { found + 1 } else { fresh };
            match word.compare_exchange_weak(found, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if goes_on => return None,
                Ok(old) => return Batch::of(old),
                Err(now) => found = now,
            }
        }
    }

    /// Takes everything out.
    pub(crate) fn drain(&self) -> impl Iterator<Item = Batch> {
        let taken = self.0.iter().map(|line| {
            // Looking first keeps lines that hold nothing with their owners.
            match line.0.load(Ordering::Relaxed) {
                0 => 0,
                _ => line.0.swap(0, Ordering::AcqRel),
            }
        });
        taken.filter_map(Batch::of)
    }
}

#[cfg(all(test, not(phalanx_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_new_slice_hands_the_old_count_over() {
        let stripes = Stripes::new();
        for _ in 0..5 {
            assert_eq!(stripes.add(3, 100), None);
        }
        let old = stripes.add(3, 101).unwrap();
        assert_eq!((old.count, old.slice(101)), (5, 100));
        assert!(old.belongs_to(3) && !old.belongs_to(4));
        assert_eq!(stripes.drain().map(|batch| batch.count).sum::<u64>(), 1);
        assert_eq!(stripes.drain().count(), 0);
    }

    #[test]
    fn a_full_count_is_handed_over_too() {
        let stripes = Stripes::new();
        let handed_over: u64 = (0..3_000_000).filter_map(|_| stripes.add(1, 1)).map(|batch| batch.count).sum();
        let left: u64 = stripes.drain().map(|batch| batch.count).sum();
        assert_eq!(handed_over + left, 3_000_000);
    }

    #[test]
    fn a_slice_is_found_again_across_the_wrap_of_its_low_bits() {
        let stripes = Stripes::new();
        let slice = (7 << 32) - 1;
        stripes.add(1, slice);
        let old = stripes.add(1, slice + 1).unwrap();
        assert_eq!(old.slice(slice + 1), slice);
    }

    #[test]
    fn threads_that_add_and_drain_at_once_lose_nothing() {
        let stripes = Stripes::new();
        let total = AtomicU64::new(0);
        let told = |batch: Batch| {
            total.fetch_add(batch.count, Ordering::Relaxed);
        };
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let (stripes, told) = (&stripes, &told);
                threads.spawn(move || {
                    for i in 0..50_000_u64 {
                        stripes.add(1, i / 1_000).into_iter().for_each(told);
                        if thread == 0 && i % 100 == 0 {
                            stripes.drain().for_each(told);
                        }
                    }
                });
            }
        });
        stripes.drain().for_each(told);
        assert_eq!(total.into_inner(), 200_000);
    }
}

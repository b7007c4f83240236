//! Latency quantiles over a sliding window, without locks and without storing samples.
//!
//! A DDSketch ([`bins`](super::bins)) for each time slice. Bins are logarithmic, so any quantile is within 1 % of a
//! recorded latency; counts are kept by slice, so a slice that leaves the window is dropped whole. The range is 1 µs to
//! 1 h; longer latencies are ignored.
//!
//! Bins are allocated in blocks, when the first latency falls into one of them: a digest takes 1 kB, and 400 bytes more
//! for every factor of 1.4 between the shortest and the longest latency recorded; 28 kB for the whole range.
//!
//! Threads add to an atomic bin of the current slice and never wait for each other, except while a block is allocated.
//! Once per slice, one thread clears the slot after the next, so that no thread counts into a slot that is being cleared.

use std::array::from_fn;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::bins::{BINS, Bins, Mapping};
use crate::clock::{Time, micros};

/// The number of slices of a window.
pub const SLICES: u64 = 5;
/// The slices of the window, and an empty one for the next slice.
const SLOTS: usize = SLICES as usize + 1;
/// Bins that are allocated together: 64 bytes of each slot.
const BLOCK_BINS: usize = 16;
const BLOCKS: usize = BINS / BLOCK_BINS;

/// A digest of latencies over a sliding window. Threads share it by reference.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx::estimate::digest::Digest;
/// use phalanx::store::Time;
///
/// let digest = Digest::new(Duration::from_secs(10));
/// let now = Time::from_micros(0);
/// for millis in 1..=100 {
///     digest.observe(now, Duration::from_millis(millis));
/// }
/// let p95 = digest.quantile(now, 0.95).expect("20 samples are enough for p95");
/// assert!((p95.as_secs_f64() / 0.095 - 1.0).abs() < 0.011, "within one per cent");
/// assert_eq!(digest.count(now.after(Duration::from_secs(10))), 0, "the window has moved on");
/// ```
#[derive(Debug)]
pub struct Digest {
    mapping: Mapping,
    slice_micros: AtomicU64,
    newest: AtomicU64,
    /// Held while the newest slice or the length of a slice changes.
    changing: Mutex<()>,
    blocks: Box<[OnceLock<Box<Block>>; BLOCKS]>,
}

/// Neighbouring bins, for every slot.
type Block = [[AtomicU32; BLOCK_BINS]; SLOTS];

/// The counts of one slice of a digest.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    digest: &'a Digest,
    slot: usize,
}

impl Slice<'_> {
    /// Returns the bins with a count, in order.
    pub fn counts(&self) -> impl Iterator<Item = (usize, u32)> {
        let (blocks, slot) = (self.digest.blocks.iter().enumerate(), self.slot);
        let made = blocks.filter_map(|(block, bins)| Some((block, bins.get()?)));
        let bins = made.flat_map(move |(block, bins)| (block * BLOCK_BINS..).zip(&bins[slot]));
        bins.map(|(bin, count)| (bin, count.load(Ordering::Relaxed))).filter(|(_, count)| *count > 0)
    }
}

impl Digest {
    /// Creates an empty digest over this window.
    pub fn new(window: Duration) -> Self {
        Self {
            mapping: Mapping::new(),
            slice_micros: AtomicU64::new(slice_micros(window)),
            newest: AtomicU64::new(0),
            changing: Mutex::new(()),
            blocks: Box::new([const { OnceLock::new() }; BLOCKS]),
        }
    }

    /// Adds one latency.
    pub fn observe(&self, now: Time, latency: Duration) {
        if let Some(bin) = self.mapping.bin(latency) {
            let slice = self.advance_to(now);
            let empty = || Box::new(from_fn(|_| from_fn(|_| AtomicU32::new(0))));
            let block = self.blocks[bin / BLOCK_BINS].get_or_init(empty);
            block[slot(slice)][bin % BLOCK_BINS].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns a quantile (0.0 to 1.0) of the window; none for fewer than 1/(1−q) samples, which would only give the
    /// largest.
    pub fn quantile(&self, now: Time, quantile: f64) -> Option<Duration> {
        self.quantile_since(now, Time::ZERO, quantile)
    }

    /// Returns a quantile of the slices that began at `since` or later, so that no earlier latency is part of it.
    pub fn quantile_since(&self, now: Time, since: Time, quantile: f64) -> Option<Duration> {
        let mut bins = Bins::EMPTY;
        for (_, slice) in self.slices_since(now, since) {
            slice.counts().for_each(|(bin, count)| bins.count_in(bin, count));
        }
        bins.quantile(quantile)
    }

    /// Returns the slices of the window with their numbers, oldest first.
    pub fn slices(&self, now: Time) -> impl Iterator<Item = (u64, Slice<'_>)> {
        let newest = self.advance_to(now);
        let slices = newest.saturating_sub(SLICES - 1)..=newest;
        slices.map(|slice| (slice, Slice { digest: self, slot: slot(slice) }))
    }

    /// Returns the slices of the window that began at `since` or later.
    pub fn slices_since(&self, now: Time, since: Time) -> impl Iterator<Item = (u64, Slice<'_>)> {
        let first = since.as_micros().div_ceil(self.slice_micros());
        self.slices(now).filter(move |(slice, _)| *slice >= first)
    }

    /// Returns the length of a slice, in microseconds.
    pub fn slice_micros(&self) -> u64 {
        self.slice_micros.load(Ordering::Relaxed)
    }

    /// Returns the number of latencies in the window.
    pub fn count(&self, now: Time) -> u64 {
        let slices = self.slices(now);
        slices.map(|(_, slice)| slice.counts().map(|(_, count)| u64::from(count)).sum::<u64>()).sum()
    }

    /// Takes over another window; a different one forgets all latencies.
    pub fn retune(&self, window: Duration) {
        let _changing = self.changing.lock();
        let (old, new) = (self.slice_micros.load(Ordering::Relaxed), slice_micros(window));
        if old != new {
            (0..SLOTS).for_each(|slot| self.clear(slot));
            self.newest.store(0, Ordering::Release);
            self.slice_micros.store(new, Ordering::Relaxed);
        }
    }

    fn clear(&self, slot: usize) {
        let made = self.blocks.iter().filter_map(OnceLock::get);
        made.flat_map(|block| &block[slot]).for_each(|bin| bin.store(0, Ordering::Relaxed));
    }

    /// Returns the slice to count in at `now`, after clearing slots that have left the window.
    fn advance_to(&self, now: Time) -> u64 {
        let slice = self.slice_at(now);
        let newest = self.newest.load(Ordering::Acquire);
        if slice <= newest {
            return newest;
        }
        let _changing = self.changing.lock();
        let newest = self.newest.load(Ordering::Acquire);
        // Computed again: under the lock the length of a slice cannot change.
        let slice = self.slice_at(now);
        if slice <= newest {
            return newest;
        }
        // The slot of `newest + 1` is empty already; afterwards that of `slice + 1` is.
        let first = (newest + 2).max((slice + 2).saturating_sub(SLOTS as u64));
        (first..=slice + 1).for_each(|stale| self.clear(slot(stale)));
        self.newest.store(slice, Ordering::Release);
        slice
    }

    /// Returns the slice of a time. Times at the end of time share the last one that has a successor.
    fn slice_at(&self, now: Time) -> u64 {
        (now.as_micros() / self.slice_micros.load(Ordering::Relaxed)).min(u64::MAX - 2)
    }
}

fn slot(slice: u64) -> usize {
    (slice % SLOTS as u64) as usize
}

/// Returns the length of one slice of a window, at least one microsecond.
pub fn slice_micros(window: Duration) -> u64 {
    (micros(window) / SLICES).max(1)
}

#[cfg(test)]
mod tests {
    use super::super::bins::{MAX_LATENCY, RELATIVE_ERROR};
    use super::*;
    use proptest::prelude::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    #[test]
    fn latencies_are_counted_until_the_end_of_time() {
        let digest = Digest::new(Duration::from_micros(5));
        let end = Time::from_micros(u64::MAX);
        assert_eq!(digest.count(end), 0);
        digest.observe(end, Duration::from_millis(1));
        assert_eq!(digest.count(end), 1);
    }

    #[test]
    fn a_quantile_needs_enough_samples() {
        let digest = Digest::new(WINDOW);
        for _ in 0..19 {
            digest.observe(at(0), Duration::from_millis(5));
        }
        assert_eq!(digest.quantile(at(0), 0.95), None);
        digest.observe(at(0), Duration::from_millis(5));
        assert!(digest.quantile(at(0), 0.95).is_some());
    }

    #[test]
    fn latencies_older_than_the_window_are_dropped() {
        let digest = Digest::new(WINDOW);
        for _ in 0..100 {
            digest.observe(at(0), Duration::from_secs(1));
        }
        assert_eq!(digest.count(at(9_999)), 100);
        assert_eq!(digest.count(at(10_000)), 0);
        digest.observe(at(500_000), Duration::from_secs(1));
        assert_eq!(digest.count(at(500_000)), 1);
    }

    #[test]
    fn an_epoch_begins_with_the_next_slice_and_holds_nothing_from_before() {
        let digest = Digest::new(WINDOW);
        for (millis, latency) in [(3_999, 500.0), (4_000, 50.0), (6_000, 5.0)] {
            (0..20).for_each(|_| digest.observe(at(millis), Duration::from_secs_f64(latency / 1e3)));
        }
        let p95 = |since| digest.quantile_since(at(6_000), since, 0.95).map(|estimate| estimate.as_secs_f64() * 1e3);
        let is_about = |estimate: Option<f64>, exact: f64| {
            estimate.is_some_and(|estimate| (estimate / exact - 1.0).abs() <= 0.011)
        };
        assert!(is_about(p95(Time::ZERO), 500.0));
        // The slice that begins at four seconds is the first without earlier latencies.
        assert!(is_about(p95(at(3_999)), 50.0));
        assert!(is_about(p95(at(4_000)), 50.0));
        assert!(is_about(p95(at(4_001)), 5.0));
        assert_eq!(p95(at(6_001)), None);
        assert_eq!(p95(Time::NEVER), None);
    }

    #[test]
    fn bins_are_allocated_only_where_latencies_fall() {
        let digest = Digest::new(WINDOW);
        let made = || digest.blocks.iter().filter(|block| block.get().is_some()).count();
        assert_eq!((made(), digest.quantile(at(0), 0.5)), (0, None));
        for now in [at(0), at(60_000)] {
            (10..=30).for_each(|millis| digest.observe(now, Duration::from_millis(millis)));
        }
        assert!((2..=5).contains(&made()), "{} blocks for latencies that differ by a factor of three", made());
        let counts: Vec<_> =
            digest.slices(at(60_000)).flat_map(|(_, slice)| slice.counts().collect::<Vec<_>>()).collect();
        assert!(counts.is_sorted() && counts.iter().map(|(_, count)| count).sum::<u32>() == 21, "{counts:?}");
    }

    #[test]
    fn another_window_starts_over() {
        let digest = Digest::new(WINDOW);
        digest.observe(at(5_000), Duration::from_secs(1));
        digest.retune(WINDOW);
        assert_eq!(digest.count(at(5_000)), 1);
        digest.retune(2 * WINDOW);
        assert_eq!(digest.count(at(5_000)), 0);
        digest.observe(at(5_000), Duration::from_secs(1));
        assert_eq!(digest.count(at(23_999)), 1);
        assert_eq!(digest.count(at(24_000)), 0);
    }

    #[test]
    fn latencies_over_an_hour_are_ignored() {
        let digest = Digest::new(WINDOW);
        digest.observe(at(0), Duration::from_secs(3_601));
        digest.observe(at(0), Duration::MAX);
        assert_eq!(digest.count(at(0)), 0);
        digest.observe(at(0), Duration::ZERO);
        digest.observe(at(0), MAX_LATENCY);
        assert_eq!(digest.count(at(0)), 2);
    }

    #[test]
    fn a_window_that_is_changed_under_load_still_slides() {
        for _ in 0..100 {
            let digest = Digest::new(Duration::from_secs(1));
            let now = at(3_600_000);
            std::thread::scope(|threads| {
                threads.spawn(|| (0..200).for_each(|_| digest.observe(now, Duration::from_millis(1))));
                threads.spawn(|| digest.retune(Duration::from_secs(60)));
            });
            assert_eq!(digest.count(at(3_600_000 + 61_000)), 0);
            digest.observe(at(3_600_000 + 62_000), Duration::from_millis(1));
            assert_eq!(digest.count(at(3_600_000 + 62_000)), 1);
        }
    }

    #[test]
    fn threads_on_one_digest_lose_nothing() {
        let digest = Digest::new(WINDOW);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for i in 0..10_000_u64 {
                        digest.observe(at(i / 10), Duration::from_micros(i));
                    }
                });
            }
        });
        assert_eq!(digest.count(at(1_000)), 40_000);
    }

    proptest! {
        #[test]
        fn every_quantile_is_within_its_error_of_a_recorded_latency(
            mut values in prop::collection::vec(1_u64..3_600_000_000, 100..400), q in 0.01_f64..0.99,
        ) {
            let digest = Digest::new(WINDOW);
            for value in &values {
                digest.observe(at(0), Duration::from_micros(*value));
            }
            values.sort_unstable();
            let exact = values[(q * (values.len() - 1) as f64) as usize] as f64;
            let estimate = digest.quantile(at(0), q).unwrap().as_secs_f64() * 1e6;
            prop_assert!((estimate - exact).abs() <= exact * RELATIVE_ERROR * 1.001, "{estimate} for {exact}");
        }

        /// Compared with a list of all latencies, for any forward steps of the clock.
        #[test]
        fn a_count_covers_exactly_the_slices_inside_the_window(steps in prop::collection::vec(0_u64..5_000, 1..60)) {
            let digest = Digest::new(WINDOW);
            let (mut now, mut seen) = (0, Vec::new());
            for step in steps {
                now += step;
                digest.observe(at(now), Duration::from_millis(1));
                seen.push(now / 2_000);
                let expected = seen.iter().filter(|slice| **slice + 5 > now / 2_000).count();
                prop_assert_eq!(digest.count(at(now)), expected as u64);
            }
        }
    }
}

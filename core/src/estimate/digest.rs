//! Latency quantiles over a sliding window, without locks and without samples.
//!
//! A DDSketch ([`bins`](super::bins)) in time slices: logarithmic bins, so any quantile is within 1 % of a latency that
//! was really seen; counts per slice, so old slices fall out of the window whole. Range 1 µs to 1 h; anything longer is
//! not a latency and is left out.
//!
//! Bins are made in blocks, when the first latency falls into one of them, and stay: a digest takes 1 kB, and 400 bytes
//! more for every factor of 1.4 between the shortest and the longest latency that it ever saw; 28 kB if it saw them all.
//!
//! Writers add to an atomic bin of the present slice and never wait for each other, but for the making of a block; once
//! a slice, one of them clears the slot that comes after the next, so that nobody ever counts into a slot being cleared.

use std::array::from_fn;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::bins::{BINS, Bins, Mapping};
use crate::clock::{Time, micros};

/// Slices in a window.
pub const SLICES: u64 = 5;
/// The slices of the window and a clean one that the next moment may need.
const SLOTS: usize = SLICES as usize + 1;
/// Bins that are made together: a cache line of each slot.
const BLOCK: usize = 16;
const BLOCKS: usize = BINS / BLOCK;

/// The machine. Shared by reference; every method takes `&self`.
#[derive(Debug)]
pub struct Digest {
    mapping: Mapping,
    slice_micros: AtomicU64,
    newest: AtomicU64,
    turning: Mutex<()>,
    blocks: Box<[OnceLock<Box<Block>>; BLOCKS]>,
}

/// Some neighbouring bins, of every slot.
type Block = [[AtomicU32; BLOCK]; SLOTS];

/// What one slice of a digest counted.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    digest: &'a Digest,
    slot: usize,
}

impl Slice<'_> {
    /// The bins that counted something, in order, and how much.
    pub fn counts(&self) -> impl Iterator<Item = (usize, u32)> {
        let (blocks, slot) = (self.digest.blocks.iter().enumerate(), self.slot);
        let made = blocks.filter_map(|(block, bins)| Some((block, bins.get()?)));
        let bins = made.flat_map(move |(block, bins)| (block * BLOCK..).zip(&bins[slot]));
        bins.map(|(bin, count)| (bin, count.load(Ordering::Relaxed))).filter(|(_, count)| *count > 0)
    }
}

impl Digest {
    /// An empty digest over this window.
    pub fn new(window: Duration) -> Self {
        Self {
            mapping: Mapping::new(),
            slice_micros: AtomicU64::new(slice_micros(window)),
            newest: AtomicU64::new(0),
            turning: Mutex::new(()),
            blocks: Box::new([const { OnceLock::new() }; BLOCKS]),
        }
    }

    /// Adds one latency.
    pub fn observe(&self, now: Time, latency: Duration) {
        if let Some(bin) = self.mapping.bin(latency) {
            let slice = self.turn_to(now);
            let empty = || Box::new(from_fn(|_| from_fn(|_| AtomicU32::new(0))));
            let block = self.blocks[bin / BLOCK].get_or_init(empty);
            block[slot(slice)][bin % BLOCK].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The `quantile` (0.0 to 1.0) of what the window saw; none before there are 1/(1−q) samples, below which it
    /// would only be the largest of them.
    pub fn quantile(&self, now: Time, quantile: f64) -> Option<Duration> {
        self.quantile_since(now, Time::ZERO, quantile)
    }

    /// The same, of those slices only that began at `since` or later: nothing seen before is in it.
    pub fn quantile_since(&self, now: Time, since: Time, quantile: f64) -> Option<Duration> {
        let mut bins = Bins::EMPTY;
        for (_, slice) in self.slices_since(now, since) {
            slice.counts().for_each(|(bin, count)| bins.count_in(bin, count));
        }
        bins.quantile(quantile)
    }

    /// What each slice of the window holds, oldest first, with the slice's number.
    pub fn slices(&self, now: Time) -> impl Iterator<Item = (u64, Slice<'_>)> {
        let newest = self.turn_to(now);
        let slices = newest.saturating_sub(SLICES - 1)..=newest;
        slices.map(|slice| (slice, Slice { digest: self, slot: slot(slice) }))
    }

    /// Those of them that began at `since` or later.
    pub fn slices_since(&self, now: Time, since: Time) -> impl Iterator<Item = (u64, Slice<'_>)> {
        let first = since.as_micros().div_ceil(self.slice_micros());
        self.slices(now).filter(move |(slice, _)| *slice >= first)
    }

    /// The length of a slice, in microseconds.
    pub fn slice_micros(&self) -> u64 {
        self.slice_micros.load(Ordering::Relaxed)
    }

    /// How many latencies the window saw.
    pub fn count(&self, now: Time) -> u64 {
        let slices = self.slices(now);
        slices.map(|(_, slice)| slice.counts().map(|(_, count)| u64::from(count)).sum::<u64>()).sum()
    }

    /// From now on over another window; what was seen over the old one is forgotten.
    pub fn retune(&self, window: Duration) {
        let _turning = self.turning.lock();
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

    /// The slice to count into at `now`; clears what has fallen out of the window on the way.
    fn turn_to(&self, now: Time) -> u64 {
        let slice = now.as_micros() / self.slice_micros.load(Ordering::Relaxed);
        let newest = self.newest.load(Ordering::Acquire);
        if slice <= newest {
            return newest;
        }
        let _turning = self.turning.lock();
        let newest = self.newest.load(Ordering::Acquire);
        // Once more, now that the length of a slice cannot change.
        let slice = now.as_micros() / self.slice_micros.load(Ordering::Relaxed);
        if slice <= newest {
            return newest;
        }
        // The slot of `newest + 1` is clean already; after this the one of `slice + 1` is.
        let first = (newest + 2).max((slice + 2).saturating_sub(SLOTS as u64));
        (first..=slice + 1).for_each(|stale| self.clear(slot(stale)));
        self.newest.store(slice, Ordering::Release);
        slice
    }
}

fn slot(slice: u64) -> usize {
    (slice % SLOTS as u64) as usize
}

/// The length of one slice of a window, at least a microsecond.
pub fn slice_micros(window: Duration) -> u64 {
    (micros(window) / SLICES).max(1)
}

#[cfg(test)]
mod tests {
    use super::super::bins::{LONGEST, RELATIVE_ERROR};
    use super::*;
    use proptest::prelude::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    #[test]
    fn a_quantile_waits_until_it_can_mean_something() {
        let digest = Digest::new(WINDOW);
        for _ in 0..19 {
            digest.observe(at(0), Duration::from_millis(5));
        }
        assert_eq!(digest.quantile(at(0), 0.95), None);
        digest.observe(at(0), Duration::from_millis(5));
        assert!(digest.quantile(at(0), 0.95).is_some());
    }

    #[test]
    fn the_window_forgets() {
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
        let p95 = |since| digest.quantile_since(at(6_000), since, 0.95).map(|told| told.as_secs_f64() * 1e3);
        let is_about = |told: Option<f64>, exact: f64| told.is_some_and(|told| (told / exact - 1.0).abs() <= 0.011);
        assert!(is_about(p95(Time::ZERO), 500.0));
        // The slice that begins at four seconds is the first that holds nothing from before.
        assert!(is_about(p95(at(3_999)), 50.0));
        assert!(is_about(p95(at(4_000)), 50.0));
        assert!(is_about(p95(at(4_001)), 5.0));
        assert_eq!(p95(at(6_001)), None);
        assert_eq!(p95(Time::NEVER), None);
    }

    #[test]
    fn bins_are_made_where_latencies_fall_and_nowhere_else() {
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
    fn what_is_no_latency_is_left_out() {
        let digest = Digest::new(WINDOW);
        digest.observe(at(0), Duration::from_secs(3_601));
        digest.observe(at(0), Duration::MAX);
        assert_eq!(digest.count(at(0)), 0);
        digest.observe(at(0), Duration::ZERO);
        digest.observe(at(0), LONGEST);
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
        fn every_quantile_is_within_its_error_of_a_real_latency(
            mut values in prop::collection::vec(1_u64..3_600_000_000, 100..400), q in 0.01_f64..0.99,
        ) {
            let digest = Digest::new(WINDOW);
            for value in &values {
                digest.observe(at(0), Duration::from_micros(*value));
            }
            values.sort_unstable();
            let exact = values[(q * (values.len() - 1) as f64) as usize] as f64;
            let told = digest.quantile(at(0), q).unwrap().as_secs_f64() * 1e6;
            prop_assert!((told - exact).abs() <= exact * RELATIVE_ERROR * 1.001, "{told} for {exact}");
        }

        /// Against a digest that keeps everything: any walk of the clock forward.
        #[test]
        fn a_count_is_what_the_slices_inside_the_window_saw(steps in prop::collection::vec(0_u64..5_000, 1..60)) {
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

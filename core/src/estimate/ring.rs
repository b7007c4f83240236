//! Counters over a sliding window.
//!
//! The window is cut into [`SLICES`] equal slices, of which the newest is still filling. A sum therefore always covers the
//! last 9/10 to 10/10 of the window, and a burst across the edge of a slice counts as one burst. If the clock steps back,
//! counts go into the newest slice; nothing is counted twice.

use std::time::Duration;

use crate::clock::{Time, micros};

/// The number of slices of a window.
pub const SLICES: usize = 10;

/// A window of counters of type `C`.
#[derive(Clone, Debug)]
pub struct Ring<C> {
    slice_micros: u64,
    newest: u64,
    slots: [C; SLICES],
}

/// Counters that can be summed over the window.
pub trait Counts: Copy + Default {
    /// Adds two counts.
    #[must_use]
    fn plus(self, other: Self) -> Self;
}

impl<C: Counts> Ring<C> {
    /// Creates an empty window of this length.
    pub fn new(window: Duration) -> Self {
        Self { slice_micros: slice_micros(window), newest: 0, slots: [C::default(); SLICES] }
    }

    /// Returns the length of a slice, in microseconds.
    pub const fn slice_micros(&self) -> u64 {
        self.slice_micros
    }

    /// Returns the newest slice that was counted in or summed.
    pub const fn newest(&self) -> u64 {
        self.newest
    }

    /// Returns every slice of the window with its counters, oldest first.
    pub fn slices(&self) -> impl Iterator<Item = (u64, C)> {
        let oldest = (self.newest + 1).saturating_sub(SLICES as u64);
        (oldest..=self.newest).map(|slice| (slice, self.slots[position(slice)]))
    }

    /// Returns the slice that `now` belongs to.
    pub const fn slice_of(&self, now: Time) -> u64 {
        now.as_micros() / self.slice_micros
    }

    /// Returns the counters of the slice that is filling at `now`.
    pub fn at(&mut self, now: Time) -> &mut C {
        let slice = self.slice_of(now).max(self.newest);
        self.roll_to(slice);
        &mut self.slots[position(slice)]
    }

    /// Returns the counters of a slice, unless it is older than the window. A newer slice moves the window.
    pub fn slice(&mut self, slice: u64) -> Option<&mut C> {
        if slice > self.newest {
            self.roll_to(slice);
        }
        let age = self.newest - slice;
        (age < SLICES as u64).then(|| &mut self.slots[position(slice)])
    }

    /// Moves the window to `now` and sums it.
    pub fn sum(&mut self, now: Time) -> C {
        self.at(now);
        self.slots.iter().fold(C::default(), |sum, c| sum.plus(*c))
    }

    /// Sums the window that ends at `now` without moving it.
    pub fn peek(&self, now: Time) -> C {
        let passed = self.slice_of(now).saturating_sub(self.newest);
        let inside = (0..(SLICES as u64).saturating_sub(passed)).filter_map(|age| self.newest.checked_sub(age));
        inside.fold(C::default(), |sum, slice| sum.plus(self.slots[position(slice)]))
    }

    /// Forgets all counts and takes over the length of the window.
    pub fn clear(&mut self, window: Duration) {
        *self = Self::new(window);
    }

    fn roll_to(&mut self, slice: u64) {
        let passed = slice - self.newest;
        if passed >= SLICES as u64 {
            self.slots = [C::default(); SLICES];
        } else {
            for gone in self.newest + 1..=slice {
                self.slots[position(gone)] = C::default();
            }
        }
        self.newest = slice;
    }
}

/// Returns the length of one slice of a window, at least one microsecond.
pub fn slice_micros(window: Duration) -> u64 {
    (micros(window) / SLICES as u64).max(1)
}

const fn position(slice: u64) -> usize {
    (slice % SLICES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Counts for u32 {
        fn plus(self, other: Self) -> Self {
            self + other
        }
    }

    const WINDOW: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    #[test]
    fn a_burst_across_the_edge_of_a_slice_is_counted_whole() {
        let mut ring = Ring::<u32>::new(WINDOW);
        *ring.at(at(9_999)) += 5;
        *ring.at(at(10_001)) += 5;
        assert_eq!(ring.sum(at(10_001)), 10);
    }

    #[test]
    fn counts_older_than_the_window_are_dropped() {
        let mut ring = Ring::<u32>::new(WINDOW);
        *ring.at(at(500)) += 1;
        assert_eq!(ring.sum(at(9_999)), 1);
        assert_eq!(ring.sum(at(10_000)), 0);
    }

    #[test]
    fn a_clock_that_steps_back_counts_into_the_newest_slice() {
        let mut ring = Ring::<u32>::new(WINDOW);
        *ring.at(at(8_000)) += 1;
        *ring.at(at(2_000)) += 1;
        assert_eq!(ring.sum(at(8_000)), 2);
        assert_eq!(ring.sum(at(17_900)), 2);
        assert_eq!(ring.sum(at(18_000)), 0);
    }

    proptest! {
        /// Compared with a list of all counts.
        #[test]
        fn a_sum_covers_exactly_the_slices_inside_the_window(
            steps in proptest::collection::vec((0_u64..4_000, 0_u32..3), 1..200),
        ) {
            let mut ring = Ring::<u32>::new(WINDOW);
            let mut seen = Vec::new();
            let mut now = 0;
            for (step, count) in steps {
                now += step;
                *ring.at(at(now)) += count;
                seen.push((now / 1_000, count));
                let expected: u32 = seen.iter().filter(|(s, _)| s + 10 > now / 1_000).map(|(_, c)| c).sum();
                prop_assert_eq!(ring.peek(at(now)), expected);
                prop_assert_eq!(ring.sum(at(now)), expected);
                let mut moved = ring.clone();
                prop_assert_eq!(ring.peek(at(now + step)), moved.sum(at(now + step)));
            }
        }
    }
}

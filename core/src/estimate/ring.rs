//! Counters over a sliding window, in slices.
//!
//! The window is cut into [`SLICES`] equal slices of which the newest is still filling, so a sum covers the last
//! 9/10 to 10/10 of the window, whatever the moment: a burst across a slice's edge is still one burst. A clock that
//! steps back lands in the newest slice; nothing is ever counted twice.

use std::time::Duration;

use crate::clock::{Time, micros};

/// Slices in a window.
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
    /// Both together.
    #[must_use]
    fn plus(self, other: Self) -> Self;
}

impl<C: Counts> Ring<C> {
    /// An empty window of this length.
    pub fn new(window: Duration) -> Self {
        Self { slice_micros: slice_micros(window), newest: 0, slots: [C::default(); SLICES] }
    }

    /// The slice a moment belongs to.
    pub const fn slice_of(&self, now: Time) -> u64 {
        now.as_micros() / self.slice_micros
    }

    /// The counters of the slice that is filling at `now`.
    pub fn at(&mut self, now: Time) -> &mut C {
        let slice = self.slice_of(now).max(self.newest);
        self.roll_to(slice);
        &mut self.slots[position(slice)]
    }

    /// The counters of a slice, if it is still (or only now comes) inside the window.
    pub fn slice(&mut self, slice: u64) -> Option<&mut C> {
        if slice > self.newest {
            self.roll_to(slice);
        }
        let age = self.newest - slice;
        (age < SLICES as u64).then(|| &mut self.slots[position(slice)])
    }

    /// Everything inside the window that ends at `now`.
    pub fn sum(&mut self, now: Time) -> C {
        self.at(now);
        self.slots.iter().fold(C::default(), |sum, c| sum.plus(*c))
    }

    /// Forgets everything; with another `window`, from now on over that one.
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

/// The length of one slice of a window, at least a microsecond.
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
    fn a_burst_across_a_slices_edge_is_one_burst() {
        let mut ring = Ring::<u32>::new(WINDOW);
        *ring.at(at(9_999)) += 5;
        *ring.at(at(10_001)) += 5;
        assert_eq!(ring.sum(at(10_001)), 10);
    }

    #[test]
    fn what_is_older_than_the_window_is_gone() {
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
        /// The ring against a list of everything that ever happened.
        #[test]
        fn a_sum_is_what_the_slices_inside_the_window_saw(
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
                prop_assert_eq!(ring.sum(at(now)), expected);
            }
        }
    }
}

//! A tally: calls and marks over a sliding window, for what a fleet counts together.
//!
//! A mark is an accept of the adaptive throttle, or an extra attempt of a retry or hedge budget. The window has ten slices,
//! as every window of this crate. [`Tally::withdraw`] counts marks only as far as an [`Allowance`] of the calls permits:
//! in any window, marks never exceed `per_call` × calls + `floor`, whichever replica takes them.
//!
//! `lua/scripts/include/tally.lua` is the port of this machine.

use std::time::Duration;

use crate::clock::Time;
use crate::estimate::ring::{Counts as Slots, Ring};

/// The most that a slice counts, which keeps every sum exact in a double.
const MAX_COUNT: u64 = 1 << 48;

/// What a tally counts. Each use of a key has a tally of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TallyUse {
    /// Requests and accepts of an adaptive throttle.
    Throttle,
    /// Calls and retries.
    Retries,
    /// Calls and hedges.
    Hedges,
}

/// The counters of a tally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls.
    pub calls: u64,
    /// Marks: accepts, or extra attempts.
    pub marks: u64,
}

impl Slots for Counts {
    fn plus(self, other: Self) -> Self {
        Self { calls: self.calls + other.calls, marks: self.marks + other.marks }
    }
}

/// What is added to a tally; negative to take back what was added before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addition {
    /// When it was counted, not later than now: it belongs to the slice of this time.
    pub at: Time,
    /// Calls.
    pub calls: i64,
    /// Marks.
    pub marks: i64,
}

/// How many marks a window may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allowance {
    /// Marks per call.
    pub per_call: f64,
    /// Marks that are always allowed.
    pub floor: f64,
}

impl Allowance {
    /// Returns the allowance of one of `sharers` replicas that decide by their own calls only.
    #[must_use]
    pub fn share(self, sharers: u32) -> Self {
        Self { floor: self.floor / f64::from(sharers.max(1)), ..self }
    }

    /// Returns how many more marks these counts allow.
    fn room(self, counts: Counts) -> u64 {
        let allowed = (self.per_call * counts.calls as f64 + self.floor).floor();
        (allowed - counts.marks as f64).max(0.0) as u64
    }
}

/// The state machine of a tally.
#[derive(Clone, Debug)]
pub struct Tally {
    window: Duration,
    ring: Ring<Counts>,
}

impl Tally {
    /// Creates an empty tally.
    pub fn new(window: Duration) -> Self {
        Self { window, ring: Ring::new(window) }
    }

    /// Starts over if the window is another one.
    pub fn retune(&mut self, window: Duration) {
        if window != self.window {
            *self = Self::new(window);
        }
    }

    /// Returns the window.
    pub const fn window(&self) -> Duration {
        self.window
    }

    /// Adds calls and marks to the slice in which they were counted, unless it has left the window. No counter goes below
    /// zero.
    pub fn add(&mut self, now: Time, addition: Addition) {
        self.ring.at(now);
        let slice = self.ring.slice_of(addition.at).min(self.ring.newest());
        if let Some(counts) = self.ring.slice(slice) {
            counts.calls = counts.calls.saturating_add_signed(addition.calls).min(MAX_COUNT);
            counts.marks = counts.marks.saturating_add_signed(addition.marks).min(MAX_COUNT);
        }
    }

    /// Takes up to `want` marks. Returns how many, and the slice in which they are counted.
    pub fn withdraw(&mut self, now: Time, want: u64, allowance: Allowance) -> (u64, u64) {
        let granted = allowance.room(self.sum(now)).min(want);
        let counts = self.ring.at(now);
        counts.marks = (counts.marks + granted).min(MAX_COUNT);
        (granted, self.ring.newest())
    }

    /// Puts back marks of a slice, unless it has left the window.
    pub fn put_back(&mut self, now: Time, slice: u64, marks: u64) {
        self.ring.at(now);
        if slice <= self.ring.newest()
            && let Some(counts) = self.ring.slice(slice)
        {
            counts.marks = counts.marks.saturating_sub(marks);
        }
    }

    /// Sums the window that ends now.
    pub fn sum(&mut self, now: Time) -> Counts {
        self.ring.sum(now)
    }

    /// Returns every slice of the window that ends now with its counters, oldest first.
    pub fn slices(&mut self, now: Time) -> impl Iterator<Item = (u64, Counts)> {
        self.ring.at(now);
        self.ring.slices()
    }

    /// Returns the counters of a slice, if it is inside the window.
    pub fn slice(&mut self, slice: u64) -> Option<&mut Counts> {
        self.ring.slice(slice)
    }

    /// Returns the length of a slice, in microseconds.
    pub const fn slice_micros(&self) -> u64 {
        self.ring.slice_micros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);
    const TENTH: Allowance = Allowance { per_call: 0.1, floor: 0.0 };

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    fn calls(at: Time, calls: i64) -> Addition {
        Addition { at, calls, marks: 0 }
    }

    #[test]
    fn marks_never_exceed_their_share_of_the_calls() {
        let mut tally = Tally::new(WINDOW);
        tally.add(at(0), calls(at(0), 209));
        assert_eq!(tally.withdraw(at(0), 7, TENTH).0, 7);
        assert_eq!(tally.withdraw(at(9_999), 100, TENTH).0, 13);
        assert_eq!(tally.withdraw(at(9_999), 1, TENTH).0, 0);
        tally.add(at(10_000), calls(at(10_000), 150));
        assert_eq!(tally.withdraw(at(10_000), 100, TENTH).0, 2, "the thirteen of the last slice still count");
    }

    #[test]
    fn a_minimum_is_always_allowed_and_one_replica_has_its_share_of_it() {
        let allowance = Allowance { per_call: 0.0, floor: 20.0 };
        assert_eq!(Tally::new(WINDOW).withdraw(at(0), 100, allowance).0, 20);
        assert_eq!(Tally::new(WINDOW).withdraw(at(0), 100, allowance.share(3)).0, 6);
        assert_eq!(Tally::new(WINDOW).withdraw(at(0), 100, allowance.share(0)).0, 20);
    }

    #[test]
    fn a_mark_is_put_back_into_its_own_slice() {
        let (mut tally, allowance) = (Tally::new(WINDOW), Allowance { per_call: 0.0, floor: 1.0 });
        let (granted, slice) = tally.withdraw(at(0), 1, allowance);
        assert_eq!((granted, slice), (1, 0));
        tally.put_back(at(9_000), slice, 1);
        assert_eq!(tally.withdraw(at(9_000), 2, allowance), (1, 9));
        tally.put_back(at(10_000), slice, 1); // it has left the window
        assert_eq!(tally.withdraw(at(10_000), 2, allowance).0, 0);
    }

    #[test]
    fn a_call_is_taken_back_from_the_slice_in_which_it_was_counted() {
        let mut tally = Tally::new(WINDOW);
        tally.add(at(0), calls(at(0), 1));
        tally.add(at(5_000), calls(at(5_000), 1));
        tally.add(at(5_000), calls(at(0), -1));
        assert_eq!(tally.sum(at(9_999)), Counts { calls: 1, marks: 0 });
        assert_eq!(tally.sum(at(14_999)), Counts { calls: 1, marks: 0 });
        tally.add(at(15_000), calls(at(5_000), -1)); // it has left the window
        tally.add(at(15_000), Addition { at: at(15_000), calls: -3, marks: -3 });
        assert_eq!(tally.sum(at(15_000)), Counts::default(), "nothing goes below zero");
    }

    #[test]
    fn the_slices_of_the_window_are_listed_oldest_first() {
        let mut tally = Tally::new(WINDOW);
        tally.add(at(3_000), calls(at(3_000), 3));
        tally.add(at(11_000), Addition { at: at(5_000), calls: 2, marks: 1 });
        let listed: Vec<_> = tally.slices(at(12_000)).collect();
        let counts = |slice| match slice {
            3 => Counts { calls: 3, marks: 0 },
            5 => Counts { calls: 2, marks: 1 },
            _ => Counts::default(),
        };
        assert_eq!(listed, (3..=12).map(|slice| (slice, counts(slice))).collect::<Vec<_>>());
    }

    #[test]
    fn another_window_starts_over_and_the_same_one_does_not() {
        let mut tally = Tally::new(WINDOW);
        tally.add(at(0), calls(at(0), 3));
        tally.retune(WINDOW);
        assert_eq!(tally.sum(at(0)).calls, 3);
        tally.retune(2 * WINDOW);
        assert_eq!(tally.sum(at(0)).calls, 0);
    }
}

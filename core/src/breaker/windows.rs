//! The sliding windows of a breaker: the one of its spec, and the one of the spec before.
//!
//! Replicas of one fleet may use windows of two lengths, for as long as a rollout lasts. Every outcome counts in both, and a
//! window that is new begins with the counts of the one before, so that another length erases no evidence.

use std::time::Duration;

use super::Seen;
use crate::clock::Time;
use crate::estimate::ring::{Ring, slice_micros};

#[derive(Clone, Debug)]
pub(super) struct Windows {
    current: Ring<Seen>,
    /// The window that was used before.
    other: Option<Box<Ring<Seen>>>,
}

impl Windows {
    pub(super) fn new(window: Duration) -> Self {
        Self { current: Ring::new(window), other: None }
    }

    /// Uses the window of this length from now on.
    pub(super) fn use_length(&mut self, window: Duration) {
        if self.current.slice_micros() == slice_micros(window) {
            return;
        }
        let kept = self.other.take().filter(|other| other.slice_micros() == slice_micros(window));
        let next = kept.map_or_else(|| self.converted(window), |kept| *kept);
        self.other = Some(Box::new(std::mem::replace(&mut self.current, next)));
    }

    /// Forgets all counts.
    pub(super) fn clear(&mut self, window: Duration) {
        *self = Self::new(window);
    }

    /// Counts in the slice that is filling at `now`.
    pub(super) fn count(&mut self, now: Time, counts: Seen) {
        let slice = self.current.slice_of(now).max(self.current.newest());
        self.count_in(slice, counts);
    }

    /// Counts in a slice of the window in use, and in the other window at the beginning of that slice: successes arrive in
    /// batches, of which no more is known.
    pub(super) fn count_in(&mut self, slice: u64, counts: Seen) {
        let moment = beginning_of(slice, self.current.slice_micros());
        add(&mut self.current, slice, counts);
        if let Some(other) = &mut self.other {
            let slice = other.slice_of(moment);
            add(other, slice, counts);
        }
    }

    /// Moves the window in use to `now` and sums it.
    pub(super) fn sum(&mut self, now: Time) -> Seen {
        self.current.sum(now)
    }

    /// Sums the window in use without moving it.
    pub(super) fn peek(&self, now: Time) -> Seen {
        self.current.peek(now)
    }

    /// The counts of the window in use, in slices of another length: each counts at the beginning of its slice.
    fn converted(&self, window: Duration) -> Ring<Seen> {
        let mut next = Ring::new(window);
        for (slice, counts) in self.current.slices() {
            let moment = beginning_of(slice, self.current.slice_micros());
            let slice = next.slice_of(moment);
            add(&mut next, slice, counts);
        }
        next
    }
}

fn beginning_of(slice: u64, slice_micros: u64) -> Time {
    Time::from_micros(slice.saturating_mul(slice_micros))
}

fn add(ring: &mut Ring<Seen>, slice: u64, counts: Seen) {
    if counts.calls > 0
        && let Some(seen) = ring.slice(slice)
    {
        seen.calls += counts.calls;
        seen.failures += counts.failures;
        seen.slow += counts.slow;
    }
}

#[cfg(all(test, not(phalanx_model)))]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);
    const FAILED: Seen = Seen { calls: 1, failures: 1, slow: 0 };

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    #[test]
    fn another_length_keeps_the_counts_and_going_back_finds_them_again() {
        let mut windows = Windows::new(WINDOW);
        windows.count(at(95_500), FAILED);
        windows.count(at(99_500), FAILED);
        windows.use_length(2 * WINDOW);
        assert_eq!(windows.sum(at(99_500)).failures, 2);
        windows.count(at(101_000), FAILED);
        assert_eq!(windows.sum(at(109_900)).failures, 3);
        windows.use_length(WINDOW);
        assert_eq!(windows.sum(at(109_900)).failures, 1, "the first two are older than ten seconds");
    }

    #[test]
    fn a_shorter_window_takes_over_what_is_young_enough() {
        let mut windows = Windows::new(WINDOW);
        windows.count(at(91_500), FAILED);
        windows.count(at(99_500), FAILED);
        windows.use_length(WINDOW / 10);
        assert_eq!(windows.sum(at(99_700)).failures, 1);
    }

    #[test]
    fn of_three_lengths_the_one_that_was_not_used_for_longest_is_dropped() {
        let mut windows = Windows::new(WINDOW);
        for length in [2 * WINDOW, 3 * WINDOW] {
            windows.use_length(length);
        }
        assert_eq!(windows.other.as_ref().unwrap().slice_micros(), slice_micros(2 * WINDOW));
    }
}

//! [P²](super::p2) over a sliding window: estimates one quantile of the recent latencies.
//!
//! P² itself never forgets. Time is therefore cut into half windows, and two estimators take every latency: the *elder*
//! since the beginning of the previous half, the *younger* since the beginning of the current one. Estimates come from
//! the elder. At the end of a half, the younger becomes the elder and a new younger starts:
//!
//! ```text
//! half      │   0   │   1   │   2   │   3   │
//! elder     ├───────────────┼───────┼───────    gives the estimate: covers one half to one whole window
//! younger           ├───────┤
//!                           ├───────┤
//! ```
//!
//! **Error:** that of P², over the last 1/2 to 2/2 of the window; a latency is dropped after one window at the latest.
//! Takes about 200 bytes and has no lock, so it suits state that is behind a lock already. Use the
//! [digest](super::digest) where replicas share latencies, or where an error bound is needed.

use std::time::Duration;

use super::bins::MAX_LATENCY;
use super::p2::P2;
use crate::clock::{Time, micros};

/// An estimator of one quantile over a sliding window.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx::estimate::p2_window::P2Window;
/// use phalanx::store::Time;
///
/// let mut p90 = P2Window::new(Duration::from_secs(10), 0.9);
/// let now = Time::from_micros(0);
/// (0..10).for_each(|_| p90.observe(now, Duration::from_millis(20)));
/// assert_eq!(p90.quantile(now), Some(Duration::from_millis(20)));
/// assert_eq!(p90.quantile(now.after(Duration::from_secs(10))), None, "the window has moved on");
/// ```
#[derive(Clone, Debug)]
pub struct P2Window {
    half_micros: u64,
    /// The half window that is filling.
    newest: u64,
    elder: P2,
    younger: P2,
}

impl P2Window {
    /// Creates an estimator without latencies.
    pub fn new(window: Duration, quantile: f64) -> Self {
        let empty = P2::new(quantile);
        Self { half_micros: (micros(window) / 2).max(1), newest: 0, elder: empty.clone(), younger: empty }
    }

    /// Adds one latency. Latencies over an hour are ignored. If the clock steps back, the latency counts in the newest
    /// half.
    pub fn observe(&mut self, now: Time, latency: Duration) {
        if latency > MAX_LATENCY {
            return;
        }
        let half = self.half_of(now);
        if half > self.newest {
            let passed = half - self.newest;
            std::mem::swap(&mut self.elder, &mut self.younger);
            self.younger.clear();
            if passed > 1 {
                self.elder.clear();
            }
            self.newest = half;
        }
        let value = latency.as_nanos() as f64;
        self.elder.observe(value);
        self.younger.observe(value);
    }

    /// Returns the quantile of the last half to whole window; none for fewer than 1/(1−q) latencies, or fewer than five.
    pub fn quantile(&self, now: Time) -> Option<Duration> {
        // The estimator that the next latency would make the elder.
        let elder = match self.half_of(now).saturating_sub(self.newest) {
            0 => &self.elder,
            1 => &self.younger,
            _ => return None,
        };
        elder.quantile().map(|nanos| Duration::from_nanos(nanos as u64))
    }

    /// Forgets all latencies.
    pub const fn clear(&mut self) {
        self.elder.clear();
        self.younger.clear();
    }

    const fn half_of(&self, now: Time) -> u64 {
        now.as_micros() / self.half_micros
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    const WINDOW: Duration = Duration::from_secs(10);
    const MILLI: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Time {
        Time::from_micros(1_700_000_000_000_000 + millis * 1_000)
    }

    fn observe(p2: &mut P2Window, millis: u64, times: usize, latency: Duration) {
        (0..times).for_each(|_| p2.observe(at(millis), latency));
    }

    #[test]
    fn it_fits_into_four_cache_lines() {
        assert!(size_of::<P2Window>() <= 4 * 64, "{}", size_of::<P2Window>());
    }

    #[test]
    fn a_quantile_needs_enough_samples() {
        let mut p2 = P2Window::new(WINDOW, 0.95);
        observe(&mut p2, 0, 19, MILLI);
        assert_eq!(p2.quantile(at(0)), None);
        observe(&mut p2, 1, 1, MILLI);
        assert_eq!(p2.quantile(at(1)), Some(MILLI));
    }

    #[test]
    fn latencies_older_than_the_window_are_dropped() {
        let mut p2 = P2Window::new(WINDOW, 0.5);
        observe(&mut p2, 0, 100, 50 * MILLI);
        assert_eq!(p2.quantile(at(9_999)), Some(50 * MILLI));
        assert_eq!(p2.quantile(at(10_000)), None);
        observe(&mut p2, 60_000, 10, MILLI);
        assert_eq!(p2.quantile(at(60_000)), Some(MILLI));
    }

    #[test]
    fn latencies_of_the_last_half_window_are_never_dropped() {
        let mut p2 = P2Window::new(WINDOW, 0.5);
        observe(&mut p2, 4_999, 100, 50 * MILLI);
        observe(&mut p2, 5_000, 1, MILLI);
        assert_eq!(p2.quantile(at(9_998)), Some(50 * MILLI));
        assert_eq!(p2.quantile(at(10_000)), None, "one latency is not enough");
    }

    #[test]
    fn a_step_of_the_latency_is_the_quantile_after_one_window() {
        let (mut p2, rng) = (P2Window::new(WINDOW, 0.95), Rng::seeded(5));
        for (until, low) in [(30_000, 10 * MILLI), (40_000, 200 * MILLI)] {
            for millis in until - 10_000..until {
                p2.observe(at(millis), rng.between(low, 2 * low));
            }
            let estimate = p2.quantile(at(until - 1)).unwrap().as_secs_f64();
            let exact = low.as_secs_f64() * 1.95;
            assert!((estimate / exact - 1.0).abs() < 0.02, "{estimate} for {exact}");
        }
    }

    #[test]
    fn a_cleared_window_holds_only_later_latencies() {
        let mut p2 = P2Window::new(WINDOW, 0.5);
        observe(&mut p2, 4_000, 100, 50 * MILLI);
        p2.clear();
        assert_eq!(p2.quantile(at(4_000)), None);
        observe(&mut p2, 4_500, 10, MILLI);
        assert_eq!(p2.quantile(at(4_500)), Some(MILLI));
        assert_eq!(p2.quantile(at(9_999)), Some(MILLI));
    }

    #[test]
    fn a_clock_that_steps_back_counts_into_the_newest_half() {
        let mut p2 = P2Window::new(WINDOW, 0.5);
        observe(&mut p2, 12_000, 5, MILLI);
        observe(&mut p2, 2_000, 5, MILLI);
        assert_eq!(p2.quantile(at(2_000)), Some(MILLI));
        assert_eq!(p2.quantile(at(19_999)), Some(MILLI));
        assert_eq!(p2.quantile(at(20_000)), None);
    }

    #[test]
    fn latencies_over_an_hour_are_ignored() {
        let mut p2 = P2Window::new(WINDOW, 0.5);
        observe(&mut p2, 0, 100, Duration::MAX);
        observe(&mut p2, 0, 100, MAX_LATENCY + MILLI);
        assert_eq!(p2.quantile(at(0)), None);
        observe(&mut p2, 0, 5, MAX_LATENCY);
        observe(&mut p2, 0, 5, Duration::ZERO);
        assert!(p2.quantile(at(0)).is_some());
    }

    proptest! {
        /// Compared with P² over all latencies since the beginning of the previous half.
        #[test]
        fn a_quantile_covers_the_latencies_since_the_previous_half_began(
            steps in prop::collection::vec((0_u64..4_000, 1_u64..1_000), 1..100),
        ) {
            let mut p2 = P2Window::new(WINDOW, 0.5);
            let (mut now, mut seen) = (0, Vec::new());
            for (step, latency) in steps {
                now += step;
                p2.observe(at(now), MILLI * latency as u32);
                seen.push((now / 5_000, latency));
                let mut expected = P2::new(0.5);
                for (_, latency) in seen.iter().filter(|(half, _)| half + 1 >= now / 5_000) {
                    expected.observe((latency * 1_000_000) as f64);
                }
                let expected = expected.quantile().map(|nanos| Duration::from_nanos(nanos as u64));
                prop_assert_eq!(p2.quantile(at(now)), expected);
            }
        }
    }
}

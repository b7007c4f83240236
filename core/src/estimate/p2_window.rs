//! One quantile of the latencies of late: [P²](super::p2) that forgets.
//!
//! P² itself remembers for ever. So time is cut into half windows, and two estimators take every latency: the *elder*
//! since the beginning of the previous half, the *younger* since the beginning of this one. The elder is asked. When a
//! half is over, the younger takes its place and a new one begins:
//!
//! ```text
//! half      │   0   │   1   │   2   │   3   │
//! elder     ├───────────────┼───────┼───────    asked, and covers between one half and one whole window
//! younger           ├───────┤
//!                           ├───────┤
//! ```
//!
//! **Error:** P²'s, of what the last 1/2 to 2/2 of the window saw; a latency is gone after one window at the latest.
//! About 200 bytes in one piece, without locks: for the state of one process that is behind a lock already. Where
//! replicas share latencies, or an error bound is needed, take the [digest](super::digest).

use std::time::Duration;

use super::bins::LONGEST;
use super::p2::P2;
use crate::clock::{Time, micros};

/// The machine. It is given the time.
#[derive(Clone, Debug)]
pub struct P2Window {
    half_micros: u64,
    /// The half window that is filling.
    newest: u64,
    elder: P2,
    younger: P2,
}

impl P2Window {
    /// Has seen nothing yet of this window.
    pub fn new(window: Duration, quantile: f64) -> Self {
        let empty = P2::new(quantile);
        Self { half_micros: (micros(window) / 2).max(1), newest: 0, elder: empty.clone(), younger: empty }
    }

    /// Adds one latency. Anything longer than an hour is none and is left out. A clock that steps back counts into the
    /// newest half.
    pub fn observe(&mut self, now: Time, latency: Duration) {
        if latency > LONGEST {
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

    /// The quantile of what the last half to whole window saw; none before there are 1/(1−q) latencies, and five.
    pub fn quantile(&self, now: Time) -> Option<Duration> {
        // Who will be the elder at that time, once somebody turns the page.
        let asked = match self.half_of(now).saturating_sub(self.newest) {
            0 => &self.elder,
            1 => &self.younger,
            _ => return None,
        };
        asked.quantile().map(|nanos| Duration::from_nanos(nanos as u64))
    }

    /// A new epoch: nothing that was seen so far is in any quantile from here on.
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
    fn it_takes_few_cache_lines() {
        assert!(size_of::<P2Window>() <= 4 * 64, "{}", size_of::<P2Window>());
    }

    #[test]
    fn a_quantile_waits_until_it_can_mean_something() {
        let mut p2 = P2Window::new(WINDOW, 0.95);
        observe(&mut p2, 0, 19, MILLI);
        assert_eq!(p2.quantile(at(0)), None);
        observe(&mut p2, 1, 1, MILLI);
        assert_eq!(p2.quantile(at(1)), Some(MILLI));
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut p2 = P2Window::new(WINDOW, 0.5);
        observe(&mut p2, 0, 100, 50 * MILLI);
        assert_eq!(p2.quantile(at(9_999)), Some(50 * MILLI));
        assert_eq!(p2.quantile(at(10_000)), None);
        observe(&mut p2, 60_000, 10, MILLI);
        assert_eq!(p2.quantile(at(60_000)), Some(MILLI));
    }

    #[test]
    fn what_is_younger_than_half_a_window_is_never_forgotten() {
        let mut p2 = P2Window::new(WINDOW, 0.5);
        observe(&mut p2, 4_999, 100, 50 * MILLI);
        observe(&mut p2, 5_000, 1, MILLI);
        assert_eq!(p2.quantile(at(9_998)), Some(50 * MILLI));
        assert_eq!(p2.quantile(at(10_000)), None, "the one is left");
    }

    #[test]
    fn a_step_of_the_latency_is_the_quantile_after_one_window() {
        let (mut p2, rng) = (P2Window::new(WINDOW, 0.95), Rng::seeded(5));
        for (until, low) in [(30_000, 10 * MILLI), (40_000, 200 * MILLI)] {
            for millis in until - 10_000..until {
                p2.observe(at(millis), rng.between(low, 2 * low));
            }
            let told = p2.quantile(at(until - 1)).unwrap().as_secs_f64();
            let exact = low.as_secs_f64() * 1.95;
            assert!((told / exact - 1.0).abs() < 0.02, "{told} for {exact}");
        }
    }

    #[test]
    fn a_new_epoch_sees_only_what_comes_after_it() {
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
    fn what_is_no_latency_is_left_out() {
        let mut p2 = P2Window::new(WINDOW, 0.5);
        observe(&mut p2, 0, 100, Duration::MAX);
        observe(&mut p2, 0, 100, LONGEST + MILLI);
        assert_eq!(p2.quantile(at(0)), None);
        observe(&mut p2, 0, 5, LONGEST);
        observe(&mut p2, 0, 5, Duration::ZERO);
        assert!(p2.quantile(at(0)).is_some());
    }

    proptest! {
        /// Against a list of everything that ever happened: asked is what began with the previous half.
        #[test]
        fn a_quantile_is_of_what_came_since_the_previous_half_began(
            steps in prop::collection::vec((0_u64..4_000, 1_u64..1_000), 1..100),
        ) {
            let mut p2 = P2Window::new(WINDOW, 0.5);
            let (mut now, mut seen) = (0, Vec::new());
            for (step, latency) in steps {
                now += step;
                p2.observe(at(now), MILLI * latency as u32);
                seen.push((now / 5_000, latency));
                let mut alone = P2::new(0.5);
                for (_, latency) in seen.iter().filter(|(half, _)| half + 1 >= now / 5_000) {
                    alone.observe((latency * 1_000_000) as f64);
                }
                let expected = alone.quantile().map(|nanos| Duration::from_nanos(nanos as u64));
                prop_assert_eq!(p2.quantile(at(now)), expected);
            }
        }
    }
}

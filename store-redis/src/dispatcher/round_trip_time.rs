//! The round-trip time to a server: the median of the last round trips, which single slow ones do not move.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Round trips of which the median is taken.
const SAMPLES: usize = 5;

/// The round-trip time to one server.
#[derive(Debug, Default)]
pub(super) struct RoundTripTime {
    /// The last times in microseconds, and the number of all that were recorded.
    samples: Mutex<([u32; SAMPLES], usize)>,
    median: AtomicU32,
}

impl RoundTripTime {
    /// Returns the median; zero before the first round trip.
    #[inline]
    pub(super) fn median(&self) -> Duration {
        Duration::from_micros(self.median.load(Ordering::Relaxed).into())
    }

    pub(super) fn record(&self, took: Duration) {
        let mut samples = self.samples.lock();
        let (times, recorded) = &mut *samples;
        times[*recorded % SAMPLES] = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        *recorded += 1;
        let mut sorted = *times;
        let known = &mut sorted[..(*recorded).min(SAMPLES)];
        known.sort_unstable();
        self.median.store(known[(known.len() - 1) / 2], Ordering::Relaxed);
    }

    /// Forgets all round trips: those to another server, or to this one before an outage, say nothing.
    pub(super) fn forget(&self) {
        *self.samples.lock() = Default::default();
        self.median.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn single_slow_round_trips_do_not_move_the_median() {
        let time = RoundTripTime::default();
        assert_eq!(time.median(), Duration::ZERO);
        for round in 0..100 {
            time.record(if round % 3 == 0 { 500 * MS } else { 2 * MS });
            assert!(round < 2 || time.median() == 2 * MS);
        }
    }

    #[test]
    fn after_a_move_to_a_distant_server_the_median_follows() {
        let time = RoundTripTime::default();
        (0..50).for_each(|_| time.record(MS));
        (0..SAMPLES.div_ceil(2)).for_each(|_| time.record(30 * MS));
        assert_eq!(time.median(), 30 * MS);
        time.forget();
        time.record(7 * MS);
        assert_eq!(time.median(), 7 * MS);
    }
}

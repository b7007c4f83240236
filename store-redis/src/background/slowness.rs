//! Emits `StoreSlow` when Redis serves, but is too late for more than one decision in a hundred within ten seconds.
//!
//! An outage has events of its own. This is the state in between, which otherwise nothing shows: single late replies, or
//! callers that find no round trip in time because this process or Redis is overloaded.

use std::collections::VecDeque;
use std::time::Duration;

use phalanx_core::event::EventKind;
use tokio::time::Instant;

use crate::store::inner::StoreInner;

/// How far back decisions are looked at.
const WINDOW: Duration = Duration::from_secs(10);
/// The share of late decisions from which on Redis counts as slow.
const MAX_SHARE: f64 = 0.01;

/// How many calls waited for Redis since the start: those it decided, and those for which it was too late.
type Counts = [u64; 2];

/// What the last seconds were like.
#[derive(Debug, Default)]
pub(super) struct Slowness {
    /// The counts at the beginning of each of the last seconds in which they were looked at.
    seconds: VecDeque<(Instant, Counts)>,
    /// The event has been emitted, and the share has not fallen since.
    emitted: bool,
}

impl Slowness {
    /// Looks at the decisions of the store. Called whenever one was late, and with every check of the health.
    pub(super) fn check(&mut self, store: &StoreInner) {
        let counts = store.dispatchers_in_use().iter().map(|dispatcher| dispatcher.latch.shared_and_late());
        let sum = counts.fold([0, 0], |sum: Counts, count| [sum[0] + count[0], sum[1] + count[1]]);
        if let Some(share) = self.add(Instant::now(), sum) {
            store.observers.emit_all(EventKind::StoreSlow { share });
        }
    }

    /// Adds the counts of this moment. Returns the share of late decisions if Redis has become slow.
    fn add(&mut self, now: Instant, counts: Counts) -> Option<f64> {
        if self.seconds.back().is_none_or(|(last, _)| now.duration_since(*last) >= Duration::from_secs(1)) {
            self.seconds.push_back((now, counts));
        }
        // The oldest one is the last that is not inside the window: the counts since then cover all of it.
        while self.seconds.get(1).is_some_and(|(second, _)| now.duration_since(*second) >= WINDOW) {
            self.seconds.pop_front();
        }
        let (_, before) = *self.seconds.front()?;
        let [shared, late] = [0, 1].map(|index| counts[index].saturating_sub(before[index]));
        let share = late as f64 / (shared + late).max(1) as f64;
        let slow = share > MAX_SHARE;
        let became_slow = slow && !self.emitted;
        self.emitted = slow;
        became_slow.then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_event_for_each_time_that_more_than_a_hundredth_is_late() {
        let (mut slowness, start) = (Slowness::default(), Instant::now());
        let mut counts = [0, 0];
        let mut at = |second: u64, shared, late| {
            counts = [counts[0] + shared, counts[1] + late];
            slowness.add(start + Duration::from_secs(second), counts)
        };
        assert_eq!(at(0, 0, 0), None);
        assert_eq!(at(1, 990, 10), None, "not more than a hundredth");
        assert_eq!(at(1, 0, 50), Some(60.0 / 1_050.0));
        assert!((2..10).all(|second| at(second, 100, 1).is_none()), "only once");
        assert!((20..30).all(|second| at(second, 1_000, 0).is_none()));
        assert!(at(30, 0, 200).is_some(), "and again after it was in time");
        assert!((31..60).all(|second| at(second, 0, 0).is_none()));
    }
}

//! Emits `StoreSlow` when Redis serves, but is too late for more than one decision in a hundred within ten seconds.
//!
//! An outage has events of its own. This is the state in between, which otherwise nothing shows: single late replies, or
//! callers that find no round trip in time because this process or Redis is overloaded.

use std::collections::VecDeque;

use phalanx_core::event::EventKind;

use crate::store::inner::StoreInner;

/// Seconds that are looked at together.
const SECONDS: usize = 10;
/// The share of late decisions from which on Redis counts as slow.
const MAX_SHARE: f64 = 0.01;

/// What the last seconds were like.
#[derive(Debug, Default)]
pub(super) struct Slowness {
    /// Of each of the last seconds: decisions of Redis, and those for which it was too late.
    seconds: VecDeque<[u64; 2]>,
    counted: [u64; 2],
    /// The event has been emitted, and the share has not fallen since.
    emitted: bool,
}

impl Slowness {
    /// Adds a second. Returns the share if Redis has become slow.
    fn add(&mut self, counts: [u64; 2]) -> Option<f64> {
        let new = [0, 1].map(|index| counts[index].saturating_sub(self.counted[index]));
        self.counted = counts;
        self.seconds.push_back(new);
        if self.seconds.len() > SECONDS {
            self.seconds.pop_front();
        }
        let [shared, late] = [0, 1].map(|index| self.seconds.iter().map(|second| second[index]).sum::<u64>());
        let share = late as f64 / (shared + late).max(1) as f64;
        let slow = share > MAX_SHARE;
        let became_slow = slow && !self.emitted;
        self.emitted = slow;
        became_slow.then_some(share)
    }

    /// Ends a second of the store.
    pub(super) fn tick(&mut self, store: &StoreInner) {
        let counts = store.dispatchers_in_use().iter().map(|dispatcher| dispatcher.latch.shared_and_late());
        let sum = counts.fold([0, 0], |sum: [u64; 2], count| [sum[0] + count[0], sum[1] + count[1]]);
        if let Some(share) = self.add(sum) {
            store.observers.emit_all(EventKind::StoreSlow { share });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_for_each_time_that_more_than_a_hundredth_is_late() {
        let (mut slowness, mut counts) = (Slowness::default(), [0, 0]);
        let mut second = |shared, late| {
            counts = [counts[0] + shared, counts[1] + late];
            slowness.add(counts)
        };
        assert_eq!(second(1_000, 10), None, "not more than a hundredth");
        assert_eq!(second(0, 40), Some(50.0 / 1_050.0));
        assert!((0..8).all(|_| second(100, 1).is_none()), "only once");
        assert!((0..10).all(|_| second(1_000, 0).is_none()));
        assert_eq!(second(0, 200), Some(200.0 / 9_200.0), "and again after it was in time");
        assert_eq!((0..20).filter(|_| second(0, 0).is_some()).count(), 0);
    }
}

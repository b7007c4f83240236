//! Among how many replicas a rate is divided while Redis is away.
//!
//! A count of live replicas can be too low when it matters: after an empty restart they register one by one, and a part of
//! the fleet that loses Redis first is missing in the counts of the rest. So the divisor rises with the first higher count
//! and falls only when no heartbeat of the last [`MINUTES`] has contained one, and it is at least `expected_replicas`, by the
//! highest value that any live replica has configured. Only answered heartbeats count, so an outage does not age it.

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

/// Answered heartbeats of one minute; one is sent every second.
const HEARTBEATS: u32 = 60;
/// Minutes of answered heartbeats that are remembered.
const MINUTES: usize = 5;
/// Of so many heartbeats the highest count tells how many replicas are live: longer than a replica counts as live after
/// its last one, so that a restarted Redis on which few have registered does not make the others vanish.
const LIVE_HEARTBEATS: usize = 5;

/// The divisor of shares.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Configured here; 0 if not.
    expected: u32,
    divisor: AtomicU32,
    /// The highest count of the last [`LIVE_HEARTBEATS`].
    live: AtomicU32,
    recent: Mutex<Recent>,
}

#[derive(Debug, Default)]
struct Recent {
    /// The highest count of each minute, the present one first.
    highest: [u32; MINUTES],
    heartbeats: u32,
    live: [u32; LIVE_HEARTBEATS],
}

impl Shares {
    pub(crate) fn new(expected: Option<u32>) -> Self {
        let expected = expected.unwrap_or(0);
        Self { expected, divisor: AtomicU32::new(0), live: AtomicU32::new(0), recent: Mutex::default() }
    }

    /// Returns the number of replicas that this one expects, to be sent with its heartbeats; 0 if it is not configured.
    pub(crate) const fn expected(&self) -> u32 {
        self.expected
    }

    /// Takes the reply to a heartbeat: the live replicas, and the highest number that one of them expects.
    pub(crate) fn heartbeat(&self, live: u32, expected: u32) {
        let mut recent = self.recent.lock();
        if recent.heartbeats == HEARTBEATS {
            recent.highest.rotate_right(1);
            (recent.highest[0], recent.heartbeats) = (0, 0);
        }
        recent.heartbeats += 1;
        recent.live.rotate_right(1);
        recent.live[0] = live;
        self.live.store(recent.live.into_iter().max().unwrap_or(0), Ordering::Relaxed);
        recent.highest[0] = recent.highest[0].max(live).max(expected);
        let highest = recent.highest.into_iter().max().unwrap_or(0);
        self.divisor.store(highest, Ordering::Relaxed);
    }

    /// Returns among how many replicas a rate is divided.
    pub(crate) fn divisor(&self) -> u32 {
        self.divisor.load(Ordering::Relaxed).max(self.expected).max(1)
    }

    /// Returns how many replicas are live, by the highest of the last counts; 0 before the first.
    pub(crate) fn live(&self) -> u32 {
        self.live.load(Ordering::Relaxed)
    }

    /// Whether a heartbeat was ever answered.
    pub(crate) fn fleet_was_seen(&self) -> bool {
        self.divisor.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_divisor_rises_at_once_and_falls_after_five_minutes() {
        let shares = Shares::new(None);
        assert!(!shares.fleet_was_seen() && shares.divisor() == 1);
        for live in [5, 5, 1, 2] {
            shares.heartbeat(live, 0);
            assert_eq!(shares.divisor(), 5);
        }
        shares.heartbeat(6, 0);
        assert_eq!(shares.divisor(), 6);
        let mut minutes = 0;
        while shares.divisor() == 6 {
            (0..HEARTBEATS).for_each(|_| shares.heartbeat(2, 0));
            minutes += 1;
        }
        assert_eq!((minutes, shares.divisor()), (MINUTES, 2));
    }

    #[test]
    fn the_divisor_is_at_least_what_any_replica_expects() {
        let shares = Shares::new(Some(3));
        assert!(!shares.fleet_was_seen() && shares.divisor() == 3);
        shares.heartbeat(1, 3);
        assert!(shares.fleet_was_seen() && shares.divisor() == 3);
        shares.heartbeat(2, 10);
        assert_eq!(shares.divisor(), 10);
    }
}

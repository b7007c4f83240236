//! Leased permits: those that replicas have drawn from a bucket ahead of their callers.
//!
//! A leased permit has left the level, and whether it is spent is known to its replica only. So the refill leaves room for
//! it until its lease ends: level + leased is at most the capacity. Without that room, a replica could draw the whole burst,
//! wait until the bucket is full again, and spend twice the burst at once.
//!
//! Leases end with a slot. Slots are a seventh of a lease long and numbered from the clock's zero, so that at most eight are
//! alive at a time; each is a sum at its number modulo eight. The length of a slot stays as long as anything is leased, so that
//! two rates of one bucket do not move the ends of each other's leases.

use std::time::Duration;

use super::{MAX_UNITS, Rate};
use crate::clock::{Time, micros};

/// Slots that are alive at a time.
const SLOTS: u64 = 8;
/// Slots in a lease.
const SLOTS_PER_LEASE: u64 = 7;
/// The longest lease, in microseconds.
const MAX_LEASE: u64 = 200_000;
/// For how long after a pause draws are not paused again, in microseconds.
const AFTER_PAUSE: u64 = 2 * MAX_LEASE;
/// The fewest permits that a block is worth its request for.
pub const MIN_BLOCK: u64 = 4;

/// A block of permits that was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// How many; 0 if there were none.
    pub permits: u64,
    /// When the lease ends, on the clock of the bucket.
    pub ends: Time,
    /// How long the lease lasts at least.
    pub lasts: Duration,
}

/// The leased permits of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leases {
    sums: [u64; SLOTS as usize],
    /// The length of a slot in microseconds; 0 if nothing is leased.
    slot: u64,
    /// Until when draws get nothing, so that a cost can be served for which the leases leave no room; 0 if they are not
    /// paused, and were not lately.
    pause: u64,
}

impl Leases {
    pub(super) const fn is_empty(&self) -> bool {
        self.slot == 0 && self.pause == 0
    }

    /// Returns the leased permits in units.
    pub(super) fn units(&self, rate: Rate) -> i64 {
        let permits = self.sums.iter().fold(0, |sum: u64, slot| sum.saturating_add(*slot).min(MAX_UNITS));
        permits.saturating_mul(rate.price).min(2 * MAX_UNITS) as i64
    }

    /// Refills a level from the time `at` to the time `to`: each lease that ends makes room from its end on.
    pub(super) fn refill(&mut self, mut level: i64, mut at: u64, to: u64, rate: Rate) -> i64 {
        let first = at.checked_div(self.slot).unwrap_or(0);
        for number in first..=first.saturating_add(SLOTS) {
            // The last pass has no slot of its own: it is the time after all of them.
            let end = if self.slot == 0 || number == first + SLOTS { u64::MAX } else { (number + 1) * self.slot };
            let stop = end.min(to);
            let room = rate.capacity as i64 - self.units(rate) - level;
            let gained = (stop - at).saturating_mul(rate.gain).min(4 * MAX_UNITS) as i64;
            level += gained.min(room).max(0);
            at = stop;
            if end <= to {
                self.sums[(number % SLOTS) as usize] = 0;
            }
            if at >= to {
                break;
            }
        }
        self.tidy(to);
        level
    }

    /// Forgets what has no meaning any more.
    fn tidy(&mut self, at: u64) {
        if self.sums == [0; SLOTS as usize] {
            self.slot = 0;
        }
        if at >= self.pause.saturating_add(AFTER_PAUSE) {
            self.pause = 0;
        }
    }

    /// Lets all leases end with the last slot that a new one could be in, because the clock was set back.
    pub(super) fn anchor(&mut self, at: u64) {
        self.pause = 0;
        if let Some(present) = at.checked_div(self.slot) {
            let all = self.sums.iter().sum();
            self.sums = [0; SLOTS as usize];
            self.sums[((present + SLOTS_PER_LEASE) % SLOTS) as usize] = all;
        }
    }

    pub(super) const fn is_paused(&self, at: u64) -> bool {
        at < self.pause
    }

    /// Pauses draws for two leases, if the leases leave no room for a cost that was rejected.
    pub(super) fn pause_for(&mut self, need: u64, at: u64, rate: Rate) {
        if self.leaves_no_room_for(need, rate) && self.pause == 0 {
            self.pause = at + 2 * SLOTS_PER_LEASE * self.slot;
        }
    }

    /// Ends the pause, if it was for a cost that is served now.
    pub(super) fn resume_after(&mut self, need: u64, rate: Rate) {
        if self.leaves_no_room_for(need, rate) {
            self.pause = 0;
        }
    }

    fn leaves_no_room_for(&self, need: u64, rate: Rate) -> bool {
        self.slot > 0 && need > 0 && need as i64 > rate.capacity as i64 - self.units(rate)
    }

    /// Adds a block that is drawn at the time `at`.
    pub(super) fn add(&mut self, permits: u64, at: u64, rate: Rate) -> Drawn {
        let slot = if self.slot == 0 { rate.lease_slot() } else { self.slot };
        let number = at / slot + SLOTS_PER_LEASE;
        if permits > 0 {
            self.slot = slot;
            self.sums[(number % SLOTS) as usize] += permits;
        }
        let lasts = Duration::from_micros(SLOTS_PER_LEASE * slot);
        Drawn { permits, ends: Time::from_micros((number + 1) * slot), lasts }
    }

    /// Ends a lease of `size` permits early. Returns how many of them were still leased.
    pub(super) fn close(&mut self, ends: Time, size: u64, at: u64) -> u64 {
        let ends = ends.as_micros();
        let whole = self.slot > 0 && ends.is_multiple_of(self.slot);
        let first = at.checked_div(self.slot).unwrap_or(0);
        let number = if whole { (ends / self.slot).wrapping_sub(1) } else { u64::MAX };
        if number < first || number - first >= SLOTS {
            return 0;
        }
        let sum = &mut self.sums[(number % SLOTS) as usize];
        let size = size.min(*sum);
        *sum -= size;
        self.tidy(at);
        size
    }
}

impl Rate {
    /// Returns the length of a slot in microseconds: a lease of seven of them lasts 200 ms, or as long as an eighth of the
    /// burst takes if that is shorter. In doubles, as in the Lua port.
    pub(super) fn lease_slot(self) -> u64 {
        let lease = (MAX_LEASE as f64).min(self.capacity as f64 / (8.0 * self.gain as f64));
        (lease / SLOTS_PER_LEASE as f64).floor().max(1.0) as u64
    }

    /// Returns how long a lease lasts at this rate.
    pub fn lease_time(self) -> Duration {
        Duration::from_micros(SLOTS_PER_LEASE * self.lease_slot())
    }

    /// Returns how many permits are added in half a lease: the most that a replica draws at once.
    pub fn max_block(self) -> u64 {
        micros(self.lease_time()).saturating_mul(self.gain) / self.price.saturating_mul(2)
    }
}

//! A circuit and a clock that is not its own: a server's can step back, and a server can lose what it knew.
//!
//! Every operation works with the moment that `Breaker::anchor` names. A small step back is taken for a standstill; a
//! large one moves everything the circuit knows along with the clock, so that an open circuit waits no longer than it had
//! to anyway, and the window, whose slices belong to another time now, starts over.

use std::time::Duration;

use super::{Breaker, BreakerSpec, MAX_ESCALATION, Override, Phase, Seen, longest_break};
use crate::clock::Time;
use crate::rate_limit::MAX_BACKSTEP;

impl Breaker {
    /// A circuit as a replica last knew it, when the store has lost it: open for another `left`, at most the longest
    /// break. A half-open circuit is open until now: its leases are gone, and the next call tries it out.
    pub fn restore(
        now: Time,
        spec: &BreakerSpec,
        epoch: u64,
        phase: Phase,
        left: Duration,
        escalation: u32,
        overridden: Option<Override>,
    ) -> Self {
        let left = if phase == Phase::Open { left.min(longest_break(spec)) } else { Duration::ZERO };
        let phase = if phase == Phase::Closed { Phase::Closed } else { Phase::Open };
        let escalation = escalation.min(MAX_ESCALATION);
        Self { epoch: epoch.max(1), phase, until: now.after(left), escalation, overridden, ..Self::new(now, spec) }
    }

    /// The latest moment at which something changed. Who comes with an earlier one read his clock too early, or the clock
    /// stepped back.
    pub const fn at(&self) -> Time {
        self.at
    }

    /// The moment to work with.
    #[inline]
    pub(super) fn anchor(&mut self, now: Time, spec: &BreakerSpec) -> Time {
        if now >= self.at {
            return now;
        }
        if self.at.since(now) > MAX_BACKSTEP {
            self.move_back(now, spec);
        }
        self.at
    }

    #[cold]
    fn move_back(&mut self, now: Time, spec: &BreakerSpec) {
        let back = self.at.as_micros() - now.as_micros();
        let moved = |time: Time| Time::from_micros(time.as_micros().saturating_sub(back));
        self.since = moved(self.since);
        self.until = moved(self.until);
        self.slow_since = self.slow_since.map(moved);
        for lease in &mut self.leases {
            lease.expires = moved(lease.expires);
        }
        self.window.clear(spec.sampling_window);
        self.at = now;
    }

    /// What the window saw, what is left of a break, and the moment by which leases count, without moving anything.
    pub(super) fn seen_from(&mut self, now: Time) -> (Seen, Duration, Time) {
        let moves = self.at.since(now) > MAX_BACKSTEP;
        let seen = if moves { Seen::default() } else { self.window.sum(now.max(self.at)) };
        let left = self.until.since(if moves { self.at } else { now });
        (seen, left, now.max(self.at))
    }
}

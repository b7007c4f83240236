//! A breaker under a clock that steps back, or restored after a server has lost it.
//!
//! Every operation uses the time that `Breaker::anchor` returns. A small step back is treated as a standstill. A large one
//! moves every stored time back with the clock, so that an open breaker stays open for no longer than before, and clears
//! the window, whose slices belong to the old time.

use std::time::Duration;

use super::{Breaker, BreakerSpec, LastState, MAX_ESCALATION, Phase, Seen, longest_break};
use crate::clock::{Time, micros};
use crate::rate_limit::MAX_BACKSTEP;

impl Breaker {
    /// Restores a breaker that the store has lost from the last state a replica received: open for another `left`, at most
    /// the longest break. A half-open breaker becomes open until now, because its leases are lost: the next call is a
    /// probe. A closed breaker has been closed for at least `age`: if that began anew, a loss of state would put off the end
    /// of an escalation, and trips by latency, for a window.
    pub fn restore(now: Time, spec: &BreakerSpec, last: &LastState) -> Self {
        let left = if last.phase == Phase::Open { last.left.min(longest_break(spec)) } else { Duration::ZERO };
        let phase = if last.phase == Phase::Closed { Phase::Closed } else { Phase::Open };
        let age = if phase == Phase::Closed { last.age } else { Duration::ZERO };
        Self {
            epoch: last.epoch.max(1),
            phase,
            since: Time::from_micros(now.as_micros().saturating_sub(micros(age))),
            until: now.after(left),
            escalation: last.escalation.min(MAX_ESCALATION),
            overridden: last.overridden,
            ..Self::new(now, spec)
        }
    }

    /// Returns the latest time at which something changed. An earlier `now` is an old reading, or the clock stepped back.
    pub const fn at(&self) -> Time {
        self.at
    }

    /// Returns the time to use instead of `now`.
    #[inline]
    pub(super) fn anchor(&mut self, now: Time, spec: &BreakerSpec) -> Time {
        if now < self.at {
            return self.anchor_back(now, spec);
        }
        if now >= self.override_ends {
            self.force(None);
        }
        now
    }

    #[cold]
    fn anchor_back(&mut self, now: Time, spec: &BreakerSpec) -> Time {
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
        self.streak_since = moved(self.streak_since);
        self.slow = self.slow.map(|(since, seen)| (moved(since), moved(seen)));
        if self.override_ends < Time::NEVER {
            self.override_ends = moved(self.override_ends);
        }
        for lease in &mut self.leases {
            lease.expires = moved(lease.expires);
        }
        self.windows.clear(spec.sampling_window);
        self.at = now;
    }

    /// Returns the counts of the window, the rest of a break, and the time by which leases count; moves nothing.
    pub(super) fn seen_from(&self, now: Time) -> (Seen, Duration, Time) {
        let moves = self.at.since(now) > MAX_BACKSTEP;
        let seen = if moves { Seen::default() } else { self.windows.peek(now.max(self.at)) };
        let left = self.until.since(if moves { self.at } else { now });
        (seen, left, now.max(self.at))
    }
}

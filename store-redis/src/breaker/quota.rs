//! What a replica decides on its own for a moment, because asking Redis again would tell it nothing new.
//!
//! A half-open breaker that has leased all its probes rejects until a lease can have ended; a breaker that ramps up admits
//! its share by the step that Redis has replied. Another epoch ends both, a reply that shows a free probe the former, and
//! any reply the latter.

use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::rng::Rng;

/// How long a rejection for want of a probe is repeated at least; jittered, so that replicas ask apart.
const QUOTA_KNOWN_FOR: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(100));
/// How much longer, for each replica and each half-open breaker of it: this bounds what all of them ask together.
const QUOTA_PACE: Duration = Duration::from_micros(250);
/// How long a step of a ramp is used.
const RAMP_KNOWN_FOR: Duration = Duration::from_millis(50);

/// Returns until when a half-open breaker without a free probe rejects; `ends_in`: when the first lease ends.
pub(super) fn quota_known_until(now: Time, rng: &Rng, ends_in: Duration, replicas: u32, half_open: u32) -> Time {
    let (least, most) = QUOTA_KNOWN_FOR;
    let paced = QUOTA_PACE.saturating_mul(replicas).saturating_mul(half_open);
    now.after(rng.between(least, most).max(paced).min(ends_in))
}

/// A ramp, as far as this replica decides it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalRamp {
    pub(super) epoch: u64,
    step: u64,
    /// Calls that asked in this step, of the fleet and then of this replica.
    asked: u64,
    /// Those of them that this replica has decided and not reported.
    decided: u64,
    until: Time,
}

impl LocalRamp {
    /// Continues after the reply of Redis.
    pub(super) fn after_reply(epoch: u64, step: u64, asked: u64, now: Time) -> Self {
        Self { epoch, step, asked, decided: 0, until: now.after(RAMP_KNOWN_FOR) }
    }

    /// The first step, which has the smallest share: for a replica that has not had a reply in this epoch.
    pub(super) const fn first_step(epoch: u64) -> Self {
        Self { epoch, step: 0, asked: 0, decided: 0, until: Time::ZERO }
    }

    pub(super) fn is_known(&self, now: Time) -> bool {
        now < self.until
    }

    /// The next call asks Redis.
    pub(super) const fn expire(&mut self) {
        self.until = Time::ZERO;
    }

    /// Decides the next call of a ramp with this many steps.
    pub(super) fn admits(&mut self, steps: u64) -> bool {
        self.asked += 1;
        self.decided += 1;
        share_admits(self.step, steps, self.asked)
    }

    /// Takes the number of calls that were decided here, and their step.
    pub(super) const fn report(&mut self) -> (u64, u64) {
        let decided = self.decided;
        self.decided = 0;
        (decided, self.step)
    }
}

/// Returns whether a step of a ramp admits its `n`-th call: of the first n calls exactly ⌊n × share⌋ are admitted.
pub(super) fn share_admits(step: u64, steps: u64, n: u64) -> bool {
    let passed = |calls: u64| u128::from(calls) * u128::from(step + 1) / u128::from(steps + 1);
    passed(n) > passed(n.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NOW: Time = Time::from_micros(1_000_000);

    #[test]
    fn a_rejection_is_repeated_for_a_moment_that_grows_with_the_fleet_and_ends_with_a_lease() {
        let rng = Rng::seeded(1);
        let known_for =
            |ends_in, replicas, half_open| quota_known_until(NOW, &rng, ends_in, replicas, half_open).since(NOW);
        assert!((50 * MS..=100 * MS).contains(&known_for(3_600_000 * MS, 1, 1)));
        assert_eq!(known_for(3_600_000 * MS, 100, 50), 1_250 * MS);
        assert_eq!(known_for(7 * MS, 100, 50), 7 * MS);
        assert_eq!(known_for(3_600_000 * MS, u32::MAX, u32::MAX), 3_600_000 * MS);
    }

    #[test]
    fn a_ramp_continues_where_the_fleet_is_and_reports_what_it_decided() {
        let mut ramp = LocalRamp::after_reply(4, 1, 3, NOW);
        let admitted = (0..5).filter(|_| ramp.admits(4)).count();
        assert_eq!(admitted, 2, "the 4th to the 8th call of a step that admits two of five");
        assert_eq!((ramp.report(), ramp.report()), ((5, 1), (0, 1)));
        assert!(ramp.is_known(NOW) && !ramp.is_known(NOW.after(50 * MS)));
    }
}

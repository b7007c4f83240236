//! The ramp after a breaker has closed: the admitted share of calls grows in steps.
//!
//! Deterministic, so that every port decides alike: of the first n calls of a step, exactly ⌊n × share⌋ are admitted.

use super::BreakerSpec;
use crate::clock::{Time, micros};

#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Ramp {
    #[default]
    Over,
    /// In progress: the current step, and the calls that asked during it.
    Step { step: u64, asked: u64 },
}

impl Ramp {
    pub(super) const fn over() -> Self {
        Self::Over
    }

    pub(super) const fn starting(spec: &BreakerSpec) -> Self {
        match spec.ramp {
            Some(_) => Self::Step { step: 0, asked: 0 },
            None => Self::Over,
        }
    }

    pub(super) const fn is_over(self) -> bool {
        matches!(self, Self::Over)
    }

    /// Admits or rejects the next call; the ramp began at `since`.
    pub(super) fn admit(&mut self, now: Time, since: Time, spec: &BreakerSpec) -> bool {
        let (Self::Step { step, asked }, Some(ramp)) = (&mut *self, spec.ramp) else {
            *self = Self::Over;
            return true;
        };
        let steps = u64::from(ramp.steps);
        let elapsed = u128::from(micros(now.since(since)));
        let current = elapsed * u128::from(steps) / u128::from(micros(ramp.over).max(1));
        if current >= u128::from(steps) {
            *self = Self::Over;
            return true;
        }
        let current = current as u64;
        if current != *step {
            (*step, *asked) = (current, 0);
        }
        *asked += 1;
        let passed = |calls: u64| calls * (current + 1) / (steps + 1);
        passed(*asked) > passed(*asked - 1)
    }
}

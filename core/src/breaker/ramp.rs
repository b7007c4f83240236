//! The way back to full traffic after a circuit closed: the admitted share grows by steps.
//!
//! Deterministic, so that every port decides alike: of the n calls that asked in a step, exactly ⌊n × share⌋ passed.

use super::BreakerSpec;
use crate::clock::{Time, micros};

#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Ramp {
    #[default]
    Over,
    /// In this step, so many calls asked.
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

    /// Whether the next call passes; the ramp began at `since`.
    pub(super) fn admits(&mut self, now: Time, since: Time, spec: &BreakerSpec) -> bool {
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

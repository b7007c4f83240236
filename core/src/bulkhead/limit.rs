//! The limiter: the fixed or adaptive limit of a bulkhead.

use std::time::Duration;

use super::MAX_LIMIT;
use super::aimd::{Aimd, LimitChange};
use super::gradient::Gradient;
use super::spec::{AdaptiveSpec, BulkheadSpec, GradientSpec};
use crate::clock::Time;
use crate::kind::Outcome;

/// A completed call or attempt, as input of an adaptive limit.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// When it ended.
    pub now: Time,
    /// Its latency.
    pub latency: Duration,
    /// Its outcome.
    pub outcome: Outcome,
    /// Slots in use when it ended, its own included.
    pub in_use: u32,
}

/// The limit with its spec.
#[derive(Debug)]
pub(super) struct Limiter {
    max: u32,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Fixed,
    Adaptive(AdaptiveSpec, Aimd),
    Gradient(GradientSpec, Gradient),
}

impl Limiter {
    pub(super) fn new(spec: &BulkheadSpec) -> Self {
        let max = spec.max_concurrency.clamp(1, MAX_LIMIT);
        let kind = match (spec.adaptive, spec.gradient) {
            (Some(spec), _) => Kind::Adaptive(spec, Aimd::new(&spec, max)),
            (None, Some(spec)) => Kind::Gradient(spec, Gradient::new(&spec, max)),
            (None, None) => Kind::Fixed,
        };
        Self { max, kind }
    }

    /// Takes over another spec. An adapted limit stays, unless the algorithm changes.
    pub(super) fn retune(&mut self, spec: &BulkheadSpec) {
        let mut new = Self::new(spec);
        match (&mut new.kind, &self.kind) {
            (Kind::Adaptive(spec, aimd), Kind::Adaptive(_, old)) => {
                *aimd = old.clone();
                aimd.retune(spec, new.max);
            }
            (Kind::Gradient(spec, gradient), Kind::Gradient(_, old)) => {
                *gradient = old.clone();
                gradient.retune(spec, new.max);
            }
            _ => {}
        }
        *self = new;
    }

    pub(super) fn limit(&self) -> u32 {
        match &self.kind {
            Kind::Fixed => self.max,
            Kind::Adaptive(_, aimd) => aimd.limit(),
            Kind::Gradient(_, gradient) => gradient.limit(),
        }
    }

    pub(super) fn observe(&mut self, done: &Completion) -> Option<LimitChange> {
        match &mut self.kind {
            Kind::Fixed => None,
            Kind::Adaptive(spec, aimd) => aimd.observe(done, spec, self.max),
            Kind::Gradient(spec, gradient) => {
                gradient.observe(done, spec, self.max);
                None // it moves with every round: a gauge, not an event
            }
        }
    }

    pub(super) fn judge(&mut self, now: Time, quantile: Option<Duration>) -> Option<LimitChange> {
        match &mut self.kind {
            Kind::Adaptive(spec, aimd) => aimd.judge(now, quantile, spec, self.max),
            Kind::Fixed | Kind::Gradient(..) => None,
        }
    }

    pub(super) fn measured_since(&self) -> Time {
        match &self.kind {
            Kind::Adaptive(_, aimd) => aimd.measured_since(),
            Kind::Fixed | Kind::Gradient(..) => Time::ZERO,
        }
    }
}

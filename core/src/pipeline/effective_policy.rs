//! The effective policy of a route: its policy, with the lever above it applied.

use std::borrow::Cow;
use std::sync::Arc;

use crate::breaker::{BreakerSpec, Override};
use crate::chaos::ChaosSpec;
use crate::levers::LeverSpec;
use crate::policy::{OnDegraded, Policy};

/// What the stages of a route are compiled from: a policy, its version, what the engine adds to it, and the lever above it.
#[derive(Clone, PartialEq)]
pub(crate) struct EffectivePolicy {
    pub(crate) policy: Arc<Policy>,
    pub(crate) version: u64,
    /// The policy's own choice, else the engine's.
    pub(crate) on_degraded: OnDegraded,
    pub(crate) lever: Option<Arc<LeverSpec>>,
}

impl EffectivePolicy {
    /// Returns the policy with the lever applied.
    pub(in crate::pipeline) fn with_lever(&self) -> Cow<'_, Policy> {
        match &self.lever {
            None => Cow::Borrowed(&*self.policy),
            Some(lever) => Cow::Owned(lever.applied_to(&self.policy)),
        }
    }

    /// Returns the breaker; none if the lever forces it closed. Values that a breaker inherits from the rest of the
    /// policy are taken from the policy without the lever: a lever holds for this process, and must not change the
    /// settings of a breaker that is shared with the fleet.
    pub(in crate::pipeline) fn breaker(&self) -> Option<BreakerSpec> {
        self.policy.complete_breaker().filter(|_| self.forced() != Some(Override::Closed))
    }

    /// Returns the faults to inject; none unless the lever pulls chaos.
    pub(in crate::pipeline) fn chaos(&self) -> Option<ChaosSpec> {
        self.lever.as_ref().filter(|lever| lever.chaos).and(self.policy.chaos)
    }

    /// Returns the override that the lever puts above the breaker.
    pub(in crate::pipeline) fn forced(&self) -> Option<Override> {
        self.lever.as_ref()?.force
    }
}

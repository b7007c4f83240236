//! What the stages of a route are compiled from.

use std::borrow::Cow;
use std::sync::Arc;

use crate::breaker::{BreakerSpec, Override};
use crate::levers::LeverSpec;
use crate::policy::Policy;

/// What a route is told to do: its policy, in which version, and the lever above it.
#[derive(Clone, PartialEq)]
pub(crate) struct Said {
    pub(crate) policy: Arc<Policy>,
    pub(crate) version: u64,
    pub(crate) lever: Option<Arc<LeverSpec>>,
}

impl Said {
    /// The policy as it is while the lever is pulled.
    pub(in crate::pipeline) fn effective(&self) -> Cow<'_, Policy> {
        match &self.lever {
            None => Cow::Borrowed(&*self.policy),
            Some(lever) => Cow::Owned(lever.applied_to(&self.policy)),
        }
    }

    /// The breaker. What it inherits from the rest of the policy it has from the policy as written: a lever holds here
    /// only, and must not change the numbers of a circuit that others share.
    pub(in crate::pipeline) fn breaker(&self) -> Option<BreakerSpec> {
        self.policy.complete_breaker().filter(|_| self.force() != Some(Override::Closed))
    }

    pub(in crate::pipeline) fn force(&self) -> Option<Override> {
        self.lever.as_ref()?.force
    }
}

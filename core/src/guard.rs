//! Custom guards: your own synchronous `admit` and `settle`, run between the built-in stages by their order.

use std::fmt;
use std::sync::Arc;

use crate::context::Criticality;
use crate::key::StateKey;
use crate::kind::Outcome;
use crate::rejection::Rejection;

/// What a guard sees of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallInfo<'a> {
    /// The policy and route.
    pub key: &'a StateKey,
    /// How important the answer is to the caller.
    pub criticality: Criticality,
    /// The attempt, from 1; 0 for a guard outside the retries.
    pub attempt: u32,
}

/// A custom stage of a policy.
///
/// # Behaviour
/// - A guard whose order is below a stage's runs outside that stage: below 100 ([`Stage::Deadline`]) it sees calls whose
///   deadline has passed, too. One with the order of a stage runs inside it.
/// - From [`Stage::Retry`] on it is a guard of attempts: asked before each attempt and settled after it. Hedges of an
///   attempt do not ask it again.
/// - Every `admit` that returned `Ok` is followed by exactly one `settle`, in reverse order: also after a rejection by a
///   later stage, a cancellation or a panic.
/// - A panic in `settle` reaches the caller. If the caller has dropped the future it is caught, and the other stages are
///   still settled.
///
/// [`Stage::Deadline`]: crate::policy::Stage::Deadline
/// [`Stage::Retry`]: crate::policy::Stage::Retry
///
/// # Examples
/// A guard that rejects everything below `Normal` before it takes a permit of the rate limit:
///
/// ```
/// use phalanx_core::context::Criticality;
/// use phalanx_core::guard::{CallInfo, Guard};
/// use phalanx_core::key::StateKey;
/// use phalanx_core::policy::{Policy, Stage};
/// use phalanx_core::rejection::{Rejection, RejectionCode};
///
/// struct NormalOnly;
///
/// impl Guard for NormalOnly {
///     fn name(&self) -> &str {
///         "normal_only"
///     }
///
///     fn order(&self) -> u16 {
///         Stage::RateLimit.order() - 1
///     }
///
///     fn admit(&self, call: &CallInfo<'_>) -> Result<(), Rejection> {
///         if call.criticality < Criticality::Normal {
///             return Err(Rejection::new(RejectionCode::GuardRejected));
///         }
///         Ok(())
///     }
/// }
///
/// let key = StateKey::new("vendor", "eu");
/// let call = |criticality| CallInfo { key: &key, criticality, attempt: 0 };
/// assert!(NormalOnly.admit(&call(Criticality::Normal)).is_ok());
/// assert!(NormalOnly.admit(&call(Criticality::BestEffort)).is_err());
///
/// let policy = Policy::named("vendor").guard(NormalOnly);
/// assert_eq!(policy.guards.len(), 1);
/// ```
pub trait Guard: Send + Sync + 'static {
    /// Returns the name in descriptions.
    fn name(&self) -> &str;

    /// Returns the position: compare [`Stage::order`](crate::policy::Stage::order).
    fn order(&self) -> u16;

    /// Admits or rejects the call.
    ///
    /// # Errors
    /// Returns a rejection, preferably with the code `guard_rejected`.
    fn admit(&self, call: &CallInfo<'_>) -> Result<(), Rejection>;

    /// Receives the outcome of a call or attempt it admitted. Does nothing by default.
    fn settle(&self, call: &CallInfo<'_>, outcome: Outcome) {
        let _ = (call, outcome);
    }
}

/// A guard that is shared with other code.
impl<G: Guard + ?Sized> Guard for Arc<G> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn order(&self) -> u16 {
        (**self).order()
    }

    fn admit(&self, call: &CallInfo<'_>) -> Result<(), Rejection> {
        (**self).admit(call)
    }

    fn settle(&self, call: &CallInfo<'_>, outcome: Outcome) {
        (**self).settle(call, outcome);
    }
}

/// The custom guards of a policy, sorted by order.
#[derive(Clone, Default)]
pub struct Guards(Vec<Arc<dyn Guard>>);

impl Guards {
    pub(crate) fn add(&mut self, guard: impl Guard) {
        self.0.push(Arc::new(guard));
        self.0.sort_by_key(|guard| guard.order());
    }

    pub(crate) fn get(&self, index: usize) -> &dyn Guard {
        &*self.0[index]
    }

    /// Returns the guards, outermost first.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Guard> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// Returns the number of guards.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no guards.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Guards are code, so two sets are equal if they hold the same objects.
impl PartialEq for Guards {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.0.iter().zip(&other.0).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.iter().map(|guard| (guard.order(), guard.name()));
        f.debug_map().entries(entries).finish()
    }
}

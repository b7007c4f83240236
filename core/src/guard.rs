//! Custom strategies: a sync `admit` and `settle` of your own, placed between the built-in stages by a number.

use std::fmt;
use std::sync::Arc;

use crate::context::Criticality;
use crate::key::StateKey;
use crate::kind::Outcome;
use crate::rejection::Rejection;

/// What a guard is told about a call.
#[derive(Clone, Copy, Debug)]
pub struct CallInfo<'a> {
    /// The policy and route.
    pub key: &'a StateKey,
    /// How much the caller would miss the answer.
    pub criticality: Criticality,
    /// Which attempt, from 1; 0 for a guard that stands outside the retries.
    pub attempt: u32,
}

/// A strategy of your own.
///
/// # Behaviour
/// - A guard whose order is below a stage's number stands outside that stage.
/// - An order from `Stage::Retry` on makes it a guard of attempts: it is asked and told once for each.
/// - Every `admit` that said yes is followed by exactly one `settle`, in reverse order of admission: also after a
///   rejection further in, a cancellation or a panic.
/// - A panic in `settle` is the caller's; if the caller has gone, nobody's, and the others are settled all the same.
pub trait Guard: Send + Sync + 'static {
    /// The name in descriptions.
    fn name(&self) -> &str;

    /// Its place: compare [`Stage::order`](crate::policy::Stage::order).
    fn order(&self) -> u16;

    /// Lets the call pass, or says why not.
    ///
    /// # Errors
    /// A rejection, best with the code `guard_rejected`.
    fn admit(&self, call: &CallInfo<'_>) -> Result<(), Rejection>;

    /// Learns what became of it.
    fn settle(&self, call: &CallInfo<'_>, outcome: Outcome) {
        let _ = (call, outcome);
    }
}

/// A guard that its owner keeps a hand on.
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

/// The custom strategies of a policy, sorted by order.
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

    /// The guards, outermost first.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Guard> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Guards are code: two sets are the same when they hold the same objects.
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

//! One policy on one route, compiled: what a hot caller keeps.
//!
//! ```text
//!   pipeline.run(operation)
//!     1 gate      drain · levers · deadline
//!     2 admit     rate limit → bulkhead (queue) → breaker | throttle
//!                 each rejection gives back what the stages before it gave
//!     3 attempt   retry ⟲ hedge ⇉ timeout ⏱ the operation
//!     4 settle    classify, then record one outcome with everybody who admitted
//!     5 answer    event · fallback · Result
//! ```
//!
//! The order is fixed; [`Stage`](crate::policy::Stage) says why each stage stands where it does. Custom guards stand
//! between the stages by their number.

mod describe;
mod race;
mod ride;
mod said;
mod slot;
mod stages;
mod trace;
mod walk;
mod watch;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub use self::describe::{Description, StageDescription};
pub(crate) use self::ride::Ride;
pub(crate) use self::said::Said;
pub(crate) use self::slot::Slot;
pub(crate) use self::stages::{Circuit, Kept, Stages};
pub(crate) use self::trace::carried;
pub(crate) use self::walk::walk;
use crate::breaker::{BreakerView, Override, Phase};
use crate::bulkhead::BulkheadView;
use crate::call::{ByError, Call, Classifier, end_plain};
use crate::classify::Classify;
use crate::context::Context;
use crate::error::Error;
use crate::event::EventKind;
use crate::key::StateKey;
use crate::kind::Kind;
use crate::rejection::{Rejection, RejectionCode, Source, UNKNOWN};
use crate::store::Store;

/// What one call asks for besides its operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) cost: u32,
    /// Demands of this call, on top of what the task is bound to.
    pub(crate) context: Context,
    /// Whether somebody will read the record.
    pub(crate) recorded: bool,
    /// The operation can be started once only: nothing is tried again, no copy is sent.
    pub(crate) once: bool,
}

impl Terms {
    /// One permit and nothing special.
    pub(crate) const PLAIN: Self = Self { cost: 1, context: Context::EMPTY, recorded: false, once: false };

    /// One permit, one attempt.
    pub(crate) const ONCE: Self = Self { once: true, ..Self::PLAIN };
}

/// A policy on a route, resolved once and run many times. Cheap to clone; clones share all state.
///
/// A change of the policy reaches kept pipelines too; cloning one after a change makes it as quick as before.
pub struct Pipeline<S: Store> {
    slot: Arc<Slot<S>>,
    stages: Arc<Stages<S>>,
}

impl<S: Store> Pipeline<S> {
    pub(crate) fn new(slot: Arc<Slot<S>>) -> Self {
        let stages = slot.latest();
        Self { slot, stages }
    }

    /// Runs an operation under the policy. Its error tells by itself what kind of failure it is.
    ///
    /// # Errors
    /// The policy's rejection, or the operation's own error.
    pub fn run<T, E, F, Fut>(&self, operation: F) -> impl Future<Output = Result<T, Error<E>>>
    where
        E: Classify,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        walk(self.current(), &Terms::PLAIN, ByError, operation, end_plain)
    }

    /// As [`run`](Self::run), with a classifier, and with the word of whoever made the operation on whether it can be
    /// started again. Without it nothing is retried and no copy is sent, whatever the policy says by then. For layers
    /// around services: as cheap as `run`, where [`call`](Self::call) with its terms is not quite.
    ///
    /// # Errors
    /// The policy's rejection, or the operation's own error.
    pub fn run_classified<T, E, C, F, Fut>(
        &self,
        classifier: C,
        repeatable: bool,
        operation: F,
    ) -> impl Future<Output = Result<T, Error<E>>>
    where
        C: Classifier<T, E>,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let terms = if repeatable { &Terms::PLAIN } else { &Terms::ONCE };
        walk(self.current(), terms, classifier, operation, end_plain)
    }

    /// Whether the policy may start an operation more than once in a call: whether it has a retry or a hedge.
    pub fn repeats(&self) -> bool {
        let stages = self.current();
        stages.hedge.is_some() || stages.retry.is_some_and(|retry| retry.max_attempts > 1)
    }

    /// A call with terms of its own: cost, classifier, fallback, deadline.
    pub fn call(&self) -> Call<'_, S> {
        Call::on(self)
    }

    /// Whether the policy may stand around a whole port. A failure of the infrastructure leaves open whether the call
    /// had its effect, so trying it again is each method's own decision: not one that a port can make by the way.
    ///
    /// # Errors
    /// `blanket_retry`, if the policy retries `infrastructure`.
    #[inline]
    pub fn check_blanket_retry(&self) -> Result<(), Rejection> {
        let stages = self.current();
        match &stages.retry {
            Some(retry) if retry.max_attempts > 1 && retry.retry_on.contains(Kind::Infrastructure) => {
                Err(Rejection::by(stages.name, RejectionCode::BlanketRetry, UNKNOWN, Source::Local))
            }
            _ => Ok(()),
        }
    }

    /// The policy and route.
    pub fn key(&self) -> &StateKey {
        &self.stages.key
    }

    /// The compiled stages, as data.
    pub fn describe(&self) -> Description {
        Description::of(&self.slot.latest())
    }

    /// Whole permits left in the rate limit's bucket; none without a rate limit. Takes nothing.
    pub async fn available_permits(&self) -> Option<u64> {
        let stages = self.slot.latest();
        let limit = stages.rate_limit.as_ref()?;
        let now = stages.clock.now();
        Some(stages.store.peek(&limit.bucket, now).await.permits())
    }

    /// Whole permits in the rate limit's bucket as far as this process knows: nobody is asked. None without a rate limit,
    /// or if nothing is known of the bucket yet.
    pub fn cached_permits(&self) -> Option<u64> {
        let stages = self.slot.latest();
        let limit = stages.rate_limit.as_ref()?;
        Some(stages.store.cached_level(&limit.bucket, stages.clock.now())?.permits())
    }

    /// Slots of the bulkhead: how many there are, how many are taken, how many wait for one; none without a bulkhead.
    pub fn bulkhead(&self) -> Option<BulkheadView> {
        let stages = self.slot.latest();
        Some(stages.bulkhead.as_ref()?.bulkhead.view())
    }

    /// Slots of the bulkhead that could be taken now; none without a bulkhead.
    pub fn available_slots(&self) -> Option<u32> {
        self.bulkhead().map(|view| view.available_slots())
    }

    /// How long an attempt may take now before a copy of it is sent; none without a hedge.
    pub fn hedge_delay(&self) -> Option<Duration> {
        let stages = self.slot.latest();
        Some(stages.hedge_delay(stages.hedge.as_ref()?, stages.clock.now()))
    }

    /// The state of the circuit; none without a breaker.
    pub async fn circuit(&self) -> Option<BreakerView> {
        let stages = self.slot.latest();
        let Circuit::Breaker { breaker, .. } = &stages.circuit else {
            return None;
        };
        let now = stages.clock.now();
        Some(stages.store.inspect(breaker, now).await)
    }

    /// The circuit's phase as far as this process knows, and the operator's word above it: nobody is asked. A lever here is
    /// above a word in the store. While one is forcing the circuit closed the breaker is not in use and its phase is told
    /// as closed. None without a breaker.
    pub fn cached_phase(&self) -> Option<(Phase, Option<Override>)> {
        let stages = self.slot.latest();
        let Circuit::Breaker { breaker, .. } = &stages.circuit else {
            // The policy has one and it is not here: only a lever takes it out.
            return stages.policy.breaker.is_some().then_some((Phase::Closed, Some(Override::Closed)));
        };
        let (phase, word) = stages.store.cached_phase(breaker);
        Some((phase, if stages.shut { Some(Override::Open) } else { word }))
    }

    /// Puts an operator's word above the circuit's phase, or takes it away. False if there is no breaker to obey it.
    pub async fn force(&self, overridden: Option<Override>) -> bool {
        let stages = self.slot.latest();
        let Circuit::Breaker { breaker, .. } = &stages.circuit else {
            return false;
        };
        stages.store.force(breaker, overridden).await;
        stages.observers.emit(&stages.key, EventKind::Override(overridden));
        true
    }

    /// Back to a closed circuit that has seen nothing. Nothing happens without a breaker.
    pub async fn reset(&self) {
        let stages = self.slot.latest();
        if let Circuit::Breaker { breaker, .. } = &stages.circuit {
            let now = stages.clock.now();
            if let Some(change) = stages.store.reset(breaker, now).await {
                stages.observers.emit(&stages.key, EventKind::Transition(change));
            }
        }
    }

    pub(crate) fn emit(&self, kind: EventKind<'_>) {
        self.stages.observers.emit(&self.stages.key, kind);
    }

    /// The stages to run a call on: the kept ones, unless the policy changed since.
    #[inline]
    pub(crate) fn current(&self) -> Current<'_, S> {
        if self.stages.is_superseded() { Current::Newer(self.slot.latest()) } else { Current::Kept(&self.stages) }
    }
}

/// A call's snapshot of the policy. In-flight calls keep it, whatever changes meanwhile.
pub(crate) enum Current<'a, S: Store> {
    Kept(&'a Stages<S>),
    Newer(Arc<Stages<S>>),
}

impl<S: Store> std::ops::Deref for Current<'_, S> {
    type Target = Stages<S>;

    #[inline]
    fn deref(&self) -> &Stages<S> {
        match self {
            Self::Kept(stages) => stages,
            Self::Newer(stages) => stages,
        }
    }
}

impl<S: Store> Clone for Pipeline<S> {
    fn clone(&self) -> Self {
        Self::new(self.slot.clone())
    }
}

impl<S: Store> std::fmt::Debug for Pipeline<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pipeline").field(self.key()).finish()
    }
}

//! One policy on one route, compiled: the handle that hot callers keep.
//!
//! A call in memory, from the caller to its answer:
//!
//! ```text
//!   module.run("vendor", "eu", op)                 phalanx/src/module.rs
//!     │
//!     ▼  Engine::run                               engine.rs                     (policy, route) → route entry, from the
//!     │                                            pipeline/route_entry.rs       table or compiled on first use
//!     ▼  Pipeline::run                             pipeline.rs                   takes the compiled stages of the latest
//!     │                                            pipeline/stages.rs            version; this is the call's snapshot
//!     ▼  walk(stages, options, classifier, op)     pipeline/walk.rs              fills a CallState (pipeline/call_state.rs)
//!     │
//!     │  1 gate      enter_pipeline                call_state/gate.rs            drain gate
//!     │                                            call_state/admission.rs       lever · guards · deadline · guards
//!     │  2 admit     acquire_permits               call_state/admission.rs       rate limit ─────────────┐
//!     │              enter_bulkhead                call_state/bulkhead_slot.rs   bulkhead, and its queue │
//!     │              ask_breaker                   call_state/admission.rs       breaker | throttle ─────┤
//!     │                                                                                                  ├─► Store
//!     │  3 attempt   start_attempt, run_operation  walk.rs, call_state.rs        retry ⟲ timeout ⏱ op    │   (store.rs)
//!     │              race                          race.rs                       hedges, if it is slow   │
//!     │  4 settle    record_attempt, settle_call   call_state/settlement.rs      one outcome for every   │
//!     │                                            latency_watch.rs              stage that admitted ────┘
//!     │  5 answer    end_plain                     walk.rs                       `Finished` event (event.rs)
//!     ▼
//!   Ok(T) | Err(Rejected(rejection)) | Err(Inner(e))
//! ```
//!
//! `admission.rs` is entered three times because its methods are the admission side of three stages, in the order in which
//! the walk calls them. [`Call`](crate::call::Call) (call.rs) runs the same walk with options of its own and a different
//! step 5: it adds the fallback and the decision record. A call that is rejected, cancelled or panics goes from wherever
//! it is to step 4: `Drop` of the call state gives back what it holds.
//!
//! The order of the stages is fixed; [`Stage`](crate::policy::Stage) explains each position. Custom guards run between the
//! stages, by their order.

mod call_state;
#[cfg(feature = "chaos")]
mod chaos;
mod cost;
mod describe;
mod effective_policy;
mod fleet_budget;
mod latency_watch;
mod limits;
mod race;
mod route_entry;
mod stages;
mod trace;
mod walk;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::call_state::CallState;
pub use self::cost::Reservation;
pub use self::describe::{Description, StageDescription};
pub(crate) use self::effective_policy::EffectivePolicy;
pub(crate) use self::limits::TaggedSets;
pub(crate) use self::route_entry::RouteEntry;
pub(crate) use self::stages::{Circuit, RouteState, Stages};
pub(crate) use self::trace::in_current_span;
use self::walk::end_plain;
pub(crate) use self::walk::walk;
use crate::breaker::{BreakerView, Override, Phase};
use crate::bulkhead::BulkheadView;
use crate::classify::{ByError, Classifier, Classify};
use crate::context::{CallTags, Context};
use crate::error::Error;
use crate::event::EventKind;
use crate::key::StateKey;
use crate::rate_limit::Level;
use crate::rejection::{Rejection, RejectionCode, Source, UNKNOWN};
use crate::store::Store;

/// The options of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallOptions<'a> {
    pub(crate) cost: u32,
    /// The call's own tags.
    pub(crate) tags: CallTags<'a>,
    /// The deadline and criticality of this call, which tighten those of the task.
    pub(crate) context: Context,
    /// Whether the caller asked for the decision record.
    pub(crate) recorded: bool,
    /// The operation may be started once: no retry, no hedge.
    pub(crate) once: bool,
}

impl CallOptions<'_> {
    pub(crate) const DEFAULT: Self =
        Self { cost: 1, tags: CallTags::NONE, context: Context::EMPTY, recorded: false, once: false };

    pub(crate) const ONCE: Self = Self { once: true, ..Self::DEFAULT };
}

/// A policy on a route, resolved once and run many times. Cheap to clone; clones share all state.
///
/// A change of the policy applies to existing pipelines too. One that was cloned after the change skips an atomic
/// reference count per call.
pub struct Pipeline<S: Store> {
    entry: Arc<RouteEntry<S>>,
    stages: Arc<Stages<S>>,
}

impl<S: Store> Pipeline<S> {
    pub(crate) fn new(entry: Arc<RouteEntry<S>>) -> Self {
        let stages = entry.latest();
        Self { entry, stages }
    }

    /// Runs an operation under the policy. Its error classifies itself through [`Classify`].
    ///
    /// # Errors
    /// Returns the policy's rejection, or the operation's own error.
    pub fn run<T, E, F, Fut>(&self, operation: F) -> impl Future<Output = Result<T, Error<E>>>
    where
        E: Classify,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        walk(self.current(), &CallOptions::DEFAULT, ByError, operation, end_plain)
    }

    /// As [`run`](Self::run), with a classifier. With `repeatable` false the operation is started once: no retry, no
    /// hedge, whatever the policy configures. For layers around services: as cheap as `run`, while a
    /// [`Call`](crate::call::Call) costs a little more.
    ///
    /// # Errors
    /// Returns the policy's rejection, or the operation's own error.
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
        let options = if repeatable { &CallOptions::DEFAULT } else { &CallOptions::ONCE };
        walk(self.current(), options, classifier, operation, end_plain)
    }

    /// Whether a call may start its operation more than once: whether the policy has a retry or a hedge.
    pub fn repeats(&self) -> bool {
        let stages = self.current();
        stages.hedge.is_some() || stages.retry.is_some_and(|retry| retry.max_attempts > 1)
    }

    /// Checks that the policy may guard a whole port. After an `infrastructure` failure it is unknown whether the call
    /// took effect, so retrying it is a decision for each method, not for the port. A lever that switches retries off does
    /// not help, because it can be released.
    ///
    /// From the first success on, a change that would make this policy retry `infrastructure` is rejected as a whole.
    ///
    /// # Errors
    /// Returns `blanket_retry` if the policy retries `infrastructure`.
    #[inline]
    pub fn check_blanket_retry(&self) -> Result<(), Rejection> {
        let check = |stages: &Stages<S>| {
            let rejection = || Rejection::by(stages.name, RejectionCode::BlanketRetry, UNKNOWN, Source::Local);
            if stages.policy.is_blanket_retry() { Err(rejection()) } else { Ok(()) }
        };
        let stages = self.current();
        check(&stages)?;
        stages.state.port.bind(&stages.policy.name, || check(&self.entry.latest()))
    }

    /// Returns the policy and route.
    pub fn key(&self) -> &StateKey {
        &self.stages.key
    }

    /// Returns the compiled stages, as data.
    pub fn describe(&self) -> Description {
        Description::of(&self.entry.latest())
    }

    /// Returns the whole permits left in the rate limit's bucket, without taking any; none without a rate limit. Of several
    /// limits: of the one that has the fewest left, of those that do not count by a tag.
    pub async fn available_permits(&self) -> Option<u64> {
        let stages = self.entry.latest();
        if let Some(limits) = &stages.limits {
            let mut least = None;
            for bucket in limits.shared_buckets() {
                let left = stages.store.peek(bucket, stages.clock.now()).await.permits();
                least = Some(least.map_or(left, |least: u64| least.min(left)));
            }
            return least;
        }
        let limit = stages.rate_limit.as_ref()?;
        let now = stages.clock.now();
        Some(stages.store.peek(&limit.bucket, now).await.permits())
    }

    /// Returns the whole permits in the rate limit's bucket as this process last saw them, without asking a shared store;
    /// none without a rate limit, or before anything is known of the bucket. Of several limits as
    /// [`available_permits`](Self::available_permits).
    pub fn cached_permits(&self) -> Option<u64> {
        let stages = self.entry.latest();
        if let Some(limits) = &stages.limits {
            let now = stages.clock.now();
            let levels = limits.shared_buckets().filter_map(|bucket| stages.store.cached_level(bucket, now));
            return levels.map(Level::permits).min();
        }
        let limit = stages.rate_limit.as_ref()?;
        Some(stages.store.cached_level(&limit.bucket, stages.clock.now())?.permits())
    }

    /// Returns the limit of the bulkhead, its slots in use and its queue; none without a bulkhead.
    pub fn bulkhead(&self) -> Option<BulkheadView> {
        let stages = self.entry.latest();
        Some(stages.bulkhead.as_ref()?.bulkhead.view())
    }

    /// Returns the free slots of the bulkhead; none without a bulkhead.
    pub fn available_slots(&self) -> Option<u32> {
        self.bulkhead().map(|view| view.available_slots())
    }

    /// Returns how long an attempt may run now before a hedge is started; none without a hedge.
    pub fn hedge_delay(&self) -> Option<Duration> {
        let stages = self.entry.latest();
        Some(stages.hedge_delay(stages.hedge.as_ref()?, stages.clock.now()))
    }

    /// Returns the state of the breaker; none without a breaker.
    pub async fn circuit(&self) -> Option<BreakerView> {
        let stages = self.entry.latest();
        let Circuit::Breaker { breaker, .. } = &stages.circuit else {
            return None;
        };
        let now = stages.clock.now();
        Some(stages.store.inspect(breaker, now).await)
    }

    /// Returns the breaker's phase as this process last saw it, and the override above it, without asking a shared store;
    /// none without a breaker. A lever of this process takes precedence over an override in the store. While a lever
    /// forces the breaker closed it is not in use, and its phase is `Closed`.
    pub fn cached_phase(&self) -> Option<(Phase, Option<Override>)> {
        let stages = self.entry.latest();
        let Circuit::Breaker { breaker, .. } = &stages.circuit else {
            // A breaker in the policy but not in the stages: a lever forces it closed.
            return stages.policy.breaker.is_some().then_some((Phase::Closed, Some(Override::Closed)));
        };
        let (phase, overridden) = stages.store.cached_phase(breaker);
        Some((phase, if stages.forced_open { Some(Override::Open) } else { overridden }))
    }

    /// Sets or releases an override of the breaker's phase. Returns false without a breaker.
    pub async fn force(&self, overridden: Option<Override>) -> bool {
        let stages = self.entry.latest();
        let Circuit::Breaker { breaker, .. } = &stages.circuit else {
            return false;
        };
        stages.store.force(breaker, overridden).await;
        stages.observers.emit(&stages.key, EventKind::Override(overridden));
        true
    }

    /// Resets the breaker to closed, with no samples. Does nothing without a breaker.
    pub async fn reset(&self) {
        let stages = self.entry.latest();
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

    /// Returns the stages to run a call on: the cached ones, unless the policy has changed since.
    #[inline]
    pub(crate) fn current(&self) -> Current<'_, S> {
        if self.stages.is_superseded() { Current::Newer(self.entry.latest()) } else { Current::Cached(&self.stages) }
    }
}

/// A call's snapshot of the policy: a call in flight keeps it, whatever changes meanwhile.
pub(crate) enum Current<'a, S: Store> {
    Cached(&'a Stages<S>),
    Newer(Arc<Stages<S>>),
}

impl<S: Store> std::ops::Deref for Current<'_, S> {
    type Target = Stages<S>;

    #[inline]
    fn deref(&self) -> &Stages<S> {
        match self {
            Self::Cached(stages) => stages,
            Self::Newer(stages) => stages,
        }
    }
}

impl<S: Store> Clone for Pipeline<S> {
    fn clone(&self) -> Self {
        Self::new(self.entry.clone())
    }
}

impl<S: Store> std::fmt::Debug for Pipeline<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pipeline").field(self.key()).finish()
    }
}

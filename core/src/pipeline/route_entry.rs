//! The entry of one policy and route in the engine's table.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::effective_policy::EffectivePolicy;
use super::limits::{LimitsStage, TaggedSets};
use super::stages::{Circuit, RouteState, Stages};
use crate::event::Observers;
use crate::key::StateKey;
use crate::store::Store;
use crate::table::{Entry, Retention};

/// One policy on one route, over all versions of the policy: holds the stages of the latest one.
pub(crate) struct RouteEntry<S: Store> {
    latest: ArcSwap<Stages<S>>,
    /// The sets of limits of the engine.
    sets: Arc<TaggedSets<S>>,
}

impl<S: Store> RouteEntry<S> {
    pub(crate) fn new(
        key: StateKey,
        policy: &EffectivePolicy,
        store: S,
        observers: &Observers,
        state: RouteState,
        sets: &Arc<TaggedSets<S>>,
    ) -> Self {
        let observers = observers.for_route(&key);
        let stages = Stages::compile(Arc::new(key), policy, store, observers, Arc::new(state), sets);
        Self { latest: ArcSwap::from_pointee(stages), sets: sets.clone() }
    }

    pub(crate) fn latest(&self) -> Arc<Stages<S>> {
        self.latest.load_full()
    }

    /// Compiles another version of the policy over the same state.
    pub(crate) fn recompile(&self, policy: &EffectivePolicy) {
        let old = self.latest();
        let (store, observers) = (old.store.clone(), old.observers.clone());
        let new = Stages::compile(old.key.clone(), policy, store, observers, old.state.clone(), &self.sets);
        self.latest.store(Arc::new(new));
        old.supersede(); // last: a pipeline that sees the flag must find the new stages
    }
}

impl<S: Store> Entry for RouteEntry<S> {
    /// Bucket and breaker decide; everything else a route holds (throttle, budgets, digest) is relearned within seconds.
    fn retention(&self) -> Retention {
        let stages = self.latest.load();
        let one = stages.rate_limit.iter().map(|limit| &limit.bucket);
        let several = stages.limits.iter().flat_map(LimitsStage::shared_buckets);
        let bucket = one.chain(several).map(|bucket| stages.store.bucket_retention(bucket)).max();
        let breaker = match &stages.circuit {
            Circuit::Breaker { breaker, .. } => Some(stages.store.breaker_retention(breaker)),
            Circuit::Throttle { .. } | Circuit::None => None,
        };
        bucket.max(breaker).unwrap_or(Retention::Relearnable).max(Retention::Relearnable)
    }
}

//! The place of one key: the newest stages, and what stays when they change.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::said::Said;
use super::stages::{Circuit, Kept, Stages};
use crate::event::Observers;
use crate::key::StateKey;
use crate::store::Store;
use crate::table::{Entry, Retention};

/// One policy on one route, over all its versions.
pub(crate) struct Slot<S: Store> {
    latest: ArcSwap<Stages<S>>,
}

impl<S: Store> Slot<S> {
    pub(crate) fn new(key: StateKey, said: Said, store: S, observers: &Observers, kept: Kept) -> Self {
        let observers = observers.on(&key);
        let stages = Stages::compile(Arc::new(key), said, store, observers, Arc::new(kept));
        Self { latest: ArcSwap::from_pointee(stages) }
    }

    pub(crate) fn latest(&self) -> Arc<Stages<S>> {
        self.latest.load_full()
    }

    /// Compiles something newer over the same state.
    pub(crate) fn retune(&self, said: Said) {
        let old = self.latest();
        let (store, observers) = (old.store.clone(), old.observers.clone());
        let new = Stages::compile(old.key.clone(), said, store, observers, old.kept.clone());
        self.latest.store(Arc::new(new));
        old.supersede(); // last, so that whoever sees it finds the new one
    }
}

/// Kept for as long as its bucket or its breaker must be; the rest (throttle, budgets) is relearned within seconds.
impl<S: Store> Entry for Slot<S> {
    fn retention(&self) -> Retention {
        let stages = self.latest.load();
        let bucket = stages.rate_limit.as_ref().map(|limit| stages.store.bucket_retention(&limit.bucket));
        let breaker = match &stages.circuit {
            Circuit::Breaker { breaker, .. } => Some(stages.store.breaker_retention(breaker)),
            Circuit::Throttle(_) | Circuit::None => None,
        };
        bucket.max(breaker).unwrap_or(Retention::Relearnable).max(Retention::Relearnable)
    }
}

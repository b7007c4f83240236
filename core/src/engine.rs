//! From two names to a pipeline: the policies, and the table of routes they run on.

mod change;
mod policies;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

pub use self::change::{ConfigChange, Noting, PolicySet};
use self::policies::Policies;
use crate::call::Call;
use crate::classify::Classify;
use crate::drain::{Door, Gate};
use crate::error::Error;
use crate::event::{EventKind, Observer, Observers};
use crate::key::{BorrowedKey, MAX_ROUTE_BYTES, Route, StateKey};
use crate::levers::LeverSpec;
use crate::pipeline::{Kept, Pipeline, Said, Slot};
use crate::policy::Policy;
use crate::policy::validate::{ConfigError, Mistake};
use crate::rejection::{Rejection, RejectionCode};
use crate::rng::Rng;
use crate::store::Store;
use crate::table::Table;

/// What a name without a policy means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum UnknownPolicy {
    /// A mistake: wiring fails, calls are rejected with `unknown_policy`.
    #[default]
    Error,
    /// A policy without stages.
    Passthrough,
}

/// How an engine is made.
#[derive(Debug)]
pub struct EngineSpec {
    /// The policies, by name. `occ` and `transient` are there unless overridden.
    pub policies: Vec<Policy>,
    /// For every name that has no policy of its own. Default none.
    pub default_policy: Option<Policy>,
    /// What a name without a policy means, if there is no default policy either.
    pub unknown: UnknownPolicy,
    /// Levers that are pulled from the beginning, by policy; `*` for every one.
    pub levers: BTreeMap<String, LeverSpec>,
    /// How many (policy, route) pairs are kept at a time. Default 10,000.
    pub max_routes: usize,
    /// The seed of jitter and shedding. Default: drawn by the operating system.
    pub seed: Option<u64>,
    /// Who is told of events.
    pub observers: ObserverList,
    /// Whether calls and attempts have spans; needs the feature `tracing`. Default no.
    pub traced: bool,
}

/// Observers while an engine is being made.
#[derive(Clone, Default)]
pub struct ObserverList(pub Vec<Arc<dyn Observer>>);

impl std::fmt::Debug for ObserverList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ObserverList").field(&self.0.len()).finish()
    }
}

impl Default for EngineSpec {
    fn default() -> Self {
        Self {
            policies: Vec::new(),
            default_policy: None,
            unknown: UnknownPolicy::Error,
            levers: BTreeMap::new(),
            max_routes: 10_000,
            seed: None,
            observers: ObserverList::default(),
            traced: false,
        }
    }
}

/// All policies over one store. Cheap to clone; clones are the same engine.
pub struct Engine<S: Store>(Arc<Shared<S>>);

/// An engine that does not live for the sake of whoever holds this.
pub struct WeakEngine<S: Store>(Weak<Shared<S>>);

impl<S: Store> WeakEngine<S> {
    /// The engine, if anybody else still uses it.
    pub fn upgrade(&self) -> Option<Engine<S>> {
        self.0.upgrade().map(Engine)
    }
}

struct Shared<S: Store> {
    store: S,
    observers: Observers,
    traced: bool,
    door: Door,
    rng: Rng,
    policies: RwLock<Policies>,
    slots: Table<Slot<S>>,
    /// By policy: the slot of all routes that found no place in the table.
    overflow: Mutex<HashMap<String, Arc<Slot<S>>>>,
    /// One retuning at a time, so that versions reach all routes in the order they were given.
    retuning: Mutex<()>,
}

impl<S: Store> Engine<S> {
    /// An engine over a store.
    ///
    /// # Errors
    /// Every mistake of every policy, each with its path.
    pub fn new(store: S, spec: EngineSpec) -> Result<Self, ConfigError> {
        let plan = PolicySet { policies: spec.policies, default_policy: spec.default_policy, levers: spec.levers };
        let (policies, mut mistakes) = Policies::new(plan, spec.unknown);
        if spec.max_routes == 0 {
            mistakes.push(Mistake::new("max_routes", "must be at least 1"));
        }
        if !mistakes.is_empty() {
            return Err(ConfigError { mistakes });
        }
        Ok(Self(Arc::new(Shared {
            store,
            observers: Observers::new(spec.observers.0),
            traced: spec.traced,
            door: Door::default(),
            rng: spec.seed.map_or_else(Rng::from_entropy, Rng::seeded),
            policies: RwLock::new(policies),
            slots: Table::new(spec.max_routes),
            overflow: Mutex::default(),
            retuning: Mutex::new(()),
        })))
    }

    /// Resolves a policy on a route. Hot callers keep the result.
    ///
    /// # Errors
    /// `unknown_policy` or `route_too_long`.
    pub fn pipeline<'a>(&self, policy: &str, route: impl Into<Route<'a>>) -> Result<Pipeline<S>, Rejection> {
        let key = BorrowedKey::new(policy, route.into());
        match self.0.slots.find(key) {
            Some(slot) => Ok(Pipeline::new(slot)),
            None => self.first_seen(key),
        }
    }

    /// Runs an operation under a policy on a route.
    ///
    /// # Errors
    /// The policy's rejection, or the operation's own error.
    pub async fn run<'a, T, E, F, Fut>(
        &self,
        policy: &str,
        route: impl Into<Route<'a>>,
        operation: F,
    ) -> Result<T, Error<E>>
    where
        E: Classify,
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.pipeline(policy, route)?.run(operation).await
    }

    /// A call with terms of its own. A policy that does not exist is told when the call is run.
    pub fn call<'a>(&self, policy: &str, route: impl Into<Route<'a>>) -> Call<'static, S> {
        Call::found(self.pipeline(policy, route))
    }

    fn slots(&self) -> Vec<Arc<Slot<S>>> {
        let mut slots = self.0.slots.values();
        slots.extend(self.0.overflow.lock().values().cloned());
        slots
    }

    /// The policies' names, sorted.
    pub fn policies(&self) -> Vec<String> {
        self.0.policies.read().names()
    }

    /// The policies themselves, sorted by name.
    pub fn named_policies(&self) -> Vec<Arc<Policy>> {
        let policies = self.0.policies.read();
        policies.names().iter().filter_map(|name| Some(policies.find(name)?.policy)).collect()
    }

    /// The policy of every name that has none of its own.
    pub fn default_policy(&self) -> Option<Arc<Policy>> {
        self.0.policies.read().default_policy()
    }

    /// What a name without a policy means, if there is no default policy either.
    pub fn unknown(&self) -> UnknownPolicy {
        self.0.policies.read().unknown()
    }

    /// Every pipeline that has been used and not been forgotten.
    pub fn pipelines(&self) -> Vec<Pipeline<S>> {
        self.slots().into_iter().map(Pipeline::new).collect()
    }

    /// Lets every call from now on come in by this gate, so that it can be drained. False if another one is attached
    /// already: that one stays.
    pub fn attach(&self, gate: &Gate) -> bool {
        self.0.door.attach(gate)
    }

    /// A hand on it that does not keep it alive: for whoever looks at it now and then.
    pub fn downgrade(&self) -> WeakEngine<S> {
        WeakEngine(Arc::downgrade(&self.0))
    }

    /// Tells the observers of something that concerns all of it.
    pub fn emit(&self, kind: EventKind<'_>) {
        self.0.observers.emit_all(kind);
    }

    /// The store all of it stands on.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    #[cold]
    fn first_seen(&self, key: BorrowedKey<'_>) -> Result<Pipeline<S>, Rejection> {
        if key.route.is_some_and(|route| route.len() > MAX_ROUTE_BYTES) {
            return Err(Rejection::new(RejectionCode::RouteTooLong));
        }
        let shared = &self.0;
        // Held until the slot stands in the table: see `change`.
        let policies = shared.policies.read();
        let said = policies.find(key.policy).ok_or_else(|| Rejection::unknown(key.policy))?;
        let make = |key: StateKey, said: Said| {
            let (store, observers) = (shared.store.clone(), &shared.observers);
            let kept = Kept::new(shared.rng.fork(), shared.door.clone(), shared.traced);
            Slot::new(key, said, store, observers, kept)
        };
        let own = key.to_owned();
        let slot = match shared.slots.find_or_make(&own, || make(own.clone(), said.clone())) {
            Some(slot) => slot,
            None => {
                // No entry can be removed. A full bucket for each new name would be no limit at all, so new routes of a
                // policy share one state until an entry can be removed.
                let name = policies.overflow_name(key.policy);
                let said = policies.find(name).unwrap_or(said);
                let shared_by_all = shared
                    .overflow
                    .lock()
                    .entry(name.to_owned())
                    .or_insert_with(|| Arc::new(make(StateKey::overflow(name), said)))
                    .clone();
                drop(policies); // an observer may want to change something itself
                shared.observers.emit(&own, EventKind::RoutesExhausted);
                shared_by_all
            }
        };
        Ok(Pipeline::new(slot))
    }
}

impl<S: Store> Clone for Engine<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Store> std::fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("policies", &self.policies()).finish_non_exhaustive()
    }
}

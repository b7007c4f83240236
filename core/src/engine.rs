//! The engine: resolves a policy name and a route to a pipeline, and holds the policies and the table of routes.

mod change;
mod policies;
mod ports;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

pub use self::change::{ConfigChange, ConfigTxn, PolicySet};
use self::policies::Policies;
pub(crate) use self::ports::PortBinding;
use self::ports::Ports;
use crate::call::Call;
use crate::classify::Classify;
use crate::drain::{Gate, GateCell};
use crate::error::Error;
use crate::event::{EventKind, Observer, Observers};
use crate::key::{BorrowedKey, MAX_ROUTE_BYTES, Route, StateKey};
use crate::levers::LeverSpec;
use crate::pipeline::{EffectivePolicy, Pipeline, RouteEntry, RouteState, TaggedSets};
use crate::policy::validate::{ConfigError, Mistake};
use crate::policy::{OnDegraded, Policy};
use crate::rejection::{Rejection, RejectionCode};
use crate::rng::Rng;
use crate::store::Store;
use crate::table::Table;
use crate::top_keys::{TopKey, TopKeys};

/// How to treat a name that has no policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum UnknownPolicy {
    /// Rejects it: pipelines cannot be resolved, and calls fail with `unknown_policy`.
    #[default]
    Error,
    /// Treats it as a policy without stages.
    Passthrough,
}

/// The configuration of an engine.
#[derive(Debug)]
pub struct EngineSpec {
    /// The policies. The built-in `occ` and `transient` are added unless a policy has that name.
    pub policies: Vec<Policy>,
    /// The policy of every name that has none of its own. Default none.
    pub default_policy: Option<Policy>,
    /// How to treat a name that has no policy, if there is no default policy either.
    pub unknown: UnknownPolicy,
    /// What policies without their own choice do while the shared store is away. Default: decide from local state.
    pub on_degraded: OnDegraded,
    /// Levers that are pulled from the start, by policy; `*` for every policy.
    pub levers: BTreeMap<String, LeverSpec>,
    /// The maximum of (policy, route) pairs in the table, and of values of tags that limits count by. Default 10,000.
    pub max_routes: usize,
    /// The seed of jitter and shedding. Default: from the operating system.
    pub seed: Option<u64>,
    /// The observers that receive events.
    pub observers: ObserverList,
    /// Whether calls and attempts have spans; needs the feature `tracing`. Default false.
    pub traced: bool,
}

/// The observers of an [`EngineSpec`].
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
            on_degraded: OnDegraded::Local,
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

/// A weak handle that does not keep the engine alive.
pub struct WeakEngine<S: Store>(Weak<Shared<S>>);

impl<S: Store> WeakEngine<S> {
    /// Returns the engine, if it is still alive.
    pub fn upgrade(&self) -> Option<Engine<S>> {
        self.0.upgrade().map(Engine)
    }
}

struct Shared<S: Store> {
    store: S,
    observers: Observers,
    traced: bool,
    gate: GateCell,
    rng: Rng,
    /// Keys whose calls the rate limits rejected.
    rejected: Arc<TopKeys>,
    policies: RwLock<Policies>,
    routes: Table<RouteEntry<S>>,
    /// The sets of limits of values of tags; as many as there may be routes.
    sets: Arc<TaggedSets<S>>,
    /// By policy: the entry that all routes without room in the table share.
    overflow: Mutex<HashMap<String, Arc<RouteEntry<S>>>>,
    /// One change at a time, so that all routes see the versions in the same order. Locked before `policies`.
    changing: Mutex<()>,
    /// Locked last.
    ports: Ports,
}

impl<S: Store> Engine<S> {
    /// Returns an engine over a store.
    ///
    /// # Errors
    /// Returns every validation error of every policy and lever, each with its path.
    pub fn new(store: S, spec: EngineSpec) -> Result<Self, ConfigError> {
        let set = PolicySet { policies: spec.policies, default_policy: spec.default_policy, levers: spec.levers };
        let (policies, mut mistakes) = Policies::new(set, spec.unknown, spec.on_degraded);
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
            rejected: Arc::default(),
            gate: GateCell::default(),
            rng: spec.seed.map_or_else(Rng::from_entropy, Rng::seeded),
            policies: RwLock::new(policies),
            routes: Table::new(spec.max_routes),
            sets: Arc::new(Table::new(spec.max_routes)),
            overflow: Mutex::default(),
            changing: Mutex::new(()),
            ports: Ports::default(),
        })))
    }

    /// Resolves a policy on a route. Hot callers keep the result.
    ///
    /// # Errors
    /// Returns `unknown_policy` or `route_too_long`.
    pub fn pipeline<'a>(&self, policy: &str, route: impl Into<Route<'a>>) -> Result<Pipeline<S>, Rejection> {
        let key = BorrowedKey::new(policy, route.into());
        match self.0.routes.find(key) {
            Some(entry) => Ok(Pipeline::new(entry)),
            None => self.add_route(key),
        }
    }

    /// Runs an operation under a policy on a route.
    ///
    /// # Errors
    /// Returns the policy's rejection, or the operation's own error.
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

    /// Returns a builder for a call with options. An unknown policy is reported when the call is run.
    pub fn call<'a>(&self, policy: &str, route: impl Into<Route<'a>>) -> Call<'static, S> {
        Call::resolved(self.pipeline(policy, route))
    }

    fn routes(&self) -> Vec<Arc<RouteEntry<S>>> {
        let mut routes = self.0.routes.values();
        routes.extend(self.0.overflow.lock().values().cloned());
        routes
    }

    /// Returns the names of the policies, sorted.
    pub fn policies(&self) -> Vec<String> {
        self.0.policies.read().names()
    }

    /// Returns the policies, sorted by name.
    pub fn named_policies(&self) -> Vec<Arc<Policy>> {
        let policies = self.0.policies.read();
        policies.names().iter().filter_map(|name| Some(policies.find(name)?.policy)).collect()
    }

    /// Returns the policy of every name that has none of its own.
    pub fn default_policy(&self) -> Option<Arc<Policy>> {
        self.0.policies.read().default_policy()
    }

    /// Returns how a name that has no policy is treated, if there is no default policy either.
    pub fn unknown(&self) -> UnknownPolicy {
        self.0.policies.read().unknown()
    }

    /// Returns what policies without their own choice do while the shared store is away.
    pub fn on_degraded(&self) -> OnDegraded {
        self.0.policies.read().on_degraded()
    }

    /// Returns the pipelines of all routes in the table.
    pub fn pipelines(&self) -> Vec<Pipeline<S>> {
        self.routes().into_iter().map(Pipeline::new).collect()
    }

    /// Attaches a gate that every call from now on enters, so that the engine can be drained. Returns false if another gate
    /// is attached already, which stays.
    pub fn attach(&self, gate: &Gate) -> bool {
        self.0.gate.attach(gate)
    }

    /// Returns a weak handle that does not keep the engine alive.
    pub fn downgrade(&self) -> WeakEngine<S> {
        WeakEngine(Arc::downgrade(&self.0))
    }

    /// Emits an event of the process as a whole.
    pub fn emit(&self, kind: EventKind<'_>) {
        self.0.observers.emit_all(kind);
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Adds a route to the table on its first use.
    /// Returns up to `most` keys whose calls the rate limits of this process have rejected most often, the most frequent
    /// first. At most 64 keys are counted, so that a count may be too high; by how much at most, it says.
    pub fn top_rejected(&self, most: usize) -> Vec<TopKey> {
        self.0.rejected.top(most)
    }

    #[cold]
    fn add_route(&self, key: BorrowedKey<'_>) -> Result<Pipeline<S>, Rejection> {
        if key.route.is_some_and(|route| route.len() > MAX_ROUTE_BYTES) {
            return Err(Rejection::new(RejectionCode::RouteTooLong));
        }
        let shared = &self.0;
        // Held until the entry is in the table: see `change`.
        let policies = shared.policies.read();
        let policy = policies.find(key.policy).ok_or_else(|| Rejection::unknown(key.policy))?;
        let make = |key: StateKey, policy: &EffectivePolicy| {
            let (store, observers) = (shared.store.clone(), &shared.observers);
            let port = PortBinding::new(shared.ports.clone());
            let state =
                RouteState::new(shared.rng.fork(), shared.gate.clone(), shared.traced, port, shared.rejected.clone());
            RouteEntry::new(key, policy, store, observers, state, &shared.sets)
        };
        let own = key.to_owned();
        let entry = match shared.routes.find_or_make(&own, || make(own.clone(), &policy)) {
            Some(entry) => entry,
            None => {
                // No route can be removed. A full bucket for each new route would be no limit at all, so new routes of a
                // policy share one entry until there is room.
                let name = policies.overflow_name(key.policy);
                let policy = policies.find(name).unwrap_or(policy);
                let entry = shared
                    .overflow
                    .lock()
                    .entry(name.to_owned())
                    .or_insert_with(|| Arc::new(make(StateKey::overflow(name), &policy)))
                    .clone();
                drop(policies); // an observer may make a change itself
                shared.observers.emit(&own, EventKind::RoutesExhausted);
                entry
            }
        };
        Ok(Pipeline::new(entry))
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

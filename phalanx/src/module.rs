//! The front door: policies over a store, by name.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use phalanx_core::classify::Classify;
use phalanx_core::clock::Clock;
use phalanx_core::drain::Gate;
use phalanx_core::engine::{ConfigChange, Engine, EngineSpec, Noting, PolicySet, UnknownPolicy};
use phalanx_core::error::Error;
use phalanx_core::event::{Event, Observer};
use phalanx_core::key::Route;
use phalanx_core::levers::LeverSpec;
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::ConfigError;
use phalanx_core::rejection::{Rejection, RejectionCode};
use phalanx_core::rng::Rng;
use phalanx_core::store::Store;
use phalanx_store_memory::{MemoryLocks, MemoryStore};

use crate::backend::Backend;
use crate::origin::{Origin, Origins};
use crate::status_map::StatusMap;

/// One policy on one route, resolved: what a hot caller keeps. Cheap to clone; clones share all state.
pub type Pipeline = phalanx_core::pipeline::Pipeline<Backend>;

/// One call with terms of its own.
pub type Call<'a> = phalanx_core::call::Call<'a, Backend>;

/// All policies of a service. Cheap to clone; clones are the same module.
#[derive(Clone, Debug)]
pub struct ResilienceModule {
    pub(crate) engine: Engine<Backend>,
    pub(crate) locks: MemoryLocks,
    statuses: Arc<StatusMap>,
    pub(crate) origins: Arc<Mutex<Origins>>,
}

/// A short name for [`ResilienceModule`].
pub type Resilience = ResilienceModule;

/// A module being put together.
#[derive(Debug, Default)]
#[must_use = "nothing is checked or made before `build`"]
pub struct ModuleBuilder {
    pub(crate) spec: EngineSpec,
    unknown: Option<UnknownPolicy>,
    max_routes: Option<usize>,
    #[cfg(feature = "config")]
    config: Option<crate::config::Config>,
    statuses: StatusMap,
    clock: Option<Clock>,
    store: Option<MemoryStore>,
    #[cfg(feature = "otel")]
    pub(crate) metrics: Vec<crate::telemetry::Metrics>,
    #[cfg(feature = "redis")]
    pub(crate) fleet: Option<crate::fleet::Shared>,
    #[cfg(feature = "redis")]
    pub(crate) on_degraded: phalanx_core::policy::OnDegraded,
}

impl ResilienceModule {
    /// State in this process only.
    pub fn in_memory() -> ModuleBuilder {
        ModuleBuilder::default()
    }

    /// State in a store that other modules of this process share: several tenants, or a whole fleet in one test.
    pub fn in_store(store: MemoryStore) -> ModuleBuilder {
        ModuleBuilder { store: Some(store), ..ModuleBuilder::default() }
    }

    /// Runs an operation under a policy on a route. A retry runs the whole closure again.
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
        self.engine.run(policy, route, operation).await
    }

    /// A call with terms of its own: cost, classifier, fallback, deadline.
    pub fn call<'a>(&self, policy: &str, route: impl Into<Route<'a>>) -> Call<'static> {
        self.engine.call(policy, route)
    }

    /// Resolves a policy on a route once, for callers that run it often. A misspelt name is found here, at wiring.
    ///
    /// # Errors
    /// `unknown_policy` or `route_too_long`.
    pub fn pipeline<'a>(&self, policy: &str, route: impl Into<Route<'a>>) -> Result<Pipeline, Rejection> {
        self.engine.pipeline(policy, route)
    }

    /// Resolves a policy that is to stand around every method of a port. Repeating an attempt that may have had its
    /// effect is each method's own decision, so a policy that retries `infrastructure` is rejected here.
    ///
    /// # Errors
    /// `blanket_retry`, `unknown_policy` or `route_too_long`.
    pub fn port_pipeline<'a>(&self, policy: &str, route: impl Into<Route<'a>>) -> Result<Pipeline, Rejection> {
        let pipeline = self.engine.pipeline(policy, route)?;
        pipeline.check_blanket_retry()?;
        Ok(pipeline)
    }

    /// Every pipeline that has been used and not been forgotten.
    pub fn pipelines(&self) -> Vec<Pipeline> {
        self.engine.pipelines()
    }

    /// Changes a policy while calls are running: living circuits and buckets keep their state and follow the new
    /// numbers, calls in flight finish under the old ones. Guards are code: unless the new policy brings its own, it
    /// keeps those it had.
    ///
    /// # Errors
    /// Every mistake of the policy, or that there is none of this name; nothing is changed then.
    pub fn retune(&self, policy: Policy) -> Result<(), ConfigError> {
        let name = policy.name.clone();
        self.noting(|origins| origins.now_code(&name)).retune(policy)
    }

    /// Adds a policy while calls are running.
    ///
    /// # Errors
    /// Every mistake of the policy, or that there is one of this name; nothing is changed then.
    pub fn add(&self, policy: Policy) -> Result<(), ConfigError> {
        let name = policy.name.clone();
        self.noting(|origins| origins.now_code(&name)).add(policy)
    }

    /// A change that notes who made it before another can be made: a file that is read meanwhile comes before both or after
    /// both.
    fn noting<'a>(&'a self, note: impl FnOnce(&mut Origins) + 'a) -> Noting<'a, Backend, impl FnOnce()> {
        self.engine.noting(move || note(&mut self.origins.lock()))
    }

    /// Puts a whole configuration in the place of the present one while calls are running; state is kept as in
    /// [`retune`](Self::retune). A policy that the plan does not name any more means from now on what any name without a
    /// policy means. Levers pulled by hand stay pulled.
    ///
    /// # Errors
    /// Every mistake of every policy and lever, and every policy that is in use and would mean nothing; nothing is
    /// changed then.
    pub fn apply(&self, plan: PolicySet) -> Result<ConfigChange, ConfigError> {
        let code = Origins::of_code(&plan.policies, plan.default_policy.is_some(), &plan.levers);
        let note = |origins: &mut Origins| {
            let Origins { pulled, unknown, routes, max_routes, on_degraded, .. } = std::mem::take(origins);
            *origins = Origins { pulled, unknown, routes, max_routes, on_degraded, ..code };
        };
        self.noting(note).apply(plan)
    }

    /// Pulls a lever of a policy, or of every one (`"*"`), in the place of what was pulled or configured before: calls
    /// that start from now on follow it. It holds for this process, until it is released.
    ///
    /// # Errors
    /// Every mistake of the lever, or that no policy has this name; nothing is changed then.
    pub fn pull(&self, policy: &str, lever: LeverSpec) -> Result<(), ConfigError> {
        let note = |origins: &mut Origins| {
            origins.pulled.insert(policy.to_owned());
        };
        self.noting(note).pull(policy, lever)
    }

    /// Releases what was pulled; a lever that is configured holds again. False if nothing was pulled.
    pub fn release(&self, policy: &str) -> bool {
        let note = |origins: &mut Origins| {
            origins.pulled.remove(policy);
        };
        self.noting(note).release(policy)
    }

    /// The levers that are pulled, by policy; `"*"` for every one.
    pub fn levers(&self) -> BTreeMap<String, LeverSpec> {
        self.engine.levers()
    }

    /// The policies' names, sorted.
    pub fn policies(&self) -> Vec<String> {
        self.engine.policies()
    }

    /// Lets every call from now on come in by this gate, so that it can be drained; a `Runtime` does this for its
    /// modules. False if another gate is attached already: that one stays.
    pub fn attach(&self, gate: &Gate) -> bool {
        self.engine.attach(gate)
    }

    /// The HTTP status of a rejection in this service.
    pub fn status(&self, rejection: &Rejection) -> u16 {
        self.statuses.of(rejection.code())
    }
}

impl ModuleBuilder {
    /// Adds a policy. One of the same name as a built-in (`occ`, `transient`) takes its place.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.spec.policies.push(policy);
        self
    }

    /// Adds several policies.
    pub fn policies(mut self, policies: impl IntoIterator<Item = Policy>) -> Self {
        self.spec.policies.extend(policies);
        self
    }

    /// The policy of every name that has none of its own.
    pub fn default_policy(mut self, policy: Policy) -> Self {
        self.spec.default_policy = Some(policy);
        self
    }

    /// What files and the environment say. What this builder is told wins: a policy whole over one of the same name,
    /// and so the default policy, the rule for unknown names and the number of routes. A second one takes the place of
    /// the first.
    #[cfg(feature = "config")]
    pub fn config(mut self, config: crate::config::Config) -> Self {
        self.config = Some(config);
        self
    }

    /// What a name without a policy means. Default: a mistake.
    pub fn unknown_policy(mut self, unknown: UnknownPolicy) -> Self {
        self.unknown = Some(unknown);
        self
    }

    /// A lever that is pulled from the beginning: of a policy, or of every one (`"*"`).
    pub fn lever(mut self, policy: impl Into<String>, lever: LeverSpec) -> Self {
        self.spec.levers.insert(policy.into(), lever);
        self
    }

    /// How many (policy, route) pairs are kept at a time. Default 10,000.
    pub fn max_routes(mut self, routes: usize) -> Self {
        self.max_routes = Some(routes);
        self
    }

    /// Adds somebody who is told of events.
    pub fn observer(self, observer: impl Observer) -> Self {
        self.shared_observer(Arc::new(observer))
    }

    /// Adds somebody who is told of events, and whom you keep a hand on.
    pub fn shared_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.spec.observers.0.push(observer);
        self
    }

    /// Adds a function that is told of events.
    pub fn on_event(self, tell: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.observer(tell)
    }

    /// Spans for calls and attempts, and events as log lines, through `tracing`: see `docs/telemetry.md`.
    #[cfg(feature = "tracing")]
    pub fn traced(mut self) -> Self {
        self.spec.traced = true;
        self
    }

    /// The seed of jitter and shedding, for repeatable runs.
    pub fn seed(mut self, seed: u64) -> Self {
        self.spec.seed = Some(seed);
        self
    }

    /// The clock. Default: the system's, or tokio's where its time is paused. A shared store brings its own.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The HTTP status of a rejection, where this service's custom differs from the table.
    pub fn status(mut self, code: RejectionCode, status: u16) -> Self {
        self.statuses.set(code, status);
        self
    }

    /// Makes the module.
    ///
    /// # Errors
    /// Every mistake of every policy, each with its path.
    pub fn build(self) -> Result<ResilienceModule, ConfigError> {
        let (builder, origins) = self.with_choices().complete();
        builder.make(origins)
    }

    /// What the program says, completed by what it was given from outside.
    fn complete(mut self) -> (Self, Origins) {
        let spec = &self.spec;
        let mut origins = Origins {
            unknown: self.unknown.map(|_| Origin::Code),
            max_routes: self.max_routes.map(|_| Origin::Code),
            #[cfg(feature = "redis")]
            on_degraded: self.on_degraded,
            ..Origins::of_code(&spec.policies, spec.default_policy.is_some(), &spec.levers)
        };
        #[cfg(feature = "config")]
        if let Some(config) = self.config.take() {
            self.unknown = self.unknown.or(config.unknown());
            self.max_routes = self.max_routes.or(config.max_routes());
            let PolicySet { policies, default_policy, levers } = config.beside(&mut origins);
            self.spec.policies.extend(policies);
            self.spec.default_policy = self.spec.default_policy.or(default_policy);
            self.spec.levers.extend(levers);
        }
        self.spec.unknown = self.unknown.unwrap_or_default();
        self.spec.max_routes = self.max_routes.unwrap_or(self.spec.max_routes);
        origins.routes = self.spec.max_routes;
        (self, origins)
    }

    /// Without a fleet there is nothing to choose.
    #[cfg(not(feature = "redis"))]
    fn with_choices(self) -> Self {
        self
    }

    #[cfg_attr(not(feature = "tracing"), allow(unused_mut))]
    fn make(mut self, origins: Origins) -> Result<ResilienceModule, ConfigError> {
        let mut mistakes = self.statuses.mistakes();
        let memory = self.store.unwrap_or_else(|| {
            let clock = self.clock.unwrap_or_default();
            let rng = self.spec.seed.map_or_else(Rng::from_entropy, Rng::seeded);
            MemoryStore::seeded(clock, self.spec.max_routes.max(1), rng)
        });
        #[cfg(feature = "tracing")]
        if self.spec.traced {
            let log = crate::telemetry::Log::new(memory.clock().clone());
            self.spec.observers.0.push(Arc::new(log));
        }
        #[cfg(feature = "redis")]
        let store = match self.fleet {
            None => Backend::memory(memory),
            Some(fleet) => fleet.over(memory, &self.spec).unwrap_or_else(|(memory, error)| {
                mistakes.extend(error.mistakes);
                Backend::memory(memory)
            }),
        };
        #[cfg(not(feature = "redis"))]
        let store = Backend::memory(memory);
        match Engine::new(store, self.spec) {
            Ok(engine) if mistakes.is_empty() => {
                #[cfg(feature = "otel")]
                self.metrics.iter().for_each(|metrics| metrics.watch(&engine));
                let locks = MemoryLocks::new(engine.store().clock().clone());
                let (statuses, origins) = (Arc::new(self.statuses), Arc::new(Mutex::new(origins)));
                Ok(ResilienceModule { engine, locks, statuses, origins })
            }
            Ok(_) => Err(ConfigError { mistakes }),
            Err(error) => {
                mistakes.splice(0..0, origins.place(error).mistakes);
                Err(ConfigError { mistakes })
            }
        }
    }
}

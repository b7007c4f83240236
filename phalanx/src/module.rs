//! The entry point: a module runs operations under policies, by name, over one store.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use parking_lot::Mutex;
use phalanx_core::classify::Classify;
use phalanx_core::clock::Clock;
use phalanx_core::drain::Gate;
use phalanx_core::engine::{ConfigChange, Engine, EngineSpec, PolicySet, UnknownPolicy};
use phalanx_core::error::Error;
use phalanx_core::event::{Event, Observer};
use phalanx_core::key::Route;
use phalanx_core::levers::LeverSpec;
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::ConfigError;
use phalanx_core::rejection::{Rejection, RejectionCode};
use phalanx_core::rng::Rng;
use phalanx_core::store::Store;
use phalanx_core::top_keys::TopKey;
use phalanx_store_memory::{MemoryLocks, MemoryStore};

use crate::backend::Backend;
use crate::origin::{Origin, Origins};
use crate::status_map::StatusMap;

/// One policy on one route, resolved once and run many times. Clones are cheap and share all state.
///
/// [`ResilienceModule::run`] looks the pipeline up on every call; a hot path keeps a `Pipeline` and saves the lookup.
/// Configuration changes reach existing pipelines.
///
/// # Examples
///
/// ```
/// use phalanx::{BreakerSpec, Kind, Policy, RejectionCode, ResilienceModule};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let vendor = Policy::named("vendor").breaker(BreakerSpec::consecutive_failures(1));
/// let module = ResilienceModule::in_memory().policy(vendor).build()?;
/// let pipeline = module.pipeline("vendor", "eu")?; // rejects a misspelt name here, at startup
/// assert!(pipeline.run(|| async { Err::<(), _>(Kind::Infrastructure) }).await.is_err());
/// let rejected = pipeline.run(|| async { Ok::<_, Kind>(()) }).await.unwrap_err();
/// assert_eq!(rejected.rejection().unwrap().code(), RejectionCode::CircuitOpen);
/// # Ok(())
/// # }
/// ```
pub type Pipeline = phalanx_core::pipeline::Pipeline<Backend>;

/// One call with its own cost, deadline, criticality, classifier or fallback; created by [`ResilienceModule::call`] and
/// [`Pipeline::call`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use phalanx::{Kind, Policy, RateLimitSpec, ResilienceModule};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let search = Policy::named("search").rate_limit(RateLimitSpec::per_minute(10));
/// let module = ResilienceModule::in_memory().policy(search).build()?;
/// let call = || module.call("search", "acme").cost(8).within(Duration::from_secs(1)).fallback_value(0);
/// let first = call().run_served(|| async { Ok::<_, Kind>(42) }).await.unwrap();
/// assert_eq!((first.value, first.degraded), (42, None));
/// let second = call().run_served(|| async { Ok::<_, Kind>(42) }).await.unwrap(); // only 2 of 10 permits are left
/// assert!(second.value == 0 && second.degraded.is_some());
/// # Ok(())
/// # }
/// ```
pub type Call<'a> = phalanx_core::call::Call<'a, Backend>;

/// Permits that were taken for work whose true cost is not known yet; created by [`Pipeline::reserve_cost`].
///
/// # Examples
///
/// ```
/// use phalanx::{Policy, RateLimitSpec, ResilienceModule};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = Policy::named("model").rate_limit(RateLimitSpec::per_minute(10_000)); // tokens
/// let module = ResilienceModule::in_memory().policy(model).build()?;
/// let pipeline = module.pipeline("model", "acme")?;
/// let reservation = pipeline.reserve_cost(4_000).await?;
/// // A stream of tokens, of which 1,500 came.
/// reservation.settle_cost(1_500);
/// assert_eq!(pipeline.cached_permits(), Some(8_500));
/// # Ok(())
/// # }
/// ```
pub type Reservation = phalanx_core::pipeline::Reservation<Backend>;

/// All policies of a service, over one store. Clones are cheap and are the same module.
///
/// Created by [`in_memory`](Self::in_memory), [`in_store`](Self::in_store) or, with the feature `redis`, `with_redis`.
///
/// # Examples
///
/// ```
/// use phalanx::{Kind, Policy, RateLimitSpec, RejectionCode, ResilienceModule};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mail = Policy::named("mail").rate_limit(RateLimitSpec::per_minute(1));
/// let module = ResilienceModule::in_memory().policy(mail).build()?;
/// let send = async |tenant: &str| module.run("mail", tenant, || async { Ok::<_, Kind>("sent") }).await;
/// assert_eq!(send("acme").await, Ok("sent"));
/// assert_eq!(send("acme").await.unwrap_err().rejection().unwrap().code(), RejectionCode::RateLimited);
/// assert_eq!(send("other").await, Ok("sent")); // each route has its own bucket
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ResilienceModule {
    pub(crate) engine: Engine<Backend>,
    pub(crate) locks: MemoryLocks,
    statuses: Arc<StatusMap>,
    pub(crate) origins: Arc<Mutex<Origins>>,
}

/// A short name for [`ResilienceModule`].
pub type Resilience = ResilienceModule;

/// Configures a [`ResilienceModule`].
///
/// # Examples
///
/// [`build`](Self::build) reports every validation error of every policy at once:
///
/// ```
/// use std::time::Duration;
///
/// use phalanx::{Policy, RateLimitSpec, ResilienceModule};
///
/// let error = ResilienceModule::in_memory()
///     .policy(Policy::named("mail").rate_limit(RateLimitSpec::per_second(0)))
///     .policy(Policy::named("search").timeout(Duration::ZERO))
///     .build()
///     .unwrap_err();
/// let paths: Vec<_> = error.mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
/// assert_eq!(paths, ["policies.mail.rate_limit.permits", "policies.search.timeout"]);
/// ```
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until `build` is called"]
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
    pub(crate) on_degraded: Option<phalanx_core::policy::OnDegraded>,
}

impl ResilienceModule {
    /// Creates a builder for a module whose state is local to this process.
    pub fn in_memory() -> ModuleBuilder {
        ModuleBuilder::default()
    }

    /// Creates a builder for a module over a store that other modules in this process share: several replicas in one
    /// test, or several modules with common limits.
    ///
    /// # Examples
    ///
    /// ```
    /// use phalanx::store::MemoryStore;
    /// use phalanx::{Clock, Kind, Policy, RateLimitSpec, ResilienceModule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new(Clock::manual());
    /// let policy = Policy::named("vendor").rate_limit(RateLimitSpec::per_minute(1));
    /// let replica = || ResilienceModule::in_store(store.clone()).policy(policy.clone()).build();
    /// let (one, two) = (replica()?, replica()?);
    /// assert!(one.run("vendor", (), || async { Ok::<_, Kind>(()) }).await.is_ok());
    /// assert!(two.run("vendor", (), || async { Ok::<_, Kind>(()) }).await.is_err()); // the bucket is shared
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_store(store: MemoryStore) -> ModuleBuilder {
        ModuleBuilder { store: Some(store), ..ModuleBuilder::default() }
    }

    /// Runs an operation under a policy on a route. A retry or a hedge calls the closure again.
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
        self.engine.run(policy, route, operation).await
    }

    /// Prepares a call with its own cost, classifier, fallback or deadline.
    pub fn call<'a>(&self, policy: &str, route: impl Into<Route<'a>>) -> Call<'static> {
        self.engine.call(policy, route)
    }

    /// Resolves a policy on a route once, for callers that run it often. Called at startup, it finds misspelt names early.
    ///
    /// # Errors
    /// Rejects with `unknown_policy` or `route_too_long`.
    pub fn pipeline<'a>(&self, policy: &str, route: impl Into<Route<'a>>) -> Result<Pipeline, Rejection> {
        self.engine.pipeline(policy, route)
    }

    /// Resolves a policy for every method of a port (an impl block under `#[resilient]`).
    ///
    /// An `infrastructure` failure leaves open whether the call took effect, so whether it may be retried depends on the
    /// method. A policy that retries such failures is rejected here; once it was not, a change that would make it retry
    /// them is rejected as a whole.
    ///
    /// # Errors
    /// Rejects with `blanket_retry`, `unknown_policy` or `route_too_long`.
    pub fn port_pipeline<'a>(&self, policy: &str, route: impl Into<Route<'a>>) -> Result<Pipeline, Rejection> {
        let pipeline = self.engine.pipeline(policy, route)?;
        pipeline.check_blanket_retry()?;
        Ok(pipeline)
    }

    /// Returns every pipeline in use: one per policy and route, up to `max_routes`.
    pub fn pipelines(&self) -> Vec<Pipeline> {
        self.engine.pipelines()
    }

    /// Replaces a policy while calls are running.
    ///
    /// Breakers and buckets keep their state and continue with the new numbers; calls in flight finish under the old
    /// policy. A new policy without guards keeps those of the old one.
    ///
    /// # Errors
    /// Returns every validation error, or an error if no policy has this name, or if the policy guards a port in use and
    /// would retry the whole of it. On error nothing changes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use phalanx::{Policy, ResilienceModule};
    ///
    /// let policy = Policy::named("search").timeout(Duration::from_secs(1));
    /// let module = ResilienceModule::in_memory().policy(policy.clone()).build()?;
    /// module.retune(policy.timeout(Duration::from_millis(200)))?;
    /// assert_eq!(module.describe().policy("search").unwrap().value("timeout").unwrap().value, "\"200ms\"");
    /// assert!(module.retune(Policy::named("serach")).is_err());
    /// # Ok::<(), phalanx::ConfigError>(())
    /// ```
    pub fn retune(&self, policy: Policy) -> Result<(), ConfigError> {
        self.engine.change(|txn| {
            let name = policy.name.clone();
            txn.retune(policy)?;
            self.origins.lock().set_code(&name);
            Ok(())
        })
    }

    /// Adds a policy while calls are running.
    ///
    /// # Errors
    /// Returns every validation error, or an error if a policy has this name already. On error nothing changes.
    pub fn add(&self, policy: Policy) -> Result<(), ConfigError> {
        self.engine.change(|txn| {
            let name = policy.name.clone();
            txn.add(policy)?;
            self.origins.lock().set_code(&name);
            Ok(())
        })
    }

    /// Replaces the whole configuration while calls are running; state is kept as in [`retune`](Self::retune).
    ///
    /// A policy that the set does not contain becomes an unknown policy. Levers pulled with [`pull`](Self::pull) stay
    /// pulled.
    ///
    /// # Errors
    /// Returns every validation error of every policy and lever, and an error for each policy in use that would become
    /// unknown. On error nothing changes.
    pub fn apply(&self, plan: PolicySet) -> Result<ConfigChange, ConfigError> {
        let code = Origins::of_code(&plan.policies, plan.default_policy.is_some(), &plan.levers);
        self.engine.change(|txn| {
            let change = txn.apply(plan)?;
            let mut origins = self.origins.lock();
            let Origins { pulled, unknown, routes, max_routes, on_degraded, redis, .. } = std::mem::take(&mut *origins);
            *origins = Origins { pulled, unknown, routes, max_routes, on_degraded, redis, ..code };
            Ok(change)
        })
    }

    /// Pulls the lever of a policy, or of every policy (`"*"`), replacing one that was pulled or configured before.
    ///
    /// It applies to calls that start from now on, in this process, until it is [released](Self::release).
    ///
    /// # Errors
    /// Returns every validation error of the lever, or an error if no policy has this name. On error nothing changes.
    ///
    /// # Examples
    ///
    /// ```
    /// use phalanx::policy::LeverSpec;
    /// use phalanx::{Kind, Policy, RejectionCode, ResilienceModule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let module = ResilienceModule::in_memory().policy(Policy::named("vendor")).build()?;
    /// module.pull("vendor", LeverSpec::force_open().reason("incident 4711"))?;
    /// let answer = module.run("vendor", (), || async { Ok::<_, Kind>(()) }).await;
    /// assert_eq!(answer.unwrap_err().rejection().unwrap().code(), RejectionCode::ForcedOpen);
    /// assert!(module.release("vendor"));
    /// assert!(module.run("vendor", (), || async { Ok::<_, Kind>(()) }).await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn pull(&self, policy: &str, lever: LeverSpec) -> Result<(), ConfigError> {
        self.engine.change(|txn| {
            txn.pull(policy, lever)?;
            self.origins.lock().pulled.insert(policy.to_owned());
            Ok(())
        })
    }

    /// Releases a pulled lever; a configured lever of the same name applies again. Returns false if none was pulled.
    pub fn release(&self, policy: &str) -> bool {
        let released = self.engine.change(|txn| {
            let released = txn.release(policy);
            self.origins.lock().pulled.remove(policy);
            Ok(released)
        });
        released.unwrap_or(false)
    }

    /// Returns the pulled levers by policy; `"*"` applies to every policy.
    pub fn levers(&self) -> BTreeMap<String, LeverSpec> {
        self.engine.levers()
    }

    /// Returns up to `most` keys whose calls the rate limits of this process have rejected most often, the most frequent
    /// first. At most 64 keys are counted, however many there are: a count may be too high, by at most its `overcount`.
    ///
    /// # Examples
    ///
    /// ```
    /// use phalanx::{Kind, Policy, RateLimitSpec, ResilienceModule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mail = Policy::named("mail").rate_limit(RateLimitSpec::per_minute(1));
    /// let module = ResilienceModule::in_memory().policy(mail).build()?;
    /// for tenant in ["acme", "acme", "acme", "other"] {
    ///     let _ = module.run("mail", tenant, || async { Ok::<_, Kind>(()) }).await;
    /// }
    /// let top = module.top_rejected(10);
    /// assert_eq!((top.len(), top[0].key.route(), top[0].count), (1, Some("acme"), 2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn top_rejected(&self, most: usize) -> Vec<TopKey> {
        self.engine.top_rejected(most)
    }

    /// Returns the names of all policies, sorted.
    pub fn policies(&self) -> Vec<String> {
        self.engine.policies()
    }

    /// Counts every call from now on at this gate, so that calls can be drained. A `Runtime` does this for its modules.
    ///
    /// Returns false if another gate is attached already; that one stays.
    pub fn attach(&self, gate: &Gate) -> bool {
        self.engine.attach(gate)
    }

    /// Returns the HTTP status of a rejection in this service: the code's own, unless
    /// [overridden](ModuleBuilder::status).
    pub fn status(&self, rejection: &Rejection) -> u16 {
        self.statuses.of(rejection.code())
    }
}

impl ModuleBuilder {
    /// Adds a policy. A policy named `occ` or `transient` replaces the built-in one.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.spec.policies.push(policy);
        self
    }

    /// Adds several policies.
    pub fn policies(mut self, policies: impl IntoIterator<Item = Policy>) -> Self {
        self.spec.policies.extend(policies);
        self
    }

    /// Sets the policy for names without their own.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use phalanx::{Policy, ResilienceModule};
    ///
    /// let default = Policy::named("default").timeout(Duration::from_secs(2));
    /// let module = ResilienceModule::in_memory().default_policy(default).build()?;
    /// let pipeline = module.pipeline("anything", ()).expect("the default policy applies");
    /// assert_eq!(pipeline.describe().stages.len(), 1);
    /// # Ok::<(), phalanx::ConfigError>(())
    /// ```
    pub fn default_policy(mut self, policy: Policy) -> Self {
        self.spec.default_policy = Some(policy);
        self
    }

    /// Adds configuration from files and the environment. A second call replaces the first.
    ///
    /// Code wins: a policy added to this builder replaces a configured policy of the same name as a whole, and so do the
    /// default policy, `unknown_policy` and `max_routes`.
    #[cfg(feature = "config")]
    #[cfg_attr(docsrs, doc(cfg(feature = "config")))]
    pub fn config(mut self, config: crate::config::Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Sets how to treat a call that names an unknown policy. Default: reject it.
    pub fn unknown_policy(mut self, unknown: UnknownPolicy) -> Self {
        self.unknown = Some(unknown);
        self
    }

    /// Pulls a lever from the start, for one policy or for every policy (`"*"`).
    pub fn lever(mut self, policy: impl Into<String>, lever: LeverSpec) -> Self {
        self.spec.levers.insert(policy.into(), lever);
        self
    }

    /// Sets how many (policy, route) pairs are kept at a time. Default: 10,000.
    pub fn max_routes(mut self, routes: usize) -> Self {
        self.max_routes = Some(routes);
        self
    }

    /// Registers an observer.
    pub fn observer(self, observer: impl Observer) -> Self {
        self.shared_observer(Arc::new(observer))
    }

    /// Registers a shared observer.
    pub fn shared_observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.spec.observers.0.push(observer);
        self
    }

    /// Registers a function that receives every event.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering};
    ///
    /// use phalanx::{EventKind, Kind, Policy, ResilienceModule};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let finished = Arc::new(AtomicU32::new(0));
    /// let counter = finished.clone();
    /// let module = ResilienceModule::in_memory()
    ///     .policy(Policy::named("search"))
    ///     .on_event(move |event| {
    ///         if let EventKind::Finished { .. } = event.kind {
    ///             counter.fetch_add(1, Ordering::Relaxed);
    ///         }
    ///     })
    ///     .build()?;
    /// assert!(module.run("search", (), || async { Ok::<_, Kind>(()) }).await.is_ok());
    /// assert_eq!(finished.load(Ordering::Relaxed), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_event(self, observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.observer(observer)
    }

    /// Emits spans for calls and attempts, and events as log lines, through `tracing`: see `docs/telemetry.md`.
    #[cfg(feature = "tracing")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tracing")))]
    pub fn traced(mut self) -> Self {
        self.spec.traced = true;
        self
    }

    /// Seeds the random numbers of jitter and shedding, for repeatable runs.
    pub fn seed(mut self, seed: u64) -> Self {
        self.spec.seed = Some(seed);
        self
    }

    /// Sets the clock. Default: the system clock, or tokio's when its time is paused. A module in a shared store uses the
    /// store's clock.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Overrides the HTTP status of a rejection code.
    ///
    /// # Examples
    ///
    /// ```
    /// use phalanx::{Rejection, RejectionCode, ResilienceModule};
    ///
    /// let module = ResilienceModule::in_memory().status(RejectionCode::BulkheadFull, 429).build()?;
    /// assert_eq!(module.status(&Rejection::new(RejectionCode::BulkheadFull)), 429);
    /// assert_eq!(module.status(&Rejection::new(RejectionCode::CircuitOpen)), 503);
    /// # Ok::<(), phalanx::ConfigError>(())
    /// ```
    pub fn status(mut self, code: RejectionCode, status: u16) -> Self {
        self.statuses.set(code, status);
        self
    }

    /// Validates the configuration and builds the module. Does no I/O; a module over Redis begins to connect in the
    /// background, if this is called inside a tokio runtime.
    ///
    /// # Errors
    /// Returns every validation error of every policy, each with its path.
    pub fn build(self) -> Result<ResilienceModule, ConfigError> {
        let (builder, origins) = self.with_config();
        builder.finish(origins)
    }

    /// Merges the configuration from files and the environment under what code configured.
    fn with_config(mut self) -> (Self, Origins) {
        let spec = &self.spec;
        let mut origins = Origins {
            unknown: self.unknown.map(|_| Origin::Code),
            max_routes: self.max_routes.map(|_| Origin::Code),
            #[cfg(feature = "redis")]
            on_degraded: self.on_degraded.map(|_| Origin::Code),
            ..Origins::of_code(&spec.policies, spec.default_policy.is_some(), &spec.levers)
        };
        #[cfg(feature = "redis")]
        self.fleet.iter().for_each(|fleet| fleet.note_code(&mut origins));
        #[cfg(feature = "config")]
        if let Some(config) = self.config.take() {
            self.unknown = self.unknown.or(config.unknown());
            self.max_routes = self.max_routes.or(config.max_routes());
            #[cfg(feature = "redis")]
            if let Some(fleet) = &mut self.fleet {
                fleet.take_over(&config, &mut origins);
            }
            let PolicySet { policies, default_policy, levers } = config.merge_under(&mut origins);
            self.spec.policies.extend(policies);
            self.spec.default_policy = self.spec.default_policy.or(default_policy);
            self.spec.levers.extend(levers);
        }
        self.spec.unknown = self.unknown.unwrap_or_default();
        #[cfg(feature = "redis")]
        {
            self.spec.on_degraded = self.on_degraded.unwrap_or_default();
        }
        self.spec.max_routes = self.max_routes.unwrap_or(self.spec.max_routes);
        origins.routes = self.spec.max_routes;
        (self, origins)
    }

    #[cfg_attr(not(feature = "tracing"), allow(unused_mut))]
    fn finish(mut self, origins: Origins) -> Result<ResilienceModule, ConfigError> {
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
        let asks_for_replicas = self.fleet.as_ref().is_some_and(crate::fleet::Shared::asks_for_replicas);
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
                #[cfg(feature = "redis")]
                if asks_for_replicas {
                    engine.emit(phalanx_core::event::EventKind::ExpectedReplicasUnknown);
                }
                #[cfg(feature = "otel")]
                self.metrics.iter().for_each(|metrics| metrics.watch(&engine));
                let locks = MemoryLocks::new(engine.store().clock().clone());
                #[cfg(feature = "redis")]
                engine.store().shared().into_iter().for_each(phalanx_store_redis::RedisStore::join);
                let (statuses, origins) = (Arc::new(self.statuses), Arc::new(Mutex::new(origins)));
                Ok(ResilienceModule { engine, locks, statuses, origins })
            }
            Ok(_) => Err(ConfigError { mistakes }),
            Err(error) => {
                mistakes.splice(0..0, origins.locate(error).mistakes);
                Err(ConfigError { mistakes })
            }
        }
    }
}

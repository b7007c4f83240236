//! A module over Redis: `ResilienceModule::with_redis`, its options, and which state the replicas share.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::engine::EngineSpec;
use phalanx_core::event::Observers;
use phalanx_core::policy::OnDegraded;
use phalanx_core::policy::validate::ConfigError;
use phalanx_core::rng::Rng;
use phalanx_core::store::{StateScope, Store};
use phalanx_store_memory::MemoryStore;
use phalanx_store_redis::{DegradedShare, RedisConnection, RedisOptions, RedisStore, StoreMode};

use crate::backend::{Backend, Scopes};
use crate::module::{ModuleBuilder, ResilienceModule};
use crate::origin::{Origin, Origins};

/// The builder's options for Redis.
#[derive(Debug)]
pub(crate) struct Shared {
    source: RedisConnection,
    options: RedisOptions,
    scopes: Scopes,
    /// Whether the service is the program's own choice, not the default.
    named: bool,
}

impl Shared {
    /// Takes over what files and the environment configure and code does not, and notes the origins.
    #[cfg(feature = "config")]
    pub(crate) fn take_over(&mut self, config: &crate::config::Config, origins: &mut Origins) {
        if self.options.expected_replicas.is_none() {
            self.options.expected_replicas = config.expected_replicas();
            origins.take_over_redis(config, "expected_replicas");
        }
        if !self.named
            && let Some(service) = config.service()
        {
            service.clone_into(&mut self.options.service);
            origins.take_over_redis(config, "service");
        }
    }

    /// Notes the options that code has set.
    pub(crate) fn note_code(&self, origins: &mut Origins) {
        let set = [("expected_replicas", self.options.expected_replicas.is_some()), ("service", self.named)];
        let set = set.into_iter().filter(|(_, set)| *set);
        origins.redis.extend(set.map(|(path, _)| (path.to_owned(), Origin::Code)));
    }

    /// Whether replicas that never reached Redis could not know their share.
    pub(crate) fn asks_for_replicas(&self) -> bool {
        self.options.expected_replicas.is_none() && self.options.degraded_share == DegradedShare::Auto
    }

    /// Builds the backend over Redis. On error returns the memory store, so that policies can still be validated.
    #[allow(clippy::result_large_err)] // once per module
    pub(crate) fn over(self, memory: MemoryStore, spec: &EngineSpec) -> Result<Backend, (MemoryStore, ConfigError)> {
        let rng = spec.seed.map_or_else(Rng::from_entropy, Rng::seeded);
        let store = RedisStore::over(self.source)
            .options(self.options)
            .clock(memory.clock().clone())
            .rng(rng.fork())
            .observers(Observers::new(spec.observers.0.clone()))
            .capacity(spec.max_routes)
            .build();
        match store {
            Ok(redis) => Ok(Backend::redis(memory, redis, self.scopes)),
            Err(error) => Err((memory, error)),
        }
    }
}

impl ResilienceModule {
    /// Creates a builder for a module whose state is shared by all replicas through Redis.
    ///
    /// Accepts a `redis::Client`, a deadpool pool, or a Cluster or Sentinel client or pool. Neither this method nor
    /// [`build`](ModuleBuilder::build) does any I/O, and Redis need not be running: while it does not answer, each
    /// replica makes degraded decisions from local state. Inside a tokio runtime, `build` starts the connection in the
    /// background, so that the replica joins the fleet before its first call; elsewhere a `Runtime` does when it starts, or
    /// the first call that needs Redis.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use phalanx::{OnDegraded, Policy, ResilienceModule};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let module = ResilienceModule::with_redis(redis::Client::open("redis://redis.internal")?)
    ///     .environment("prod")
    ///     .store_budget(Duration::from_millis(10)) // the longest a call waits for Redis
    ///     .on_degraded(OnDegraded::Closed) // without Redis: reject
    ///     .policy(Policy::named("payouts"))
    ///     .build()?;
    /// let described = module.describe();
    /// assert_eq!(described.policy("payouts").unwrap().value("on_degraded").unwrap().value, "\"closed\"");
    /// # Ok(())
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn with_redis(source: impl Into<RedisConnection>) -> ModuleBuilder {
        let scopes = Scopes { rate_limits: StateScope::Fleet, breakers: StateScope::Fleet, digests: StateScope::Fleet };
        let shared = Shared { source: source.into(), options: RedisOptions::default(), scopes, named: false };
        let mut builder = ModuleBuilder::default();
        builder.fleet = Some(shared);
        builder
    }

    /// Returns whether Redis decides at the moment, or `None` for a module in memory. `Connecting` until it has replied once.
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn store_mode(&self) -> Option<StoreMode> {
        self.engine.store().shared().map(RedisStore::mode)
    }

    /// Returns the number of live replicas in the last reply from Redis, this one included. `None` before the first reply.
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn replicas(&self) -> Option<u32> {
        self.engine.store().shared().and_then(RedisStore::replicas)
    }

    /// Flushes pending outcomes to Redis and removes this replica from the fleet, for an orderly shutdown.
    ///
    /// Dropping the module does the same in the background.
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub async fn leave_fleet(&self) {
        if let Some(store) = self.engine.store().shared() {
            store.leave().await;
        }
    }

    /// Returns the Redis store.
    #[doc(hidden)]
    pub fn redis_store(&self) -> Option<&RedisStore> {
        self.engine.store().shared()
    }
}

/// Options of a module over Redis. They have no effect on a module in memory.
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
impl ModuleBuilder {
    fn tune(mut self, tune: impl FnOnce(&mut Shared)) -> Self {
        if let Some(fleet) = &mut self.fleet {
            tune(fleet);
        }
        self
    }

    /// Sets all options at once.
    pub fn redis_options(self, options: RedisOptions) -> Self {
        self.tune(|fleet| {
            fleet.named = options.service != RedisOptions::default().service;
            fleet.options = options;
        })
    }

    /// Sets the prefix of every key, `<prefix>:ph2:…`. Default: none.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        self.tune(|fleet| fleet.options.prefix = Some(prefix.into()))
    }

    /// Sets the service, whose replicas share state: services on one Redis stay separate. Also `service` in the table `redis`
    /// of a file, or `PHALANX__REDIS__SERVICE`. Default: the file name of the program.
    pub fn service(self, service: impl Into<String>) -> Self {
        self.tune(|fleet| (fleet.options.service, fleet.named) = (service.into(), true))
    }

    /// Sets the environment (`prod`, `stage`). Replicas share state only within one environment. Default: `default`.
    pub fn environment(self, environment: impl Into<String>) -> Self {
        self.tune(|fleet| fleet.options.environment = environment.into())
    }

    /// Sets the longest time a caller waits for Redis. Default: 20 ms.
    pub fn store_budget(self, budget: Duration) -> Self {
        self.tune(|fleet| fleet.options.store_budget = budget)
    }

    /// Sets how often batched outcomes are sent and shared state is refreshed. Default: 250 ms.
    pub fn sync_interval(self, interval: Duration) -> Self {
        self.tune(|fleet| fleet.options.sync_interval = interval)
    }

    /// Sets the part of a rate limit that this replica grants while Redis is unreachable. Default: an equal share among
    /// the replicas last seen.
    pub fn degraded_share(self, share: DegradedShare) -> Self {
        self.tune(|fleet| fleet.options.degraded_share = share)
    }

    /// Sets the most replicas that the fleet can have, which is the autoscaler's maximum: a rate is divided by at least this
    /// number while Redis is unreachable. Demanded by `DeploymentProfile::Fleet`; without it one WARN is logged. Also
    /// `expected_replicas` in the table `redis` of a file, or `PHALANX__REDIS__EXPECTED_REPLICAS`. Default: none, so that a
    /// replica that has never reached Redis decides as if it were alone.
    ///
    /// # Examples
    ///
    /// ```
    /// use phalanx::ResilienceModule;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = redis::Client::open("redis://redis.internal")?;
    /// let module = ResilienceModule::with_redis(client).environment("prod").expected_replicas(20).build()?;
    /// assert_eq!(module.describe().redis[0].to_string().split_whitespace().next(), Some("expected_replicas"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn expected_replicas(self, replicas: u32) -> Self {
        self.tune(|fleet| fleet.options.expected_replicas = Some(replicas))
    }

    /// Sets a secret that is hashed into all key names, for services whose routes come from untrusted input. Default: none.
    pub fn key_secret(self, secret: impl Into<Arc<[u8]>>) -> Self {
        self.tune(|fleet| fleet.options.key_secret = Some(secret.into()))
    }

    /// Sets what policies without their own `on_degraded` do while Redis is unreachable, those that are added later
    /// included. Default: decide from local state.
    pub fn on_degraded(mut self, choice: OnDegraded) -> Self {
        self.on_degraded = Some(choice);
        self
    }

    /// Sets which replicas share rate limits. Default: the fleet.
    pub fn rate_limit_scope(self, scope: StateScope) -> Self {
        self.tune(|fleet| fleet.scopes.rate_limits = scope)
    }

    /// Sets which replicas share breakers. Default: the fleet.
    ///
    /// # Examples
    ///
    /// A breaker per replica, with rate limits that hold for the whole fleet:
    ///
    /// ```
    /// use phalanx::store::StateScope;
    /// use phalanx::{BreakerSpec, Policy, RateLimitSpec, ResilienceModule};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let vendor = Policy::named("vendor").rate_limit(RateLimitSpec::per_second(50)).breaker(BreakerSpec::failure_ratio(0.5));
    /// let module = ResilienceModule::with_redis(redis::Client::open("redis://redis.internal")?)
    ///     .breaker_scope(StateScope::Process)
    ///     .policy(vendor)
    ///     .build()?; // no I/O
    /// assert!(module.store_mode().is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn breaker_scope(self, scope: StateScope) -> Self {
        self.tune(|fleet| fleet.scopes.breakers = scope)
    }

    /// Sets which replicas share latency digests. Default: the fleet.
    pub fn digest_scope(self, scope: StateScope) -> Self {
        self.tune(|fleet| fleet.scopes.digests = scope)
    }
}

//! A module whose state the fleet shares through Redis.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::engine::EngineSpec;
use phalanx_core::event::Observers;
use phalanx_core::policy::OnDegraded;
use phalanx_core::policy::validate::ConfigError;
use phalanx_core::rng::Rng;
use phalanx_core::store::Store;
use phalanx_store_memory::MemoryStore;
use phalanx_store_redis::{DegradedShare, RedisConnection, RedisOptions, RedisStore, StoreMode};

use crate::backend::{Backend, Scopes};
use crate::module::{ModuleBuilder, ResilienceModule};

/// Who shares some state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateScope {
    /// All replicas with the same prefix and environment.
    #[default]
    Fleet,
    /// Nobody: each replica has its own.
    Process,
}

/// What a builder was told about the fleet.
#[derive(Debug)]
pub(crate) struct Shared {
    source: RedisConnection,
    options: RedisOptions,
    scopes: Scopes,
}

impl Shared {
    /// The backend over Redis, or every mistake in the options.
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
    /// State shared by all replicas through Redis: a `redis::Client`, a deadpool pool, or a Cluster or Sentinel client
    /// or pool. No I/O happens here or in `build`, and no Redis needs to be running: until it answers, and whenever it
    /// does not, each replica decides alone.
    pub fn with_redis(source: impl Into<RedisConnection>) -> ModuleBuilder {
        let scopes = Scopes { rate_limits: StateScope::Fleet, breakers: StateScope::Fleet, digests: StateScope::Fleet };
        let shared = Shared { source: source.into(), options: RedisOptions::default(), scopes };
        let mut builder = ModuleBuilder::default();
        builder.fleet = Some(shared);
        builder
    }

    /// Who decides at the moment; none for a module in memory.
    pub fn store_mode(&self) -> Option<StoreMode> {
        self.engine.store().shared().map(RedisStore::mode)
    }

    /// Replicas that are alive, this one included, as far as Redis has told.
    pub fn replicas(&self) -> Option<u32> {
        self.engine.store().shared().and_then(RedisStore::replicas)
    }

    /// Tells Redis what it is owed and leaves the fleet: for shutting down in good order. Dropping the module does the
    /// same behind your back.
    pub async fn leave_fleet(&self) {
        if let Some(store) = self.engine.store().shared() {
            store.leave().await;
        }
    }

    /// The Redis store, for what only a store can be asked.
    #[doc(hidden)]
    pub fn redis_store(&self) -> Option<&RedisStore> {
        self.engine.store().shared()
    }
}

/// Options of a module over Redis; without one they change nothing.
impl ModuleBuilder {
    /// Policies that keep the default follow the module's choice.
    pub(crate) fn with_choices(mut self) -> Self {
        let policies = self.spec.policies.iter_mut().chain(&mut self.spec.default_policy);
        for policy in policies.filter(|policy| policy.on_degraded == OnDegraded::default()) {
            policy.on_degraded = self.on_degraded;
        }
        self
    }

    fn tune(mut self, tune: impl FnOnce(&mut Shared)) -> Self {
        if let Some(fleet) = &mut self.fleet {
            tune(fleet);
        }
        self
    }

    /// All options at once.
    pub fn redis_options(self, options: RedisOptions) -> Self {
        self.tune(|fleet| fleet.options = options)
    }

    /// Put before every key, `<prefix>:ph1:…`. Default none.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        self.tune(|fleet| fleet.options.prefix = Some(prefix.into()))
    }

    /// Which fleet of the same service this is (`prod`, `stage`). Default `default`.
    pub fn environment(self, environment: impl Into<String>) -> Self {
        self.tune(|fleet| fleet.options.environment = environment.into())
    }

    /// The longest a caller waits for Redis. Default 20 ms.
    pub fn store_budget(self, budget: Duration) -> Self {
        self.tune(|fleet| fleet.options.store_budget = budget)
    }

    /// How often outcomes that can wait are told and state is asked for. Default 250 ms.
    pub fn sync_interval(self, interval: Duration) -> Self {
        self.tune(|fleet| fleet.options.sync_interval = interval)
    }

    /// How much of a rate this replica takes while Redis is away. Default: its share among the replicas last seen.
    pub fn degraded_share(self, share: DegradedShare) -> Self {
        self.tune(|fleet| fleet.options.degraded_share = share)
    }

    /// Hashed together with all names, for fleets whose routes strangers choose. Default none.
    pub fn key_secret(self, secret: impl Into<Arc<[u8]>>) -> Self {
        self.tune(|fleet| fleet.options.key_secret = Some(secret.into()))
    }

    /// What to do when Redis is away, for every policy that does not say otherwise. Default: decide alone.
    pub fn on_degraded(mut self, choice: OnDegraded) -> Self {
        self.on_degraded = choice;
        self
    }

    /// Who shares rate limits. Default the fleet.
    pub fn rate_limit_scope(self, scope: StateScope) -> Self {
        self.tune(|fleet| fleet.scopes.rate_limits = scope)
    }

    /// Who shares circuits. Default the fleet.
    pub fn breaker_scope(self, scope: StateScope) -> Self {
        self.tune(|fleet| fleet.scopes.breakers = scope)
    }

    /// Who shares latency digests. Default the fleet.
    pub fn digest_scope(self, scope: StateScope) -> Self {
        self.tune(|fleet| fleet.scopes.digests = scope)
    }
}

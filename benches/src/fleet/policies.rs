//! What ours is set up with: the policies of `fleet`, and modules and pipelines over them.

use std::error::Error;
use std::time::Duration;

use phalanx::store::StoreMode;
use phalanx::{BreakerSpec, Pipeline, Policy, RateLimitSpec, ResilienceModule};

use super::server::Server;
use crate::contender::Caller;
use crate::operation::ready;
use crate::settings::{FAILURE_RATIO, LONG_BREAK, MIN_CALLS, UNREACHABLE_RATE};

/// Under this name every policy here is found.
pub(crate) const NAME: &str = "bench";

/// Breaker and latency digest: a circuit that also watches a quantile.
pub(crate) fn guarded() -> Policy {
    let breaker = BreakerSpec::failure_ratio(FAILURE_RATIO).window(Duration::from_secs(10)).min_throughput(MIN_CALLS);
    Policy::named(NAME).breaker(breaker.or_latency(0.95, Duration::from_secs(1), Duration::from_secs(5)))
}

/// The same behind an exact rate limit that grants everything.
pub(crate) fn stack() -> Policy {
    guarded().rate_limit(limit())
}

/// A circuit that opens at the first failure and stays open.
pub(crate) fn touchy() -> Policy {
    let breaker = BreakerSpec::consecutive_failures(1).break_for(LONG_BREAK).escalate(1.0, LONG_BREAK);
    Policy::named(NAME).breaker(breaker)
}

/// A limit that counts and never rejects.
pub(crate) fn limit() -> RateLimitSpec {
    RateLimitSpec::per_second(UNREACHABLE_RATE.into())
}

/// A module over the server; `environment` keeps the cases' keys apart.
pub(crate) fn module(server: &Server, environment: &str, policy: Policy) -> Result<ResilienceModule, Box<dyn Error>> {
    let module = ResilienceModule::with_redis(server.client()?).environment(environment);
    Ok(module.policy(policy).build()?)
}

/// Calls an operation that is ready at once, through a kept pipeline.
#[derive(Clone)]
pub(crate) struct Through(pub(crate) Pipeline);

impl Caller for Through {
    async fn call(&mut self) -> bool {
        self.0.run(ready).await.is_ok()
    }
}

/// Calls so many times at a stretch and then lets other tasks have a turn, which a call that never waits does not.
#[derive(Clone)]
pub(crate) struct Stretch {
    pub(crate) module: ResilienceModule,
    pub(crate) through: Through,
    pub(crate) calls: u32,
}

impl Caller for Stretch {
    /// Whether all were answered, and Redis (where there is one) decided.
    async fn call(&mut self) -> bool {
        let mut as_meant = self.module.store_mode() != Some(StoreMode::Degraded);
        for _ in 0..self.calls {
            as_meant &= self.through.call().await;
        }
        tokio::task::yield_now().await;
        as_meant
    }
}

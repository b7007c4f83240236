//! The policies of `fleet`, with their modules and callers.

use std::error::Error;
use std::time::Duration;

use phalanx::store::StoreMode;
use phalanx::{BreakerSpec, Pipeline, Policy, RateLimitSpec, ResilienceModule};

use crate::contender::Caller;
use crate::operation::ready;
use crate::server::Server;
use crate::settings::{FAILURE_RATIO, LONG_BREAK, MIN_CALLS, UNREACHABLE_RATE};

/// The name of every policy here.
pub(crate) const NAME: &str = "bench";

/// A breaker with a failure ratio and a latency quantile, which needs the digest.
pub(crate) fn guarded() -> Policy {
    guarded_as(NAME)
}

/// The same under another name.
pub(crate) fn guarded_as(name: &str) -> Policy {
    let breaker = BreakerSpec::failure_ratio(FAILURE_RATIO).window(Duration::from_secs(10)).min_throughput(MIN_CALLS);
    Policy::named(name).breaker(breaker.or_latency(0.95, Duration::from_secs(1), Duration::from_secs(5)))
}

/// The same behind an exact rate limit that grants everything.
pub(crate) fn stack() -> Policy {
    guarded().rate_limit(limit())
}

/// A breaker that trips at the first failure and stays open.
pub(crate) fn trips_at_once() -> Policy {
    let breaker = BreakerSpec::consecutive_failures(1).break_for(LONG_BREAK).escalate(1.0, LONG_BREAK);
    Policy::named(NAME).breaker(breaker)
}

/// A limit that counts and never rejects.
pub(crate) fn limit() -> RateLimitSpec {
    RateLimitSpec::per_second(UNREACHABLE_RATE.into())
}

/// Builds a module over the server; `environment` separates the keys of the cases.
pub(crate) fn module(server: &Server, environment: &str, policy: Policy) -> Result<ResilienceModule, Box<dyn Error>> {
    let module = ResilienceModule::with_redis(server.client()?).environment(environment);
    Ok(module.policy(policy).build()?)
}

/// Calls an operation that is ready at once, through a kept pipeline.
#[derive(Clone)]
pub(crate) struct PipelineCaller(pub(crate) Pipeline);

impl Caller for PipelineCaller {
    async fn call(&mut self) -> bool {
        self.0.run(ready).await.is_ok()
    }
}

/// Makes a batch of calls and then yields, because calls that never wait do not yield.
#[derive(Clone)]
pub(crate) struct CallBatch {
    pub(crate) module: ResilienceModule,
    pub(crate) caller: PipelineCaller,
    pub(crate) calls: u32,
}

impl Caller for CallBatch {
    /// Expected: all calls succeed, and the store, if shared, is not degraded.
    async fn call(&mut self) -> bool {
        let mut as_expected = self.module.store_mode() != Some(StoreMode::Degraded);
        for _ in 0..self.calls {
            as_expected &= self.caller.call().await;
        }
        tokio::task::yield_now().await;
        as_expected
    }
}

//! Two services with default options on one Redis share nothing: no bucket, no circuit, no membership, no lock, no mark of
//! completed work, no idempotency key.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

use std::time::Duration;

use phalanx::lifecycle::{Acquired, LockStore};
use phalanx::{BreakerSpec, Kind, Policy, RateLimitSpec, ResilienceModule};
use phalanx_testkit::FaultyRedis;
use tokio::time::sleep;

const TTL: Duration = Duration::from_secs(60);

/// A replica of a service, with the same policies as every other.
fn replica(redis: &FaultyRedis, service: &str) -> ResilienceModule {
    let limited = Policy::named("limited").rate_limit(RateLimitSpec::per_minute(1));
    let guarded = Policy::named("guarded").breaker(BreakerSpec::consecutive_failures(1));
    ResilienceModule::with_redis(redis).service(service).policies([limited, guarded]).build().unwrap()
}

async fn call(module: &ResilienceModule, policy: &str, answer: Result<(), Kind>) -> bool {
    module.run(policy, "eu", || async { answer }).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn two_services_on_one_redis_share_nothing() {
    let redis = FaultyRedis::new();
    let (shop, billing, sibling) = (replica(&redis, "shop"), replica(&redis, "billing"), replica(&redis, "shop"));
    sleep(Duration::from_millis(1_500)).await;
    assert_eq!([&shop, &sibling, &billing].map(ResilienceModule::replicas), [Some(2), Some(2), Some(1)]);

    assert!(call(&shop, "limited", Ok(())).await);
    assert!(!call(&sibling, "limited", Ok(())).await, "one bucket for the service");
    assert!(call(&billing, "limited", Ok(())).await, "another bucket");

    assert!(!call(&shop, "guarded", Err(Kind::Infrastructure)).await);
    sleep(Duration::from_millis(500)).await;
    assert!(!call(&sibling, "guarded", Ok(())).await, "the circuit of the service is open");
    assert!(call(&billing, "guarded", Ok(())).await, "another circuit");

    let (of_shop, of_billing, of_sibling) = (shop.locks(), billing.locks(), sibling.locks());
    let Ok(Acquired::Held { fence }) = of_shop.acquire("migrate", "one", TTL).await else { panic!("the lock is free") };
    assert!(!matches!(of_sibling.acquire("migrate", "two", TTL).await, Ok(Acquired::Held { .. })), "held");
    assert!(matches!(of_billing.acquire("migrate", "three", TTL).await, Ok(Acquired::Held { .. })), "another lock");
    assert_eq!(of_shop.complete("migrate", "one", fence, "1", TTL).await, Ok(true));
    assert_eq!(of_sibling.completed("migrate", "1").await.unwrap(), Some(fence), "a mark of the service");
    assert_eq!(of_billing.completed("migrate", "1").await.unwrap(), None, "it runs its own step");
}

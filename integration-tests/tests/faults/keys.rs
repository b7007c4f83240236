//! Keys in Redis: all of them expire, and their names are short.

use std::time::Duration;

use phalanx::policy::Override;
use phalanx::{BreakerSpec, Policy, RateLimitSpec};
use phalanx_integration_tests::replica::{Command, DependencyBehavior, Load, Setup};
use phalanx_testkit::server::RedisProcess;
use tokio::time::sleep;

use crate::harness::{MS, SECOND, WAIT_TIMEOUT, replicas};

#[tokio::test]
async fn after_every_operation_every_key_has_a_ttl_and_a_short_name() {
    let redis = RedisProcess::start().await;
    let spec = BreakerSpec::consecutive_failures(2).break_for(100 * MS).or_latency(0.9, SECOND, Duration::ZERO);
    let limit = RateLimitSpec::per_second(20).max_wait(50 * MS);
    let policy = |name: &str| Policy::named(name).rate_limit(limit.clone()).breaker(spec.clone().ramp(50 * MS, 2));
    let setup = Setup::new(redis.url()).policy(policy("p")).policy(policy(&"long".repeat(30))).generous_budget();
    let [mut one, mut other] = replicas(&setup).await;
    for policy in ["p", &"long".repeat(30)] {
        // Successes, failures, probes, rejections, dropped calls, overrides and resets.
        one.run(Load::once(policy, "r").callers(30)).await;
        one.execute(Command::SetDependency(DependencyBehavior::Fail)).await;
        one.start(Load::lasting(policy, "r", 10 * SECOND).pause(20 * MS).until_rejected());
        one.execute(Command::Finish).await;
        one.execute(Command::SetDependency(DependencyBehavior::Succeed)).await;
        sleep(100 * MS).await;
        other.start(Load::lasting(policy, &"route".repeat(200), 100 * MS).callers(4).pause(10 * MS));
        one.start(Load::lasting(policy, "r", 200 * MS).callers(4).pause(10 * MS));
        one.execute(Command::Finish).await;
        other.execute(Command::Finish).await;
        let pipeline = one.module().pipeline(policy, "forced").unwrap();
        pipeline.force(Some(Override::Open)).await;
        one.module().pipeline(policy, "reset").unwrap().reset().await;
        let _ = tokio::time::timeout(MS, one.module().pipeline(policy, "r").unwrap().run(pending)).await;
    }
    one.module().retune(policy("p").rate_limit(RateLimitSpec::per_second(50))).unwrap();
    one.run(Load::once("p", "r")).await;
    // A health check writes too.
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).await;
    one.start(Load::lasting("p", "r", 10 * SECOND).pause(5 * MS));
    one.until(WAIT_TIMEOUT, "the store is degraded", |seen| seen.degraded).await;
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
    one.until(WAIT_TIMEOUT, "the store recovers", |seen| !seen.degraded).await;
    one.execute(Command::Stop).await;
    one.execute(Command::LeaveFleet).await;

    let keys = redis.cli(&["KEYS", "*"]).await;
    let keys: Vec<_> = keys.lines().collect();
    let mut kinds = std::collections::BTreeSet::new();
    for key in &keys {
        let left: i64 = redis.cli(&["PTTL", key]).await.parse().unwrap();
        // −2: it has expired since.
        assert!(left > 0 || left == -2, "{key} never expires");
        assert!(key.len() <= 160, "{key} is {} bytes long", key.len());
        assert!(key.starts_with("ph2:{") && key.matches('{').count() == 1, "{key} does not follow the key schema");
        kinds.insert(key.split_once("}:").map_or("", |(_, rest)| rest).split(':').next().unwrap_or_default());
    }
    println!("{} keys, of kinds {kinds:?}", keys.len());
    for kind in ["b", "d", "m", "p", "r"] {
        assert!(kinds.contains(kind), "nothing of kind {kind} among {keys:#?}");
    }
}

async fn pending() -> Result<(), phalanx::Kind> {
    std::future::pending().await
}

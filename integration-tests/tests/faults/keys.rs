//! What lies in Redis: it goes by itself, and its names are short.

use std::time::Duration;

use phalanx::policy::Override;
use phalanx::{BreakerSpec, Policy, RateLimitSpec};
use phalanx_integration_tests::replica::{Behaviour, Load, Order, Setup};
use phalanx_integration_tests::server::Spawned;
use tokio::time::sleep;

use crate::kit::{MS, PATIENCE, SECOND, workers};

#[tokio::test]
async fn whatever_was_done_every_key_has_a_time_to_live_and_a_short_name() {
    let redis = Spawned::start().await;
    let spec = BreakerSpec::consecutive_failures(2).break_for(100 * MS).or_latency(0.9, SECOND, Duration::ZERO);
    let limit = RateLimitSpec::per_second(20).max_wait(50 * MS);
    let policy = |name: &str| Policy::named(name).rate_limit(limit.clone()).breaker(spec.clone().ramp(50 * MS, 2));
    let setup = Setup::new(redis.url()).policy(policy("p")).policy(policy(&"long".repeat(30))).patient();
    let [mut one, mut other] = workers(&setup).await;
    for policy in ["p", &"long".repeat(30)] {
        // Well, badly, tried out, rejected, given up, operated on.
        one.run(Load::once(policy, "r").callers(30)).await;
        one.obey(Order::Behave(Behaviour::Badly)).await;
        one.start(Load::lasting(policy, "r", 10 * SECOND).pause(20 * MS).until_rejected());
        one.obey(Order::Finish).await;
        one.obey(Order::Behave(Behaviour::Well)).await;
        sleep(100 * MS).await;
        other.start(Load::lasting(policy, &"route".repeat(200), 100 * MS).callers(4).pause(10 * MS));
        one.start(Load::lasting(policy, "r", 200 * MS).callers(4).pause(10 * MS));
        one.obey(Order::Finish).await;
        other.obey(Order::Finish).await;
        let pipeline = one.module().pipeline(policy, "forced").unwrap();
        pipeline.force(Some(Override::Open)).await;
        one.module().pipeline(policy, "reset").unwrap().reset().await;
        let _ = tokio::time::timeout(MS, one.module().pipeline(policy, "r").unwrap().run(pending)).await;
    }
    one.module().retune(policy("p").rate_limit(RateLimitSpec::per_second(50))).unwrap();
    one.run(Load::once("p", "r")).await;
    // A probe writes too.
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]).await;
    one.start(Load::lasting("p", "r", 10 * SECOND).pause(5 * MS));
    one.until(PATIENCE, "Redis is away", |seen| seen.alone).await;
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]).await;
    one.until(PATIENCE, "Redis is back", |seen| !seen.alone).await;
    one.obey(Order::Enough).await;
    one.obey(Order::Leave).await;

    let keys = redis.cli(&["KEYS", "*"]).await;
    let keys: Vec<_> = keys.lines().collect();
    let mut kinds = std::collections::BTreeSet::new();
    for key in &keys {
        let left: i64 = redis.cli(&["PTTL", key]).await.parse().unwrap();
        // −2: it has gone since.
        assert!(left > 0 || left == -2, "{key} stays for ever");
        assert!(key.len() <= 160, "{key} is {} bytes long", key.len());
        assert!(key.starts_with("ph1:{") && key.matches('{').count() == 1, "{key} is not one of ours");
        kinds.insert(key.split(':').nth(2).unwrap_or_default().trim_end_matches('}'));
    }
    println!("{} keys, of kinds {kinds:?}", keys.len());
    for kind in ["b", "d", "m", "p", "r"] {
        assert!(kinds.contains(kind), "nothing of kind {kind} among {keys:#?}");
    }
}

async fn pending() -> Result<(), phalanx::Kind> {
    std::future::pending().await
}

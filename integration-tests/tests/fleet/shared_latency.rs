//! The fleet's latency drives per-replica decisions: the limit of an adaptive bulkhead and the delay of a hedge.

use std::time::Duration;

use phalanx::policy::AdaptiveSpec;
use phalanx::{BulkheadSpec, HedgeSpec, Policy};
use phalanx_integration_tests::replica::{Command, DependencyBehavior, Gauges, Load, ReplicaProcess, Report, Setup};
use phalanx_testkit::server::Redis;

use crate::harness::{MS, SECOND, WAIT_TIMEOUT, exclusive, fleet, meet, replica};

const MAX_LIMIT: u32 = 50;

fn setup(url: &str) -> Setup {
    // The limit is lowered once and does not recover during the test.
    let adaptive = AdaptiveSpec::threshold(50 * MS).quantile(0.95).cooldown(60 * SECOND);
    let narrow = Policy::named("narrow").bulkhead(BulkheadSpec::adaptive(MAX_LIMIT, adaptive));
    let hedge = HedgeSpec::after(5 * SECOND).at_quantile(0.95);
    let hedged = Policy::named("hedged").hedge(hedge).idempotent();
    Setup::new(url).policy(narrow).policy(hedged).generous_budget()
}

fn gauges(seen: &Report, route: &str) -> Gauges {
    seen.gauges.get(route).copied().unwrap_or_default()
}

/// Makes the dependency of this replica take 100 ms, under load.
async fn slow_down(replica: &ReplicaProcess, policy: &str) {
    replica.execute(Command::SetDependency(DependencyBehavior::SucceedAfter(100 * MS))).await;
    replica.start_load(Load::lasting(policy, "eu", 60 * SECOND).callers(40)).await;
}

#[tokio::test]
async fn slow_calls_on_one_replica_lower_the_limit_of_the_others() {
    let _exclusive = exclusive().await;
    let [one, others @ ..] = &fleet::<3>(&setup(Redis::shared().await)).await;
    for other in others {
        // The other replicas make a hundred fast calls a second.
        other.start_load(Load::lasting("narrow", "eu", 60 * SECOND).pause(10 * MS)).await;
        other.until(WAIT_TIMEOUT, "it calls", |seen| seen.tally.admitted() > 30).await;
        assert_eq!(gauges(&other.execute(Command::Report).await, "narrow/eu").limit, Some(MAX_LIMIT));
    }
    slow_down(one, "narrow").await;
    for replica in [one, &others[0], &others[1]] {
        let lowered = |seen: &Report| gauges(seen, "narrow/eu").limit < Some(MAX_LIMIT);
        replica.until(WAIT_TIMEOUT, "its limit is lowered", lowered).await;
    }
    for replica in [one, &others[0], &others[1]] {
        replica.execute(Command::Stop).await;
    }
}

#[tokio::test]
async fn a_replica_that_has_just_started_hedges_after_the_fleets_latency() {
    let _exclusive = exclusive().await;
    let setup = setup(Redis::shared().await);
    let [one] = &fleet::<1>(&setup).await;
    slow_down(one, "hedged").await;
    let near = |delay: Duration| (95 * MS..200 * MS).contains(&delay);
    let warm = |seen: &Report| gauges(seen, "hedged/eu").hedge_delay.is_some_and(near);
    one.until(WAIT_TIMEOUT, "its hedge delay follows its latency", warm).await;

    let fresh = replica(&setup);
    meet(&fresh).await;
    fresh.run(Load::once("hedged", "eu")).await; // one fast call, too few for a quantile of its own
    let seen = fresh.until(WAIT_TIMEOUT, "its hedge delay follows the fleet's latency", warm).await;
    assert!(!seen.degraded);
    one.execute(Command::Stop).await;
}

//! The fleet's latency moves what each replica decides alone: the limit of its bulkhead, the delay of its hedge.

use std::time::Duration;

use phalanx::policy::AdaptiveSpec;
use phalanx::{BulkheadSpec, HedgeSpec, Policy};
use phalanx_integration_tests::replica::{Behaviour, Child, Gauges, Load, Order, Report, Setup};
use phalanx_integration_tests::server::Redis;

use crate::kit::{MS, PATIENCE, SECOND, fleet, meet, quiet, replica};

const MOST: u32 = 50;

fn setup(url: &str) -> Setup {
    // Once in this test, and nothing is won back meanwhile.
    let adaptive = AdaptiveSpec::threshold(50 * MS).quantile(0.95).cooldown(60 * SECOND);
    let narrow = Policy::named("narrow").bulkhead(BulkheadSpec::adaptive(MOST, adaptive));
    let hedge = HedgeSpec::after(5 * SECOND).at_quantile(0.95);
    let hedged = Policy::named("hedged").hedge(hedge).idempotent();
    Setup::new(url).policy(narrow).policy(hedged).patient()
}

fn gauges(seen: &Report, route: &str) -> Gauges {
    seen.gauges.get(route).copied().unwrap_or_default()
}

/// A dependency that takes 100 ms on this replica, and many callers of it.
async fn suffer(replica: &Child, policy: &str) {
    replica.obey(Order::Behave(Behaviour::Slowly(100 * MS))).await;
    replica.start_load(Load::lasting(policy, "eu", 60 * SECOND).callers(40)).await;
}

#[tokio::test]
async fn what_one_replica_suffers_lowers_the_limit_of_the_others() {
    let _quiet = quiet().await;
    let [one, others @ ..] = &fleet::<3>(&setup(Redis::shared().await)).await;
    for other in others {
        // All is well with them: a hundred quick answers a second.
        other.start_load(Load::lasting("narrow", "eu", 60 * SECOND).pause(10 * MS)).await;
        other.until(PATIENCE, "it calls", |seen| seen.tally.admitted() > 30).await;
        assert_eq!(gauges(&other.obey(Order::Look).await, "narrow/eu").limit, Some(MOST));
    }
    suffer(one, "narrow").await;
    for replica in [one, &others[0], &others[1]] {
        let lowered = |seen: &Report| gauges(seen, "narrow/eu").limit < Some(MOST);
        replica.until(PATIENCE, "its limit is lowered", lowered).await;
    }
    for replica in [one, &others[0], &others[1]] {
        replica.obey(Order::Enough).await;
    }
}

#[tokio::test]
async fn a_replica_that_has_just_started_hedges_after_the_fleets_latency() {
    let _quiet = quiet().await;
    let setup = setup(Redis::shared().await);
    let [one] = &fleet::<1>(&setup).await;
    suffer(one, "hedged").await;
    let near = |delay: Duration| (95 * MS..200 * MS).contains(&delay);
    let warm = |seen: &Report| gauges(seen, "hedged/eu").hedge_delay.is_some_and(near);
    one.until(PATIENCE, "it knows its latency", warm).await;

    let fresh = replica(&setup);
    meet(&fresh).await;
    fresh.run(Load::once("hedged", "eu")).await; // one answer, at once: nothing to be learned from that
    let seen = fresh.until(PATIENCE, "it knows the fleet's latency", warm).await;
    assert!(!seen.alone);
    one.obey(Order::Enough).await;
}

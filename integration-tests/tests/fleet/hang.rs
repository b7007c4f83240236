//! A Redis that hangs costs each caller little, and then nothing.
//!
//! Time lost is measured at the caller, from the call to its operation: per caller, all waits together that ended in an
//! answer without Redis. What a decision costs once the latch is down is measured in two ways that a busy machine cannot
//! spoil: no call may wait for anything (it is decided in its first poll), and the time in which its thread had a
//! processor must be below the bar at p99.9.

use std::time::Duration;

use phalanx::{BreakerSpec, Policy, RateLimitSpec, Source};
use phalanx_integration_tests::replica::{Heard, Load, Moment, Order, Setup};
use phalanx_integration_tests::server::{Redis, Spawned};
use tokio::time::sleep;

use crate::kit::{MS, PATIENCE, SECOND, meet, quiet, replica};

const BUDGET: Duration = Duration::from_millis(20);

fn policy() -> Policy {
    Policy::named("stack").rate_limit(RateLimitSpec::per_second(1_000_000)).breaker(BreakerSpec::failure_ratio(0.5))
}

async fn hang(callers: usize, pause: Duration) {
    let _quiet = quiet().await;
    let redis = Spawned::start().await;
    let replica = replica(&Setup::new(redis.url()).policy(policy()).store_budget(BUDGET));
    meet(&replica).await;
    replica.start_load(Load::lasting("stack", "r", 60 * SECOND).callers(callers).pause(pause)).await;
    replica.until(PATIENCE, "all is well", |seen| seen.tally.admitted() > callers as u64).await;

    redis.stop();
    sleep(1_500 * MS).await;
    let continued = Moment::now();
    redis.cont();
    replica.until(PATIENCE, "Redis is back", |seen| seen.recoveries() == 1).await;
    sleep(200 * MS).await;
    let seen = replica.obey(Order::Enough).await;

    let tally = &seen.tally;
    let recovered = seen.moments(|what| matches!(what, Heard::Recovered { .. }))[0];
    let (lost, after) = (tally.most_lost, recovered.since(continued));
    println!(
        "{callers} callers: lost at most {lost:?} each, asking {:?}; alone: {:?}, on the processor {:?}, {} parked; back after {after:?}",
        tally.asking, tally.alone, tally.alone_on_processor, tally.alone_and_parked,
    );
    assert_eq!((seen.outages(), seen.recoveries()), (vec!["timeout"], 1), "one outage, told once");
    assert_eq!(tally.refused.len(), 0, "no caller was refused: {:?}", tally.refused);
    assert!(tally.decided_by(Source::Degraded) > callers as u64, "nobody called meanwhile: {tally:#?}");
    assert!(lost <= 3 * BUDGET + 5 * MS, "a caller lost {lost:?} at a budget of {BUDGET:?}");
    assert_eq!(tally.alone_and_parked, 0, "decided alone and yet had to wait, of {:?}", tally.alone);
    assert!(tally.alone_on_processor.p999 < MS / 20, "a decision alone costs {:?}", tally.alone_on_processor);
    assert!(after <= 2_500 * MS, "Redis was back {after:?} before it decided again");
}

#[tokio::test]
async fn a_hanging_redis_costs_each_of_64_callers_three_budgets_and_then_nothing() {
    hang(64, 10 * MS).await;
}

#[tokio::test]
async fn a_hanging_redis_costs_each_of_1000_callers_three_budgets_and_then_nothing() {
    hang(1_000, 100 * MS).await;
}

/// All at once, again and again.
async fn crowd(routes: usize) {
    let _quiet = quiet().await;
    let replica = replica(&Setup::new(Redis::shared().await).policy(policy()).store_budget(BUDGET));
    meet(&replica).await;
    let load = Load::lasting("stack", "", 2 * SECOND).routes((0..routes).map(|n| n.to_string())).callers(1_000);
    let seen = replica.run(load).await;
    println!("1,000 callers on {routes} keys: {} calls, waits {:?}", seen.tally.calls(), seen.tally.asking);
    assert_eq!(seen.outages(), Vec::<&str>::new());
    assert_eq!(seen.tally.decided_by(Source::Degraded), 0, "decided without Redis; waits {:?}", seen.tally.asking);
    assert!(seen.tally.calls() > 10_000, "no crowd: {} calls", seen.tally.calls());
}

#[tokio::test]
async fn a_thousand_callers_on_one_key_of_a_healthy_redis_never_degrade() {
    crowd(1).await;
}

#[tokio::test]
async fn a_thousand_callers_on_64_keys_of_a_healthy_redis_never_degrade() {
    crowd(64).await;
}

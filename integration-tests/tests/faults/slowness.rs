//! A Redis that is slow rather than gone.

use phalanx::Source;
use phalanx_integration_tests::replica::{Order, Setup};
use phalanx_integration_tests::server::{Proxy, Spawned};
use tokio::time::sleep;

use crate::kit::{MS, PATIENCE, RECOVERY, SECOND, assert_one_outage, callers, plenty, worker};

#[tokio::test]
async fn a_stall_of_more_than_one_budget_and_less_than_three_is_no_outage() {
    let redis = Spawned::start().await;
    let mut worker = worker(&Setup::new(redis.url()).policy(plenty()).store_budget(200 * MS)).await;
    worker.start(callers());
    for _ in 0..2 {
        redis.cli(&["DEBUG", "SLEEP", "0.3"]).await;
        let fleet = worker.look().tally.admitted_by(Source::Fleet);
        worker.until(PATIENCE, "Redis decides", |seen| seen.tally.admitted_by(Source::Fleet) > fleet + 10).await;
    }
    let seen = worker.obey(Order::Enough).await;
    println!("{:?}, waits {:?}", seen.tally.admitted, seen.tally.asking);
    assert_eq!(seen.outages(), Vec::<&str>::new());
    let alone = seen.tally.decided_by(Source::Degraded);
    assert!((1..=4 * 2 * 2).contains(&alone), "{alone} calls of 4 callers decided alone in 2 stalls");
}

/// Slower than the budget for a while, and whether that is one outage.
async fn slow_for_a_while(slow: impl AsyncFnOnce(&Proxy)) {
    let redis = Spawned::start().await;
    let proxy = Proxy::start(redis.address()).await;
    let mut worker = worker(&Setup::new(proxy.url()).policy(plenty()).store_budget(100 * MS)).await;
    worker.start(callers());
    worker.until(PATIENCE, "all is well", |seen| seen.tally.admitted_by(Source::Fleet) > 20).await;
    slow(&proxy).await;
    worker.until(PATIENCE, "the outage is told", |seen| !seen.outages().is_empty()).await;
    sleep(SECOND).await; // probes come and go
    assert!(worker.look().alone, "it answers too late, and that is not well");
    proxy.pass().await;
    worker.until(RECOVERY, "Redis is back", |seen| seen.recoveries() == 1).await;
    assert_one_outage(&worker.obey(Order::Enough).await, "timeout");
}

#[tokio::test]
async fn replies_later_than_the_budget_are_one_outage_and_do_not_flutter() {
    slow_for_a_while(async |proxy| proxy.delay(300 * MS)).await;
}

#[tokio::test]
async fn replies_that_drip_are_one_outage_and_do_not_flutter() {
    slow_for_a_while(async |proxy| proxy.drip(100 * MS)).await;
}

//! A slow Redis.

use phalanx::Source;
use phalanx_integration_tests::replica::{Command, Setup};
use phalanx_testkit::server::{Proxy, RedisProcess};
use tokio::time::sleep;

use crate::harness::{MS, RECOVERY, SECOND, WAIT_TIMEOUT, assert_one_outage, callers, plenty, replica};

#[tokio::test]
async fn a_stall_between_one_and_three_budgets_is_not_an_outage() {
    let redis = RedisProcess::start().await;
    let mut replica = replica(&Setup::new(redis.url()).policy(plenty()).store_budget(200 * MS)).await;
    replica.start(callers());
    for _ in 0..2 {
        redis.cli(&["DEBUG", "SLEEP", "0.3"]).await;
        let fleet = replica.report().tally.admitted_by(Source::Fleet);
        replica.until(WAIT_TIMEOUT, "Redis decides", |seen| seen.tally.admitted_by(Source::Fleet) > fleet + 10).await;
    }
    let seen = replica.execute(Command::Stop).await;
    println!("{:?}, waits {:?}", seen.tally.admitted, seen.tally.store_waits);
    assert_eq!(seen.outages(), Vec::<&str>::new());
    let degraded = seen.tally.decided_by(Source::Degraded);
    assert!((1..=4 * 2 * 2).contains(&degraded), "{degraded} degraded decisions of 4 callers in 2 stalls");
}

/// Makes Redis slower than the budget for a while, and asserts that this is one outage.
async fn slow_for_a_while(slow: impl AsyncFnOnce(&Proxy)) {
    let redis = RedisProcess::start().await;
    let proxy = Proxy::start(redis.address()).await;
    let mut replica = replica(&Setup::new(proxy.url()).policy(plenty()).store_budget(100 * MS)).await;
    replica.start(callers());
    replica.until(WAIT_TIMEOUT, "Redis decides", |seen| seen.tally.admitted_by(Source::Fleet) > 20).await;
    slow(&proxy).await;
    replica.until(WAIT_TIMEOUT, "the outage is emitted", |seen| !seen.outages().is_empty()).await;
    sleep(SECOND).await; // several health checks
    assert!(replica.report().degraded, "late replies must not end the outage");
    proxy.clear_faults().await;
    replica.until(RECOVERY, "the store recovers", |seen| seen.recoveries() == 1).await;
    assert_one_outage(&replica.execute(Command::Stop).await, "timeout");
}

#[tokio::test]
async fn replies_later_than_the_budget_are_one_outage_without_flapping() {
    slow_for_a_while(async |proxy| proxy.delay(300 * MS)).await;
}

#[tokio::test]
async fn replies_sent_byte_by_byte_are_one_outage_without_flapping() {
    slow_for_a_while(async |proxy| proxy.drip(100 * MS)).await;
}

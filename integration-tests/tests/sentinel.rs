//! The fleet on Redis Sentinel: a planned failover, a killed master, and hung sentinels.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

#[path = "cluster/harness.rs"]
mod harness;

use std::time::Duration;

use deadpool_redis::sentinel::SentinelServerType as PoolServerType;
use phalanx::store::{RedisConnection, StoreMode};
use phalanx::{Pipeline, ResilienceModule, Source};
use phalanx_testkit::server::{MASTER_NAME, RedisProcess, Sentinel};
use redis::sentinel::{SentinelClient, SentinelServerType};
use tokio::time::{Instant, sleep};

use crate::harness::{EventLog, SECOND, SLACK};

fn client(sentinel: &Sentinel) -> RedisConnection {
    let urls = sentinel.sentinel_urls();
    SentinelClient::build(urls, MASTER_NAME, None, SentinelServerType::Master).unwrap().into()
}

fn pool(sentinel: &Sentinel) -> RedisConnection {
    pool_of(sentinel).into()
}

fn pool_of(sentinel: &Sentinel) -> deadpool_redis::sentinel::Pool {
    let (urls, name) = (sentinel.sentinel_urls(), MASTER_NAME.to_owned());
    let config = deadpool_redis::sentinel::Config::from_urls(urls, name, PoolServerType::Master);
    config.create_pool(Some(deadpool_redis::Runtime::Tokio1)).unwrap()
}

async fn replica(source: RedisConnection) -> (ResilienceModule, Pipeline, EventLog) {
    let log = EventLog::default();
    let module = harness::replica(source, &log).build().unwrap();
    let pipeline = module.pipeline("stack", "route").unwrap();
    harness::warm_up(&module, &log).await;
    (module, pipeline, log)
}

/// Sets the time after which sentinels consider a master down: on a busy machine a healthy one may be silent for a while.
/// The slower gossip gives sentinels two seconds to announce a promotion before the others undo it.
async fn set_down_after(sentinel: &Sentinel, silence: Duration) {
    let millis = silence.as_millis().to_string();
    for sentinel in sentinel.sentinels() {
        sentinel.cli(&["SENTINEL", "SET", MASTER_NAME, "down-after-milliseconds", &millis]).await;
        let _ = sentinel.try_cli(&["SENTINEL", "DEBUG", "PUBLISH-PERIOD", "500"]).await; // available since 7.0
    }
}

/// Fails over to another master. Returns, once the old one is a replica, the old one and the port of the new one.
async fn hand_over(sentinel: &Sentinel) -> (&RedisProcess, u16) {
    set_down_after(sentinel, 30 * SECOND).await;
    let old = sentinel.master().await;
    // A sentinel aborts a failover if its replica is silent, which happens on a busy machine; so the command is repeated.
    let promoting = async {
        while sentinel.master().await.port() == old.port() {
            let _ = sentinel.sentinels()[0].try_cli(&["SENTINEL", "FAILOVER", MASTER_NAME]).await;
            sleep(SECOND / 2).await;
        }
    };
    let ((), new) = tokio::join!(promoting, sentinel.until_another_than(old.port()));
    old.until(&["ROLE"], |role| role.starts_with("slave")).await;
    (old, new.port())
}

/// A planned failover, then a kill of the new master.
async fn survives_two_failovers(sentinel: &Sentinel, source: RedisConnection) {
    let (module, pipeline, log) = replica(source).await;
    let (old, second) = hand_over(sentinel).await;
    let began = Instant::now();
    harness::until_fleet(&pipeline).await;
    println!("FAILOVER: Redis decides {:?} after it; {:?}", began.elapsed(), log.read());
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
    assert!(log.outages().len() <= 1, "{:?}", log.read());
    harness::until_shared(&module).await;
    let outages = log.outages().len();
    assert_eq!(log.recoveries(), outages);

    // The old master can only be promoted once it has synced with the new one.
    old.until(&["INFO", "replication"], |info| info.contains("master_link_status:up")).await;
    sentinel.until_replicas_are_known().await;
    set_down_after(sentinel, SECOND / 2).await;
    sentinel.master().await.kill();
    log.until_degraded(outages + 1).await;
    let (decision, took) = harness::call(&pipeline).await;
    assert_eq!((decision.source, module.store_mode()), (Source::Degraded, Some(StoreMode::Degraded)));
    assert!(took < SLACK, "{took:?}");
    sentinel.until_another_than(second).await;
    let began = Instant::now();
    harness::until_fleet(&pipeline).await;
    println!("kill -9: Redis decides {:?} after the promotion", began.elapsed());
    assert!(began.elapsed() < 4 * SECOND, "{:?}", began.elapsed());
    harness::until_shared(&module).await;
    assert_eq!((log.outages().len(), log.recoveries()), (outages + 1, outages + 1), "{:?}", log.read());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_follows_a_failover_and_survives_the_death_of_its_master() {
    let sentinel = Sentinel::start().await;
    survives_two_failovers(&sentinel, client(&sentinel)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_follows_a_failover_and_survives_the_death_of_its_master() {
    let sentinel = Sentinel::start().await;
    survives_two_failovers(&sentinel, pool(&sentinel)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_pool_connections_to_the_old_master_are_not_used() {
    let sentinel = Sentinel::start().await;
    let pool = pool_of(&sentinel);
    let (module, pipeline, log) = replica(pool.clone().into()).await;
    let mut others = Vec::new();
    for _ in 0..pool.status().max_size {
        others.push(pool.get().await.unwrap());
    }
    drop(others);
    assert!(pool.status().available > 1);
    hand_over(&sentinel).await;
    let began = Instant::now();
    harness::until_fleet(&pipeline).await;
    harness::until_shared(&module).await;
    println!("idle connections to the old master: recovered after {:?}, {:?}", began.elapsed(), log.read());
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hung_sentinels_do_not_prevent_finding_the_master() {
    let sentinel = Sentinel::start().await;
    sentinel.sentinels()[0].stop();
    let log = EventLog::default();
    let module = harness::replica(client(&sentinel), &log).build().unwrap();
    let pipeline = module.pipeline("stack", "route").unwrap();
    let began = Instant::now();
    harness::until_fleet(&pipeline).await;
    println!("the first sentinel hangs: Redis decides after {:?}", began.elapsed());
    assert!(began.elapsed() < 4 * SECOND, "{:?}", began.elapsed());
}

//! The fleet under Sentinel: a master that hands over, one that is killed, sentinels that hang.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

#[path = "cluster/harness.rs"]
mod harness;

use std::time::Duration;

use deadpool_redis::sentinel::SentinelServerType as PoolServerType;
use phalanx::store::{RedisConnection, StoreMode};
use phalanx::{Pipeline, ResilienceModule, Source};
use phalanx_integration_tests::server::{MASTER_NAME, RedisProcess, Sentinel};
use redis::sentinel::{SentinelClient, SentinelServerType};
use tokio::time::{Instant, sleep};

use crate::harness::{Log, SECOND, SLACK};

fn client(formation: &Sentinel) -> RedisConnection {
    let urls = formation.sentinel_urls();
    SentinelClient::build(urls, MASTER_NAME, None, SentinelServerType::Master).unwrap().into()
}

fn pool(formation: &Sentinel) -> RedisConnection {
    pool_of(formation).into()
}

fn pool_of(formation: &Sentinel) -> deadpool_redis::sentinel::Pool {
    let (urls, name) = (formation.sentinel_urls(), MASTER_NAME.to_owned());
    let config = deadpool_redis::sentinel::Config::from_urls(urls, name, PoolServerType::Master);
    config.create_pool(Some(deadpool_redis::Runtime::Tokio1)).unwrap()
}

async fn replica(source: RedisConnection) -> (ResilienceModule, Pipeline, Log) {
    let log = Log::default();
    let module = harness::replica(source, &log).build().unwrap();
    let pipeline = module.pipeline("stack", "route").unwrap();
    harness::warm_up(&module, &log).await;
    (module, pipeline, log)
}

/// Sentinels take a master for dead that is silent for so long, because on a busy machine one that lives may be. And they
/// give each other two seconds to say that they made a replica master, before they take it for a mistake and undo it.
async fn take_for_dead_after(formation: &Sentinel, silence: Duration) {
    let millis = silence.as_millis().to_string();
    for sentinel in formation.sentinels() {
        sentinel.cli(&["SENTINEL", "SET", MASTER_NAME, "down-after-milliseconds", &millis]).await;
        let _ = sentinel.try_cli(&["SENTINEL", "DEBUG", "PUBLISH-PERIOD", "500"]).await; // known from 7.0 on
    }
}

/// Another master takes over. Returns, when it has and the old one takes no writes any more, the old one and the new
/// one's port.
async fn hand_over(formation: &Sentinel) -> (&RedisProcess, u16) {
    take_for_dead_after(formation, 30 * SECOND).await;
    let old = formation.master().await;
    // A sentinel that has not heard of its replica for a moment gives up; on a busy machine it is told again.
    let telling = async {
        while formation.master().await.port() == old.port() {
            let _ = formation.sentinels()[0].try_cli(&["SENTINEL", "FAILOVER", MASTER_NAME]).await;
            sleep(SECOND / 2).await;
        }
    };
    let ((), new) = tokio::join!(telling, formation.until_another_than(old.port()));
    old.until(&["ROLE"], |role| role.starts_with("slave")).await;
    (old, new.port())
}

/// A planned change of masters, and then the death of the new one.
async fn changes_masters(formation: &Sentinel, source: RedisConnection) {
    let (module, pipeline, log) = replica(source).await;
    let (old, second) = hand_over(formation).await;
    let began = Instant::now();
    harness::until_fleet(&pipeline).await;
    println!("FAILOVER: the fleet decides {:?} after it; {:?}", began.elapsed(), log.read());
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
    assert!(log.outages().len() <= 1, "{:?}", log.read());
    harness::until_shared(&module).await;
    let outages = log.outages().len();
    assert_eq!(log.recoveries(), outages);

    // The old master can only take over once it has heard all from the new one.
    old.until(&["INFO", "replication"], |info| info.contains("master_link_status:up")).await;
    formation.until_replicas_are_known().await;
    take_for_dead_after(formation, SECOND / 2).await;
    formation.master().await.kill();
    log.until_degraded(outages + 1).await;
    let (decision, took) = harness::call(&pipeline).await;
    assert_eq!((decision.source, module.store_mode()), (Source::Degraded, Some(StoreMode::Degraded)));
    assert!(took < SLACK, "{took:?}");
    formation.until_another_than(second).await;
    let began = Instant::now();
    harness::until_fleet(&pipeline).await;
    println!("kill -9: the fleet decides {:?} after the promotion", began.elapsed());
    assert!(began.elapsed() < 4 * SECOND, "{:?}", began.elapsed());
    harness::until_shared(&module).await;
    assert_eq!((log.outages().len(), log.recoveries()), (outages + 1, outages + 1), "{:?}", log.read());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_follows_a_failover_and_survives_the_death_of_its_master() {
    let formation = Sentinel::start().await;
    changes_masters(&formation, client(&formation)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_follows_a_failover_and_survives_the_death_of_its_master() {
    let formation = Sentinel::start().await;
    changes_masters(&formation, pool(&formation)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_of_a_pool_that_lead_to_the_old_master_keep_nobody_there() {
    let formation = Sentinel::start().await;
    let pool = pool_of(&formation);
    let (module, pipeline, log) = replica(pool.clone().into()).await;
    let mut others = Vec::new();
    for _ in 0..pool.status().max_size {
        others.push(pool.get().await.unwrap());
    }
    drop(others);
    assert!(pool.status().available > 1);
    hand_over(&formation).await;
    let began = Instant::now();
    harness::until_fleet(&pipeline).await;
    harness::until_shared(&module).await;
    println!("idle connections to the old master: back after {:?}, {:?}", began.elapsed(), log.read());
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_hang_keep_nobody_from_the_master() {
    let formation = Sentinel::start().await;
    formation.sentinels()[0].stop();
    let log = Log::default();
    let module = harness::replica(client(&formation), &log).build().unwrap();
    let pipeline = module.pipeline("stack", "route").unwrap();
    let began = Instant::now();
    harness::until_fleet(&pipeline).await;
    println!("the first sentinel hangs: the fleet decides after {:?}", began.elapsed());
    assert!(began.elapsed() < 4 * SECOND, "{:?}", began.elapsed());
}

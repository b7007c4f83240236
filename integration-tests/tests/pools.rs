//! The fleet over a deadpool pool: connections are taken out of it and kept.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

#[path = "cluster/harness.rs"]
mod harness;

use std::time::Duration;

use deadpool_redis::{Pool, Runtime};
use phalanx::store::RedisConnection;
use phalanx::{Pipeline, ResilienceModule, Source};
use phalanx_integration_tests::server::RedisProcess;
use phalanx_integration_tests::server::redis_cli::field;
use redis::Client;
use tokio::time::Instant;

use crate::harness::{BUDGET, Log, MS, SECOND, SLACK};

/// Longer than any test: nobody asks by himself.
const NEVER: Duration = Duration::from_secs(60);

/// A pool with so many connections at most.
fn pool(server: &RedisProcess, size: usize) -> Pool {
    let builder = deadpool_redis::Config::from_url(server.url()).builder().unwrap();
    builder.max_size(size).runtime(Runtime::Tokio1).build().unwrap()
}

fn replica(source: impl Into<RedisConnection>, sync: Duration) -> (ResilienceModule, Pipeline, Log) {
    let log = Log::default();
    let module = harness::replica(source, &log).sync_interval(sync).build().unwrap();
    let pipeline = module.pipeline("stack", "route").unwrap();
    (module, pipeline, log)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_one_gives_its_connection_away_once_and_keeps_serving_others() {
    let server = RedisProcess::start().await;
    let pool = pool(&server, 1);
    let (module, pipeline, log) = replica(pool.clone(), SECOND / 4);
    harness::warm_up(&module, &log).await;
    assert_eq!(pool.status().size, 0, "taken out");

    let (theirs, status) = (pool.get().await.unwrap(), pool.status());
    assert_eq!((status.size, status.available), (1, 0), "the pool is exhausted");
    let dialled = async || -> u64 {
        let info = server.cli(&["INFO", "stats"]).await;
        field(&info, "total_connections_received").unwrap().parse().unwrap()
    };
    let before = dialled().await;
    for _ in 0..100 {
        assert_eq!(harness::call(&pipeline).await.0.source, Source::Fleet);
    }
    assert_eq!(dialled().await, before + 1, "the one that asks for the number");
    assert_eq!(log.outages(), Vec::<String>::new());
    drop(theirs);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_has_no_connection_to_give_costs_the_budget_and_no_more() {
    let server = RedisProcess::start().await;
    let pool = pool(&server, 1);
    let theirs = pool.get().await.unwrap();
    let (_module, pipeline, _log) = replica(pool.clone(), SECOND / 4);
    let (decision, took) = harness::call(&pipeline).await;
    assert_eq!(decision.source, Source::Degraded);
    assert!(took < 2 * BUDGET + SLACK, "{took:?} for a rate limit and a circuit");
    drop(theirs);
    harness::until_fleet(&pipeline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_server_costs_a_pools_callers_no_more_than_the_budget() {
    let server = RedisProcess::start().await;
    let pool = pool(&server, 8);
    let mut others = Vec::new();
    for _ in 0..8 {
        others.push(pool.get().await.unwrap());
    }
    drop(others); // idle: whoever takes one out of the pool first asks it whether it lives
    let (module, pipeline, log) = replica(pool, SECOND / 4);
    harness::warm_up(&module, &log).await;

    server.stop();
    let began = Instant::now();
    let calls = (0..64).map(|_| {
        let pipeline = pipeline.clone();
        tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            while harness::call(&pipeline).await.1 > BUDGET / 4 {
                longest = longest.max(began.elapsed());
            }
            longest
        })
    });
    let mut longest = Duration::ZERO;
    for call in calls.collect::<Vec<_>>() {
        longest = longest.max(call.await.unwrap());
    }
    println!("64 callers on a hung server: the last one waited until {longest:?}");
    assert!(longest < 3 * BUDGET + SLACK, "{longest:?}");
    log.until_degraded(1).await;
    server.resume();
    let began = Instant::now();
    harness::until_fleet(&pipeline).await;
    harness::until_shared(&module).await;
    println!("back {:?} after SIGCONT", began.elapsed());
    assert_eq!((log.outages().len(), log.recoveries()), (1, 1), "{:?}", log.read());
}

/// Trips routes on one replica; how long until the other rejects, the shortest first.
async fn trips(one: &ResilienceModule, other: &ResilienceModule) -> Vec<Duration> {
    let mut took = Vec::new();
    for route in 0..9 {
        let route = format!("route-{route}");
        let (here, there) = (one.pipeline("stack", &route).unwrap(), other.pipeline("stack", &route).unwrap());
        harness::until_fleet(&here).await;
        harness::until_fleet(&there).await;
        harness::fail(&here).await;
        took.push(harness::until_rejected(&there).await);
    }
    took.sort_unstable();
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_push_a_trip_is_found_within_the_sync_interval() {
    let server = RedisProcess::start().await;
    let sync = SECOND / 4;
    let ((one, ..), (other, ..)) = (replica(pool(&server, 2), sync), replica(pool(&server, 2), sync));
    let took = trips(&one, &other).await;
    println!("without push: {took:?}");
    assert!(harness::percentile(&took, 50) < sync + 50 * MS, "{took:?}");
    assert!(took.last().is_some_and(|longest| *longest < sync + SLACK), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_client_to_listen_a_trip_is_pushed() {
    let server = RedisProcess::start().await;
    let source = || RedisConnection::from(pool(&server, 2)).with_push(Client::open(server.url()).unwrap());
    let ((one, ..), (other, far, _)) = (replica(source(), NEVER), replica(source(), NEVER));
    harness::until_fleet(&far).await;
    server.until(&["PUBSUB", "NUMSUB", "ph1:default:c"], |said| said.ends_with('1')).await;
    let took = trips(&one, &other).await;
    println!("with push: {took:?}");
    assert!(took.last().is_some_and(|longest| *longest < SLACK), "{took:?}");
}

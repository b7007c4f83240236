//! The fleet over a deadpool pool: the store takes a connection out of the pool and keeps it.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

#[path = "cluster/harness.rs"]
mod harness;

use std::time::Duration;

use deadpool_redis::{Pool, Runtime};
use phalanx::store::RedisConnection;
use phalanx::{Pipeline, ResilienceModule, Source};
use phalanx_testkit::server::RedisProcess;
use phalanx_testkit::server::redis_cli::field;
use redis::Client;
use tokio::time::Instant;

use crate::harness::{BUDGET, EventLog, MS, SECOND, SLACK};

/// A sync interval longer than any test, so that only pushes propagate state.
const NEVER: Duration = Duration::from_secs(60);

/// Returns a pool with this maximum size.
fn pool(server: &RedisProcess, size: usize) -> Pool {
    let builder = deadpool_redis::Config::from_url(server.url()).builder().unwrap();
    builder.max_size(size).runtime(Runtime::Tokio1).build().unwrap()
}

fn replica(source: impl Into<RedisConnection>, sync: Duration) -> (ResilienceModule, Pipeline, EventLog) {
    let log = EventLog::default();
    let module = harness::replica(source, &log).sync_interval(sync).build().unwrap();
    let pipeline = module.pipeline("stack", "route").unwrap();
    (module, pipeline, log)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_taken_out_of_a_pool_of_one_once_and_the_pool_serves_others() {
    let server = RedisProcess::start().await;
    let pool = pool(&server, 1);
    let (module, pipeline, log) = replica(pool.clone(), SECOND / 4);
    harness::warm_up(&module, &log).await;
    assert_eq!(pool.status().size, 0, "taken out");

    let (other_user, status) = (pool.get().await.unwrap(), pool.status());
    assert_eq!((status.size, status.available), (1, 0), "the pool is exhausted");
    let connections = async || -> u64 {
        let info = server.cli(&["INFO", "stats"]).await;
        field(&info, "total_connections_received").unwrap().parse().unwrap()
    };
    let before = connections().await;
    for _ in 0..100 {
        assert_eq!(harness::call(&pipeline).await.0.source, Source::Fleet);
    }
    assert_eq!(connections().await, before + 1, "only the connection of this check");
    assert_eq!(log.outages(), Vec::<String>::new());
    drop(other_user);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exhausted_pool_costs_at_most_the_budget() {
    let server = RedisProcess::start().await;
    let pool = pool(&server, 1);
    let other_user = pool.get().await.unwrap();
    let (_module, pipeline, _log) = replica(pool.clone(), SECOND / 4);
    let (decision, took) = harness::call(&pipeline).await;
    assert_eq!(decision.source, Source::Degraded);
    assert!(took < 2 * BUDGET + SLACK, "{took:?} for a rate limit and a breaker");
    drop(other_user);
    harness::until_fleet(&pipeline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_server_costs_the_callers_of_a_pool_at_most_three_budgets() {
    let server = RedisProcess::start().await;
    let pool = pool(&server, 8);
    let mut others = Vec::new();
    for _ in 0..8 {
        others.push(pool.get().await.unwrap());
    }
    drop(others); // idle: the pool checks each with a PING before it hands it out
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
    println!("recovered {:?} after SIGCONT", began.elapsed());
    assert_eq!((log.outages().len(), log.recoveries()), (1, 1), "{:?}", log.read());
}

/// Trips routes on one replica. Returns the sorted times until the other rejects.
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
async fn without_push_a_trip_is_received_within_the_sync_interval() {
    let server = RedisProcess::start().await;
    let sync = SECOND / 4;
    let ((one, ..), (other, ..)) = (replica(pool(&server, 2), sync), replica(pool(&server, 2), sync));
    let took = trips(&one, &other).await;
    println!("without push: {took:?}");
    assert!(harness::percentile(&took, 50) < sync + 50 * MS, "{took:?}");
    assert!(took.last().is_some_and(|longest| *longest < sync + SLACK), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_push_client_a_trip_is_pushed() {
    let server = RedisProcess::start().await;
    let source = || RedisConnection::from(pool(&server, 2)).with_push(Client::open(server.url()).unwrap());
    let ((one, ..), (other, far, _)) = (replica(source(), NEVER), replica(source(), NEVER));
    harness::until_fleet(&far).await;
    server.until(&["PUBSUB", "NUMSUB", "ph2:test.default:c"], |reply| reply.ends_with('2')).await;
    let took = trips(&one, &other).await;
    println!("with push: {took:?}");
    assert!(harness::percentile(&took, 50) < SLACK, "{took:?}");
    // Polls are a minute or more apart, so a trip within a second was pushed.
    assert!(took.last().is_some_and(|longest| *longest < SECOND), "{took:?}");
}

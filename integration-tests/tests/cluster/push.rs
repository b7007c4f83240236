//! How a trip on one replica reaches the others on a cluster.

use std::time::Duration;

use deadpool_redis::Runtime;
use phalanx::ResilienceModule;
use phalanx::describe::Phase;
use phalanx::store::RedisConnection;
use phalanx_testkit::server::{Cluster, RedisProcess};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::{Client, ProtocolVersion};
use tokio::time::Instant;

use crate::harness::{self, EventLog, LoggedEvent, SECOND, SLACK};
use crate::keys;

/// A sync interval longer than any test, so that only pushes propagate state.
const NEVER: Duration = Duration::from_secs(60);

fn speaking_resp3(cluster: &Cluster) -> ClusterClient {
    ClusterClientBuilder::new(cluster.urls()).use_protocol(ProtocolVersion::RESP3).build().unwrap()
}

/// Starts two replicas of a fleet.
async fn pair<S: Into<RedisConnection>>(
    source: impl Fn() -> S,
    fleet: &str,
    sync: Duration,
) -> [(ResilienceModule, EventLog); 2] {
    let replica = || {
        let log = EventLog::default();
        (harness::replica(source(), &log).environment(fleet).sync_interval(sync).build().unwrap(), log)
    };
    let pair = [replica(), replica()];
    for (module, log) in &pair {
        harness::warm_up(module, log).await;
    }
    pair
}

/// Waits until two clients are subscribed to a fleet's channel on this master.
async fn until_both_subscribed(master: &RedisProcess, fleet: &str) {
    master.until(&["PUBSUB", "NUMSUB", &format!("ph2:test.{fleet}:c")], |reply| reply.ends_with('2')).await;
}

/// Trips a route on one replica. Returns how long until the other has received the trip.
async fn trip(here: &ResilienceModule, there: &(ResilienceModule, EventLog), policy: &str, route: &str) -> Duration {
    let (here, far) = (here.pipeline(policy, route).unwrap(), there.0.pipeline(policy, route).unwrap());
    for pipeline in [&here, &far] {
        harness::until_fleet(pipeline).await;
    }
    let began = Instant::now();
    harness::fail(&here).await;
    there.1.until("the trip", |events| events.contains(&LoggedEvent::Phase(route.to_owned(), Phase::Open))).await;
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trips_are_pushed_to_resp3_clients_and_to_pools_with_a_push_client() {
    let cluster = Cluster::start().await;
    let node = &cluster.masters()[1];
    let listening_pool = || {
        let pool = deadpool_redis::cluster::Config::from_urls(cluster.urls()).create_pool(Some(Runtime::Tokio1));
        RedisConnection::from(pool.unwrap()).with_push(Client::open(node.url()).unwrap())
    };
    let (clients, pools) =
        tokio::join!(pair(|| speaking_resp3(&cluster), "clients", NEVER), pair(listening_pool, "pools", NEVER));
    for (fleet, [one, other]) in [("clients", clients), ("pools", pools)] {
        until_both_subscribed(node, fleet).await;
        let mut slowest = Duration::ZERO;
        for route in 0..20 {
            slowest = slowest.max(trip(&one.0, &other, "stack", &format!("route-{route}")).await);
        }
        println!("pushed over the cluster to {fleet}: slowest of 20 {slowest:?}");
        assert!(slowest < SLACK, "{slowest:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_master_does_not_affect_pushes_from_the_others() {
    let cluster = Cluster::start().await;
    let [one, other] = pair(|| speaking_resp3(&cluster), "default", NEVER).await;
    for master in cluster.masters() {
        until_both_subscribed(master, "default").await;
    }
    let placed = keys::place(&cluster, &one.0, 20).await;
    for hung in cluster.masters() {
        let well = placed.iter().filter(|route| !route.lies_on(&cluster, hung));
        let mut keys = well.map(|route| route.pipeline.key());
        let key = keys.find(|key| {
            let tripped = LoggedEvent::Phase(key.route().unwrap().to_owned(), Phase::Open);
            !other.1.read().contains(&tripped)
        });
        let (policy, route) = key.map(|key| (key.policy(), key.route().unwrap())).unwrap();
        harness::until_fleet(&other.0.pipeline(policy, route).unwrap()).await;
        hung.stop();
        let took = trip(&one.0, &other, policy, route).await;
        hung.resume();
        cluster.until_healthy().await;
        println!("pushed past a hung master: {took:?}");
        assert!(took < SLACK, "{took:?}");
        for (module, _) in [&one, &other] {
            harness::until_shared(module).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resp2_client_receives_trips_within_the_sync_interval() {
    let cluster = Cluster::start().await;
    let sync = SECOND / 4;
    let [one, other] = pair(|| keys::client(&cluster), "default", sync).await;
    for route in 0..5 {
        let route = format!("route-{route}");
        let (here, far) = (one.0.pipeline("stack", &route).unwrap(), other.0.pipeline("stack", &route).unwrap());
        for pipeline in [&here, &far] {
            harness::until_fleet(pipeline).await;
        }
        harness::fail(&here).await;
        let took = harness::until_rejected(&far).await;
        assert!(took < sync + SLACK, "{took:?}");
    }
}

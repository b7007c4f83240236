//! How one replica's trip reaches the others of a cluster.

use std::time::Duration;

use phalanx::{Phase, ResilienceModule};
use phalanx_integration_tests::server::Cluster;
use redis::ProtocolVersion;
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use tokio::time::{Instant, sleep};

use crate::keys;
use crate::kit::{self, Log, SECOND, SLACK, Told};

/// Longer than any test: nobody asks by himself.
const NEVER: Duration = Duration::from_secs(60);

fn speaking_resp3(cluster: &Cluster) -> ClusterClient {
    ClusterClientBuilder::new(cluster.urls()).use_protocol(ProtocolVersion::RESP3).build().unwrap()
}

/// Two replicas that have both used the route and hear each other.
async fn pair(client: impl Fn() -> ClusterClient, sync: Duration) -> [(ResilienceModule, Log); 2] {
    let replica = || {
        let log = Log::default();
        (kit::replica(client(), &log).sync_interval(sync).build().unwrap(), log)
    };
    let pair = [replica(), replica()];
    for (module, log) in &pair {
        kit::until_fleet(&module.pipeline("stack", "warm-up").unwrap()).await;
        log.until("the first heartbeat", |told| told.iter().any(|told| matches!(told, Told::Replicas(_)))).await;
    }
    pair
}

/// Returns when as many subscribe to the fleet's channel as there are masters to subscribe on, times two.
async fn until_both_listen(cluster: &Cluster) {
    let mut heard = 0;
    while heard < 2 {
        heard = 0;
        for master in cluster.masters() {
            let text = master.cli(&["PUBSUB", "NUMSUB", "ph1:default:c"]).await;
            heard = heard.max(text.lines().nth(1).unwrap_or_default().parse().unwrap());
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Trips the route on one replica; how long until the other has heard of it.
async fn trip(here: &ResilienceModule, there: &(ResilienceModule, Log), route: &str) -> Duration {
    let (here, far) = (here.pipeline("stack", route).unwrap(), there.0.pipeline("stack", route).unwrap());
    for pipeline in [&here, &far] {
        kit::until_fleet(pipeline).await;
    }
    let began = Instant::now();
    kit::fail(&here).await;
    there.1.until("the trip", |told| told.contains(&Told::Phase(route.to_owned(), Phase::Open))).await;
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_speaks_resp3_is_pushed_the_trips_of_all_shards() {
    let cluster = Cluster::start().await;
    let [one, other] = pair(|| speaking_resp3(&cluster), NEVER).await;
    kit::within_patience(until_both_listen(&cluster)).await;
    let mut slowest = Duration::ZERO;
    for route in 0..20 {
        slowest = slowest.max(trip(&one.0, &other, &format!("route-{route}")).await);
    }
    println!("pushed over the cluster: slowest of 20 {slowest:?}");
    assert!(slowest < SLACK, "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_master_takes_no_push_from_the_others() {
    let cluster = Cluster::start().await;
    let [one, other] = pair(|| speaking_resp3(&cluster), NEVER).await;
    kit::within_patience(until_both_listen(&cluster)).await;
    let placed = keys::place(&cluster, &one.0).await;
    for hung in cluster.masters() {
        let well = placed.iter().filter(|route| !route.lies_on(&cluster, hung));
        let route = well.map(|route| route.pipeline.key().route().unwrap().to_owned()).find(|route| {
            let tripped = Told::Phase(route.clone(), Phase::Open);
            !other.1.read().contains(&tripped)
        });
        let route = route.unwrap();
        kit::until_fleet(&other.0.pipeline("stack", &route).unwrap()).await;
        hung.stop();
        let took = trip(&one.0, &other, &route).await;
        hung.cont();
        cluster.settle().await;
        println!("pushed past a hung master: {took:?}");
        assert!(took < SLACK, "{took:?}");
        for (module, _) in [&one, &other] {
            kit::until_shared(module).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_speaks_resp2_finds_trips_within_the_sync_interval() {
    let cluster = Cluster::start().await;
    let sync = SECOND / 4;
    let [one, other] = pair(|| keys::client(&cluster), sync).await;
    for route in 0..5 {
        let route = format!("route-{route}");
        let (here, far) = (one.0.pipeline("stack", &route).unwrap(), other.0.pipeline("stack", &route).unwrap());
        for pipeline in [&here, &far] {
            kit::until_fleet(pipeline).await;
        }
        kit::fail(&here).await;
        let took = kit::until_refused(&far).await;
        assert!(took < sync + SLACK, "{took:?}");
    }
}

//! Masters that go for good: a replica takes over, or they come back with nothing.

use phalanx::Source;
use phalanx::store::StoreMode;
use phalanx_integration_tests::server::redis_cli::field;
use phalanx_integration_tests::server::{Cluster, Options, RedisProcess};
use tokio::time::Instant;

use crate::harness::{self, Log, WAIT_TIMEOUT};
use crate::keys::{client, place};

/// A silent master counts as failed after half a second.
fn hasty() -> Options {
    Options::new().set("cluster-node-timeout", &["500"])
}

/// One more server that replicates this master and will take its place.
async fn replica_of(cluster: &Cluster, master: &RedisProcess) -> RedisProcess {
    let options = Options::new().port("cluster-port").set("cluster-enabled", &["yes"]).merge(hasty());
    let options = options.set("repl-diskless-sync-delay", &["0"]).set("cluster-replica-validity-factor", &["0"]);
    let replica = RedisProcess::with(options).await;
    let id = master.cli(&["CLUSTER", "MYID"]).await;
    for one in cluster.masters() {
        let (port, bus) = (one.port().to_string(), one.port_of("cluster-port").to_string());
        replica.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
    }
    replica.until(&["CLUSTER", "NODES"], |nodes| nodes.contains(&id)).await;
    replica.until(&["CLUSTER", "REPLICATE", &id], |said| said == "OK").await;
    replica.until(&["INFO", "replication"], |info| field(info, "master_link_status") == Some("up")).await;
    for one in cluster.masters() {
        one.until(&["CLUSTER", "NODES"], |nodes| nodes.lines().any(|line| line.contains("slave"))).await;
    }
    replica
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_over_from_a_hung_master_is_found() {
    let cluster = Cluster::with(hasty()).await;
    let hung = &cluster.masters()[2];
    let replica = replica_of(&cluster, hung).await;
    let log = Log::default();
    let module = harness::replica(client(&cluster), &log).build().unwrap();
    harness::warm_up(&module, &log).await;
    let placed = place(&cluster, &module, 15).await;
    let sick = placed.iter().find(|route| cluster.master_of(route.key('r')).port() == hung.port()).unwrap();

    hung.stop();
    while harness::call(&sick.pipeline).await.0.source != Source::Degraded {}
    replica.until(&["ROLE"], |role| role.starts_with("master")).await;
    let began = Instant::now();
    harness::until_fleet(&sick.pipeline).await;
    println!("found {:?} after it took over", began.elapsed());
    harness::until_shared(&module).await;
    assert_eq!(log.outages(), ["timeout"]);
    for route in &placed {
        assert_eq!(harness::call(&route.pipeline).await.0.source, Source::Fleet);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_dies_and_comes_back_with_nothing_is_used_again() {
    let cluster = Cluster::start().await;
    let log = Log::default();
    let module = harness::replica(client(&cluster), &log).build().unwrap();
    harness::warm_up(&module, &log).await;
    let placed = place(&cluster, &module, 15).await;
    cluster.masters().iter().for_each(RedisProcess::kill);
    for route in &placed {
        while harness::call(&route.pipeline).await.0.source != Source::Degraded {}
    }
    assert_eq!(module.store_mode(), Some(StoreMode::Degraded));
    for master in cluster.masters() {
        master.restart().await;
    }
    cluster.until_healthy().await;
    let began = Instant::now();
    harness::until_shared(&module).await;
    println!("shared again {:?} after the cluster is, {:?}", began.elapsed(), log.read());
    for route in &placed {
        harness::until_fleet(&route.pipeline).await;
    }
    assert!(began.elapsed() < WAIT_TIMEOUT / 2, "{:?}", began.elapsed());
    // One for each shard, however often it was probed while it answered without serving.
    assert_eq!((log.outages().len(), log.recoveries()), (3, 3), "{:?}", log.read());
}

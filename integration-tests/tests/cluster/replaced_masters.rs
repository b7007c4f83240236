//! Masters that are replaced by a promoted replica, or that restart without their data.

use phalanx::Source;
use phalanx::store::StoreMode;
use phalanx_testkit::server::redis_cli::field;
use phalanx_testkit::server::{Cluster, Options, RedisProcess};
use tokio::time::Instant;

use crate::harness::{self, EventLog, WAIT_TIMEOUT};
use crate::keys::{client, place};

/// Options with which a master counts as failed after half a second without a reply.
fn short_node_timeout() -> Options {
    Options::new().set("cluster-node-timeout", &["500"])
}

/// Starts a replica of this master, which can be promoted.
async fn replica_of(cluster: &Cluster, master: &RedisProcess) -> RedisProcess {
    let options = Options::new().port("cluster-port").set("cluster-enabled", &["yes"]).merge(short_node_timeout());
    let options = options.set("repl-diskless-sync-delay", &["0"]).set("cluster-replica-validity-factor", &["0"]);
    let replica = RedisProcess::with(options).await;
    let id = master.cli(&["CLUSTER", "MYID"]).await;
    for one in cluster.masters() {
        let (port, bus) = (one.port().to_string(), one.port_of("cluster-port").to_string());
        replica.cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
    }
    replica.until(&["CLUSTER", "NODES"], |nodes| nodes.contains(&id)).await;
    replica.until(&["CLUSTER", "REPLICATE", &id], |reply| reply == "OK").await;
    replica.until(&["INFO", "replication"], |info| field(info, "master_link_status") == Some("up")).await;
    for one in cluster.masters() {
        one.until(&["CLUSTER", "NODES"], |nodes| nodes.lines().any(|line| line.contains("slave"))).await;
    }
    replica
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_promoted_in_place_of_a_hung_master_is_found() {
    let cluster = Cluster::with(short_node_timeout()).await;
    let hung = &cluster.masters()[2];
    let replica = replica_of(&cluster, hung).await;
    let log = EventLog::default();
    let module = harness::replica(client(&cluster), &log).build().unwrap();
    harness::warm_up(&module, &log).await;
    let placed = place(&cluster, &module, 15).await;
    let affected = placed.iter().find(|route| cluster.master_of(route.key('r')).port() == hung.port()).unwrap();

    hung.stop();
    while harness::call(&affected.pipeline).await.0.source != Source::Degraded {}
    replica.until(&["ROLE"], |role| role.starts_with("master")).await;
    let began = Instant::now();
    harness::until_fleet(&affected.pipeline).await;
    println!("found {:?} after its promotion", began.elapsed());
    harness::until_shared(&module).await;
    assert_eq!(log.outages(), ["timeout"]);
    for route in &placed {
        assert_eq!(harness::call(&route.pipeline).await.0.source, Source::Fleet);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_killed_and_restarted_without_data_is_used_again() {
    let cluster = Cluster::start().await;
    let log = EventLog::default();
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
    println!("shared again {:?} after the cluster is healthy, {:?}", began.elapsed(), log.read());
    for route in &placed {
        harness::until_fleet(&route.pipeline).await;
    }
    assert!(began.elapsed() < WAIT_TIMEOUT / 2, "{:?}", began.elapsed());
    // One outage for each shard, however many health checks failed while it replied without serving.
    assert_eq!((log.outages().len(), log.recoveries()), (3, 3), "{:?}", log.read());
}

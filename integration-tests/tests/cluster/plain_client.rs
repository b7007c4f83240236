//! A plain client on a server in Cluster mode, which takes no keys of several slots in one script.

use deadpool_redis::{Config, Runtime};
use phalanx_testkit::server::Cluster;
use phalanx_testkit::server::redis_cli::field;

use crate::harness::{self, EventLog, SECOND, SLACK};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_client_on_a_server_in_cluster_mode_finds_trips_in_one_partition_after_the_other() {
    let server = Cluster::lone_master().await;
    let (sync, logs) = (SECOND / 4, [EventLog::default(), EventLog::default()]);
    // A pool cannot subscribe, so a trip is only found in the numbers of the partitions.
    let replica = |log: &EventLog| {
        let pool = Config::from_url(server.url()).create_pool(Some(Runtime::Tokio1)).unwrap();
        harness::replica(pool, log).sync_interval(sync).build().unwrap()
    };
    let [one, other] = logs.each_ref().map(replica);
    for (module, log) in [(&one, &logs[0]), (&other, &logs[1])] {
        harness::warm_up(module, log).await;
    }
    for route in ["a", "b", "c", "d"] {
        let [here, far] = [&one, &other].map(|module| module.pipeline("stack", route).unwrap());
        for pipeline in [&here, &far] {
            harness::until_fleet(pipeline).await;
        }
        harness::fail(&here).await;
        let took = harness::until_rejected(&far).await;
        assert!(took < 2 * sync + SLACK, "{took:?}");
    }
    let errors = server.cli(&["INFO", "errorstats"]).await;
    assert_eq!(field(&errors, "errorstat_CROSSSLOT"), Some("count=2"), "each replica asks for all partitions once");
    assert!(logs.iter().all(|log| log.outages().is_empty()));
}

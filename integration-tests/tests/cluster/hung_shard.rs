//! One hung shard: its routes are degraded, the routes of other shards are unaffected, also on replicas that start
//! during the outage.

use std::time::Duration;

use deadpool_redis::Runtime;
use deadpool_redis::cluster::Config;
use phalanx::store::StoreMode;
use phalanx::{Pipeline, ResilienceModule, Source};
use phalanx_testkit::server::{Cluster, RedisProcess};
use tokio::time::{Instant, sleep};

use crate::harness::{self, BUDGET, EventLog, Load, MS, SECOND, SLACK};
use crate::keys::{Placed, client, place};

/// How long the shard hangs: several health checks and one new connection to the cluster.
const HANG: Duration = Duration::from_secs(3);

/// A replica and its routes: those whose rate limit is on the hung shard, and those without keys there.
struct TestReplica {
    module: ResilienceModule,
    log: EventLog,
    affected: Vec<Pipeline>,
    unaffected: Vec<Pipeline>,
}

impl TestReplica {
    fn new(module: ResilienceModule, log: EventLog, cluster: &Cluster, placed: &[Placed], hung: &RedisProcess) -> Self {
        let (mut affected, mut unaffected) = (Vec::new(), Vec::new());
        for route in placed {
            let pipeline = module.pipeline(route.pipeline.key().policy(), route.pipeline.key().route()).unwrap();
            if cluster.master_of(route.key('r')).port() == hung.port() {
                affected.push(pipeline);
            } else if !route.lies_on(cluster, hung) {
                unaffected.push(pipeline);
            }
        }
        assert!(affected.len() >= 5 && unaffected.len() >= 5, "{} and {}", affected.len(), unaffected.len());
        Self { module, log, affected, unaffected }
    }

    async fn until_all_is_shared(&self) {
        for route in self.affected.iter().chain(&self.unaffected) {
            harness::until_fleet(route).await;
        }
        assert_eq!(self.log.outages(), Vec::<String>::new());
    }

    /// Asserts that sequential callers wait at most one budget each and three budgets together, then none waits.
    async fn assert_three_budgets(&self) {
        let began = Instant::now();
        loop {
            let (decision, took) = harness::call(&self.affected[0]).await;
            assert_eq!(decision.source, Source::Degraded);
            assert!(took < BUDGET + SLACK, "{took:?}");
            if took < BUDGET / 4 {
                break;
            }
        }
        assert!(began.elapsed() < 3 * BUDGET + SLACK, "{:?}", began.elapsed());
        self.log.until_degraded(1).await;
        self.assert_degraded().await;
    }

    async fn assert_degraded(&self) {
        assert_eq!(self.module.store_mode(), Some(StoreMode::Partial));
        for route in &self.affected {
            let (decision, took) = harness::call(route).await;
            assert_eq!(decision.source, Source::Degraded);
            assert!(took < SLACK, "{took:?} although the shard is not asked");
        }
    }

    /// Asserts that all calls on the other shards were decided by Redis, and fast.
    async fn assert_unaffected(&self, replica: &str, load: Load) {
        let (sources, took) = load.end().await;
        let degraded = sources.iter().filter(|source| **source != Source::Fleet).count();
        let [p50, p99, longest] = [50, 99, 100].map(|percent| harness::percentile(&took, percent));
        println!("{replica}: {} calls on the other shards, p50 {p50:?}, p99 {p99:?}, longest {longest:?}", took.len());
        assert_eq!(degraded, 0, "of {} calls on healthy shards", sources.len());
        assert!(p99 < SLACK, "{p99:?}");
    }

    /// Asserts that one outage ends and Redis decides all routes again.
    async fn assert_recovers(&self) {
        self.log.until_recovered(1).await;
        harness::until_shared(&self.module).await;
        for route in &self.affected {
            assert_eq!(harness::call(route).await.0.source, Source::Fleet);
        }
        assert_eq!((self.log.outages().len(), self.log.recoveries()), (1, 1), "{:?}", self.log.read());
    }
}

fn pool(cluster: &Cluster) -> deadpool_redis::cluster::Pool {
    Config::from_urls(cluster.urls()).create_pool(Some(Runtime::Tokio1)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_master_does_not_affect_the_routes_of_the_others() {
    let cluster = Cluster::start().await;
    let [hung, healthy, _] = cluster.masters() else { unreachable!("three masters") };
    let logs = [EventLog::default(), EventLog::default(), EventLog::default()];
    let by_client = harness::replica(client(&cluster), &logs[0]).build().unwrap();
    let by_pool = harness::replica(pool(&cluster), &logs[1]).build().unwrap();
    tokio::join!(harness::warm_up(&by_client, &logs[0]), harness::warm_up(&by_pool, &logs[1]));
    let placed = place(&cluster, &by_client, 30).await;
    let test_replica = |module, log: &EventLog| TestReplica::new(module, log.clone(), &cluster, &placed, hung);
    let (by_client, by_pool) = (test_replica(by_client, &logs[0]), test_replica(by_pool, &logs[1]));
    tokio::join!(by_client.until_all_is_shared(), by_pool.until_all_is_shared());

    hung.stop();
    let loads = [&by_client, &by_pool].map(|test_replica| Load::on(test_replica.unaffected.clone(), MS));
    tokio::join!(by_client.assert_three_budgets(), by_pool.assert_three_budgets());
    // A healthy shard loses its scripts during the outage. Loading them on all shards would wait for the hung one.
    healthy.cli(&["SCRIPT", "FLUSH"]).await;
    let late = test_replica(harness::replica(client(&cluster), &logs[2]).build().unwrap(), &logs[2]);
    let late_load = starts_late(&late).await;
    sleep(HANG).await;

    late.assert_unaffected("started during the outage", late_load).await;
    let [client_load, pool_load] = loads;
    by_client.assert_unaffected("over a client", client_load).await;
    by_pool.assert_unaffected("over a pool", pool_load).await;
    for test_replica in [&by_client, &by_pool] {
        test_replica.assert_degraded().await;
        assert_eq!(test_replica.log.outages(), ["timeout"]);
    }
    let outages = late.log.outages().len();

    hung.resume();
    let began = Instant::now();
    tokio::join!(by_client.assert_recovers(), by_pool.assert_recovers());
    harness::until_shared(&late.module).await;
    println!("all shared again {:?} after SIGCONT", began.elapsed());
    assert!(began.elapsed() < 4 * SECOND, "{:?}", began.elapsed());
    assert_eq!(late.log.outages().len(), outages);
}

/// Asserts that a replica that starts while a shard hangs shares the other shards.
async fn starts_late(late: &TestReplica) -> Load {
    let began = Instant::now();
    for route in &late.unaffected {
        harness::until_fleet(route).await;
    }
    println!("started during the outage: the other shards are shared after {:?}", began.elapsed());
    assert_eq!(late.module.store_mode(), Some(StoreMode::Partial));
    late.assert_degraded().await;
    Load::on(late.unaffected.clone(), MS)
}

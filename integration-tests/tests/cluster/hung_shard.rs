//! One sick shard: its routes are decided alone, the others do not notice, and neither does who starts meanwhile.

use std::time::Duration;

use deadpool_redis::Runtime;
use deadpool_redis::cluster::Config;
use phalanx::store::StoreMode;
use phalanx::{Pipeline, ResilienceModule, Source};
use phalanx_integration_tests::server::{Cluster, RedisProcess};
use tokio::time::{Instant, sleep};

use crate::harness::{self, BUDGET, Load, Log, MS, SECOND, SLACK};
use crate::keys::{Placed, client, place};

/// So long the shard hangs. By then it was probed several times, and the connection to the cluster was tried anew.
const HANG: Duration = Duration::from_secs(3);

/// A replica and its routes: those whose limit lies on the sick shard, and those with nothing there.
struct Patient {
    module: ResilienceModule,
    log: Log,
    sick: Vec<Pipeline>,
    well: Vec<Pipeline>,
}

impl Patient {
    fn new(module: ResilienceModule, log: Log, cluster: &Cluster, placed: &[Placed], hung: &RedisProcess) -> Self {
        let (mut sick, mut well) = (Vec::new(), Vec::new());
        for route in placed {
            let pipeline = module.pipeline("stack", route.pipeline.key().route()).unwrap();
            if cluster.master_of(route.key('r')).port() == hung.port() {
                sick.push(pipeline);
            } else if !route.lies_on(cluster, hung) {
                well.push(pipeline);
            }
        }
        assert!(sick.len() >= 5 && well.len() >= 5, "{} and {}", sick.len(), well.len());
        Self { module, log, sick, well }
    }

    async fn until_all_is_shared(&self) {
        for route in self.sick.iter().chain(&self.well) {
            harness::until_fleet(route).await;
        }
        assert_eq!(self.log.outages(), Vec::<String>::new());
    }

    /// Callers one after the other: a few wait, each for its budget at most, and then none does.
    async fn waits_for_three_budgets(&self) {
        let began = Instant::now();
        loop {
            let (decision, took) = harness::call(&self.sick[0]).await;
            assert_eq!(decision.source, Source::Degraded);
            assert!(took < BUDGET + SLACK, "{took:?}");
            if took < BUDGET / 4 {
                break;
            }
        }
        assert!(began.elapsed() < 3 * BUDGET + SLACK, "{:?}", began.elapsed());
        self.log.until_degraded(1).await;
        self.decides_alone().await;
    }

    async fn decides_alone(&self) {
        assert_eq!(self.module.store_mode(), Some(StoreMode::Partial));
        for route in &self.sick {
            let (decision, took) = harness::call(route).await;
            assert_eq!(decision.source, Source::Degraded);
            assert!(took < SLACK, "{took:?} for a shard that is not asked");
        }
    }

    /// All calls on the other shards were decided by the fleet, and quickly.
    async fn was_not_touched(&self, who: &str, load: Load) {
        let (sources, took) = load.end().await;
        let strangers = sources.iter().filter(|source| **source != Source::Fleet).count();
        let [p50, p99, longest] = [50, 99, 100].map(|percent| harness::percentile(&took, percent));
        println!("{who}: {} calls on the other shards, p50 {p50:?}, p99 {p99:?}, longest {longest:?}", took.len());
        assert_eq!(strangers, 0, "of {} calls on healthy shards", sources.len());
        assert!(p99 < SLACK, "{p99:?}");
    }

    /// The outage ends, once, and the fleet decides everything again.
    async fn comes_back(&self) {
        self.log.until_recovered(1).await;
        harness::until_shared(&self.module).await;
        for route in &self.sick {
            assert_eq!(harness::call(route).await.0.source, Source::Fleet);
        }
        assert_eq!((self.log.outages().len(), self.log.recoveries()), (1, 1), "{:?}", self.log.read());
    }
}

fn pool(cluster: &Cluster) -> deadpool_redis::cluster::Pool {
    Config::from_urls(cluster.urls()).create_pool(Some(Runtime::Tokio1)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_master_does_not_touch_the_routes_of_the_others() {
    let cluster = Cluster::start().await;
    let [hung, healthy, _] = cluster.masters() else { unreachable!("three masters") };
    let logs = [Log::default(), Log::default(), Log::default()];
    let by_client = harness::replica(client(&cluster), &logs[0]).build().unwrap();
    let by_pool = harness::replica(pool(&cluster), &logs[1]).build().unwrap();
    tokio::join!(harness::warm_up(&by_client, &logs[0]), harness::warm_up(&by_pool, &logs[1]));
    let placed = place(&cluster, &by_client, 30).await;
    let patient = |module, log: &Log| Patient::new(module, log.clone(), &cluster, &placed, hung);
    let (by_client, by_pool) = (patient(by_client, &logs[0]), patient(by_pool, &logs[1]));
    tokio::join!(by_client.until_all_is_shared(), by_pool.until_all_is_shared());

    hung.stop();
    let loads = [&by_client, &by_pool].map(|patient| Load::on(patient.well.clone(), MS));
    tokio::join!(by_client.waits_for_three_budgets(), by_pool.waits_for_three_budgets());
    // A healthy shard forgets its scripts meanwhile. Loading them everywhere would wait for the one that hangs.
    healthy.cli(&["SCRIPT", "FLUSH"]).await;
    let late = patient(harness::replica(client(&cluster), &logs[2]).build().unwrap(), &logs[2]);
    let late_load = starts_late(&late).await;
    sleep(HANG).await;

    late.was_not_touched("started meanwhile", late_load).await;
    let [client_load, pool_load] = loads;
    by_client.was_not_touched("over a client", client_load).await;
    by_pool.was_not_touched("over a pool", pool_load).await;
    for patient in [&by_client, &by_pool] {
        patient.decides_alone().await;
        assert_eq!(patient.log.outages(), ["timeout"]);
    }
    let outages = late.log.outages().len();

    hung.resume();
    let began = Instant::now();
    tokio::join!(by_client.comes_back(), by_pool.comes_back());
    harness::until_shared(&late.module).await;
    println!("all back {:?} after SIGCONT", began.elapsed());
    assert!(began.elapsed() < 4 * SECOND, "{:?}", began.elapsed());
    assert_eq!(late.log.outages().len(), outages);
}

/// A replica that starts while the shard hangs shares the others before long.
async fn starts_late(late: &Patient) -> Load {
    let began = Instant::now();
    for route in &late.well {
        harness::until_fleet(route).await;
    }
    println!("started meanwhile: the other shards are shared after {:?}", began.elapsed());
    assert_eq!(late.module.store_mode(), Some(StoreMode::Partial));
    late.decides_alone().await;
    Load::on(late.well.clone(), MS)
}

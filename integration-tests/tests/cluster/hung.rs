//! One sick shard: its routes are decided alone, the others do not notice.

use std::time::Duration;

use phalanx::{Pipeline, Source, StoreMode};
use phalanx_integration_tests::server::Cluster;
use tokio::time::{Instant, sleep};

use crate::keys::{Placed, client, place};
use crate::kit::{self, BUDGET, Load, Log, MS, SECOND, SLACK};

/// So long the shard hangs. By then it was probed several times, and the connection to the cluster was tried anew.
const HANG: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_master_does_not_touch_the_routes_of_the_others() {
    let cluster = Cluster::start().await;
    let log = Log::default();
    let module = kit::replica(client(&cluster), &log).build().unwrap();
    let placed = place(&cluster, &module).await;
    let [hung, healthy, _] = cluster.masters() else { unreachable!("three masters") };
    let sick: Vec<Pipeline> = placed
        .iter()
        .filter(|route| cluster.master_of(route.key('r')).port() == hung.port())
        .map(|route| route.pipeline.clone())
        .collect();
    let well: Vec<Pipeline> =
        placed.iter().filter(|route| !route.lies_on(&cluster, hung)).map(|route| route.pipeline.clone()).collect();
    assert!(sick.len() >= 5 && well.len() >= 5, "{} and {}", sick.len(), well.len());

    hung.stop();
    let load = Load::on(well, MS);
    waits_end_after_three_budgets(&sick[0]).await;
    log.until_degraded(1).await;
    assert_eq!(module.store_mode(), Some(StoreMode::Partial));
    for route in &sick {
        let (decision, took) = kit::call(route).await;
        assert_eq!(decision.source, Source::Degraded);
        assert!(took < SLACK, "{took:?} for a shard that is not asked");
    }
    // A healthy shard forgets its scripts meanwhile. Loading them everywhere would wait for the one that hangs.
    healthy.cli(&["SCRIPT", "FLUSH"]).await;
    sleep(HANG).await;

    let (sources, took) = load.end().await;
    let strangers = sources.iter().filter(|source| **source != Source::Fleet).count();
    let (p50, p99) = (kit::percentile(&took, 50), kit::percentile(&took, 99));
    println!("{} calls on the other shards: p50 {p50:?}, p99 {p99:?}, longest {:?}", took.len(), took.last());
    assert_eq!(strangers, 0, "of {} calls on healthy shards", sources.len());
    assert!(p99 < SLACK, "{p99:?}");
    assert_eq!(log.outages(), ["timeout"]);
    assert_eq!(module.store_mode(), Some(StoreMode::Partial));

    hung.cont();
    let began = Instant::now();
    log.until_recovered(1).await;
    println!("recovered {:?} after SIGCONT", began.elapsed());
    assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());
    for route in &sick {
        assert_eq!(kit::call(route).await.0.source, Source::Fleet);
    }
    assert_eq!((module.store_mode(), log.outages().len()), (Some(StoreMode::Shared), 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_starts_while_a_master_hangs_shares_the_other_shards() {
    let cluster = Cluster::start().await;
    let elder = kit::replica(client(&cluster), &Log::default()).build().unwrap();
    let placed = place(&cluster, &elder).await;
    let hung = &cluster.masters()[1];
    hung.stop();

    let log = Log::default();
    let module = kit::replica(client(&cluster), &log).build().unwrap();
    let again = |route: &Placed| module.pipeline("stack", route.pipeline.key().route()).unwrap();
    let well: Vec<_> = placed.iter().filter(|route| !route.lies_on(&cluster, hung)).map(again).collect();
    let sick = placed.iter().find(|route| cluster.master_of(route.key('r')).port() == hung.port()).map(again).unwrap();
    let began = Instant::now();
    kit::until_fleet(&well[0]).await;
    println!("the others' routes are shared {:?} after the start", began.elapsed());
    kit::within_patience(async {
        while module.store_mode() != Some(StoreMode::Partial) || kit::call(&sick).await.0.source != Source::Degraded {
            sleep(5 * MS).await;
        }
    })
    .await;
    // Those that fell at the start, because there was no connection yet, are lifted one after the other.
    for route in &well {
        kit::until_fleet(route).await;
    }
    let outages = log.outages().len();
    let load = Load::on(well, MS);
    sleep(HANG).await;
    let (sources, took) = load.end().await;
    let strangers = sources.iter().filter(|source| **source != Source::Fleet).count();
    println!("{} calls: p99 {:?}, longest {:?}", took.len(), kit::percentile(&took, 99), took.last());
    assert_eq!((strangers, log.outages().len()), (0, outages), "of {} calls on healthy shards", sources.len());

    hung.cont();
    kit::until_fleet(&sick).await;
    kit::until_shared(&module).await;
}

/// Callers one after the other: a few wait, each for its budget at most, and then none does.
async fn waits_end_after_three_budgets(route: &Pipeline) {
    let began = Instant::now();
    loop {
        let (decision, took) = kit::call(route).await;
        assert_eq!(decision.source, Source::Degraded);
        assert!(took < BUDGET + SLACK, "{took:?}");
        if took < BUDGET / 4 {
            break;
        }
    }
    assert!(began.elapsed() < 3 * BUDGET + SLACK, "{:?}", began.elapsed());
}

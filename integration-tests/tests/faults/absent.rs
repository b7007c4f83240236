//! A Redis that is not there when the service starts.

use phalanx::Source;
use phalanx::store::StoreMode;
use phalanx_integration_tests::replica::{Heard, Load, Moment, Order, Setup, Worker};
use phalanx_integration_tests::server::Spawned;

use crate::kit::{MS, PATIENCE, RECOVERY, assert_one_outage, callers, plenty};

#[tokio::test]
async fn without_redis_a_service_starts_decides_alone_and_joins_when_it_comes() {
    let redis = Spawned::start().await;
    redis.kill();
    let setup = Setup::new(redis.url()).policy(plenty()).store_budget(200 * MS);
    let mut worker = Worker::new(&setup);
    let first = worker.run(Load::once("plenty", "r")).await.tally;
    assert_eq!(first.admitted_by(Source::Degraded), 1, "{first:#?}");
    assert!(first.asking.worst <= 300 * MS, "the first call waited {:?}", first.asking.worst);
    worker.until(PATIENCE, "the outage is told", |seen| seen.outages() == ["connection"]).await;
    assert_eq!(worker.module().store_mode(), Some(StoreMode::Degraded));
    let next = worker.run(Load::once("plenty", "r").callers(100)).await.tally;
    assert_eq!((next.admitted_by(Source::Degraded), next.alone_and_parked), (100, 0), "{next:#?}");

    redis.restart().await;
    let there = Moment::now();
    worker.until(PATIENCE, "Redis is there", |seen| seen.recoveries() == 1).await;
    worker.until(PATIENCE, "the fleet is known", |seen| seen.replicas == Some(1)).await;
    worker.start(callers());
    worker.until(PATIENCE, "Redis decides", |seen| seen.tally.admitted_by(Source::Fleet) > 20).await;
    let seen = worker.obey(Order::Enough).await;
    let joined = seen.moments(|what| matches!(what, Heard::Recovered { .. }))[0].since(there);
    println!("joined {joined:?} after Redis came");
    assert_one_outage(&seen, "connection");
    assert!(joined <= RECOVERY, "joined after {joined:?}");
}

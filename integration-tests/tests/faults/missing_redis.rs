//! Redis is not available when the service starts.

use phalanx::store::StoreMode;
use phalanx::{ResilienceModule, Source};
use phalanx_integration_tests::replica::{Command, Load, LocalReplica, LoggedKind, Moment, Setup};
use phalanx_testkit::server::RedisProcess;
use tokio::time::{sleep, timeout};

use crate::harness::{MS, RECOVERY, WAIT_TIMEOUT, assert_one_outage, callers, plenty};

#[tokio::test]
async fn without_redis_a_service_starts_degraded_and_joins_the_fleet_when_redis_is_available() {
    let redis = RedisProcess::start().await;
    redis.kill();
    let setup = Setup::new(redis.url()).policy(plenty()).store_budget(200 * MS);
    let mut replica = LocalReplica::new(&setup);
    let first = replica.run(Load::once("plenty", "r")).await.tally;
    assert_eq!(first.admitted_by(Source::Degraded), 1, "{first:#?}");
    assert!(first.store_waits.worst <= 300 * MS, "the first call waited {:?}", first.store_waits.worst);
    replica.until(WAIT_TIMEOUT, "the outage is emitted", |seen| seen.outages() == ["refused"]).await;
    assert_eq!(replica.module().store_mode(), Some(StoreMode::Degraded));
    let next = replica.run(Load::once("plenty", "r").callers(100)).await.tally;
    assert_eq!((next.admitted_by(Source::Degraded), next.degraded_and_parked), (100, 0), "{next:#?}");

    redis.restart().await;
    let there = Moment::now();
    replica.until(WAIT_TIMEOUT, "Redis is available", |seen| seen.recoveries() == 1).await;
    replica.until(WAIT_TIMEOUT, "the fleet is known", |seen| seen.replicas == Some(1)).await;
    replica.start(callers());
    replica.until(WAIT_TIMEOUT, "Redis decides", |seen| seen.tally.admitted_by(Source::Fleet) > 20).await;
    let seen = replica.execute(Command::Stop).await;
    let joined = seen.moments(|kind| matches!(kind, LoggedKind::Recovered { .. }))[0].since(there);
    println!("joined {joined:?} after Redis started");
    assert_one_outage(&seen, "refused");
    assert!(joined <= RECOVERY, "joined after {joined:?}");
}

#[tokio::test]
async fn replicas_join_the_fleet_without_a_call_and_say_that_they_are_connecting_until_then() {
    let redis = RedisProcess::start().await;
    redis.stop();
    let environment = format!("joining-{}", std::process::id());
    let module = || {
        let client = redis::Client::open(redis.url()).unwrap();
        ResilienceModule::with_redis(client).environment(&environment).store_budget(200 * MS).build().unwrap()
    };
    let (one, other) = (module(), module());
    assert_eq!([one.store_mode(), other.store_mode()], [Some(StoreMode::Connecting); 2]);
    redis.resume();
    let joined = async {
        while [one.replicas(), other.replicas()] != [Some(2); 2] {
            sleep(5 * MS).await;
        }
    };
    timeout(WAIT_TIMEOUT, joined).await.unwrap();
    assert_eq!([one.store_mode(), other.store_mode()], [Some(StoreMode::Shared); 2]);
}

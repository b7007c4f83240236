//! The connection of a module starts with it, in the background: `connecting` until Redis has replied once, and a member of
//! the fleet before its first call.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

use std::time::Duration;

use phalanx::lifecycle::Runtime;
use phalanx::store::StoreMode;
use phalanx::{EventKind, Kind, Policy, RateLimitSpec, ResilienceModule};
use phalanx_testkit::{FaultyRedis, Recorder};
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);

fn module(redis: &FaultyRedis) -> ResilienceModule {
    let policy = Policy::named("vendor").rate_limit(RateLimitSpec::per_second(10));
    ResilienceModule::with_redis(redis).policy(policy).build().unwrap()
}

fn modes(modules: &[&ResilienceModule]) -> Vec<StoreMode> {
    modules.iter().map(|module| module.store_mode().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn replicas_join_the_fleet_before_their_first_call() {
    let redis = FaultyRedis::new();
    redis.set_latency(MS);
    let (one, other) = (module(&redis), module(&redis));
    assert_eq!(modes(&[&one, &other]), [StoreMode::Connecting; 2], "nothing has been received yet");
    assert_eq!(redis.scripts(), 0, "building does no I/O");
    sleep(1_500 * MS).await;
    assert_eq!(modes(&[&one, &other]), [StoreMode::Shared; 2]);
    assert_eq!((one.replicas(), other.replicas()), (Some(2), Some(2)));
}

#[tokio::test(start_paused = true)]
async fn a_redis_that_never_replies_is_never_reported_as_shared() {
    let redis = FaultyRedis::new();
    redis.hang();
    let hung = module(&redis);
    for _ in 0..1_000 {
        assert_ne!(hung.store_mode(), Some(StoreMode::Shared));
        sleep(5 * MS).await;
    }
    assert_eq!(hung.store_mode(), Some(StoreMode::Degraded), "found by the connection itself, without a call");
    redis.resume();
    sleep(5_000 * MS).await;
    assert_eq!((hung.store_mode(), hung.replicas()), (Some(StoreMode::Shared), Some(1)));
}

#[tokio::test(start_paused = true)]
async fn the_first_connection_is_one_event_however_often_it_breaks() {
    let redis = FaultyRedis::new();
    redis.stop();
    let recorder = Recorder::new();
    let module = ResilienceModule::with_redis(&redis).observer(recorder.clone()).build().unwrap();
    sleep(1_000 * MS).await;
    let connected = || recorder.count(|event| matches!(event.kind, EventKind::StoreConnected { .. }));
    assert_eq!((connected(), module.store_mode()), (0, Some(StoreMode::Degraded)));
    redis.start();
    sleep(5_000 * MS).await;
    assert_eq!((connected(), module.store_mode()), (1, Some(StoreMode::Shared)));
    redis.break_connections();
    sleep(5_000 * MS).await;
    assert_eq!(connected(), 1);
}

/// Builds a module where there is no runtime.
fn outside(redis: &FaultyRedis) -> ResilienceModule {
    let redis = redis.clone();
    std::thread::spawn(move || module(&redis)).join().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_module_that_is_built_outside_a_runtime_connects_when_the_service_starts() {
    let redis = FaultyRedis::new();
    let module = outside(&redis);
    sleep(1_000 * MS).await;
    assert_eq!((redis.scripts(), module.store_mode()), (0, Some(StoreMode::Connecting)));
    let runtime = Runtime::builder().module(module.clone()).build().unwrap();
    assert_eq!(runtime.readiness().to_json(), r#"{"status":"unavailable","in_flight":0,"store":"connecting"}"#);
    runtime.start().await.unwrap();
    assert_eq!(runtime.readiness().to_json(), r#"{"status":"ready","in_flight":0,"store":"connecting"}"#);
    sleep(100 * MS).await;
    assert_eq!(runtime.readiness().to_json(), r#"{"status":"ready","in_flight":0,"store":"shared"}"#);
    assert_eq!(module.replicas(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn or_with_its_first_call() {
    let redis = FaultyRedis::new();
    let module = outside(&redis);
    assert!(module.run("vendor", "eu", || async { Ok::<_, Kind>(()) }).await.is_ok());
    assert_eq!(module.store_mode(), Some(StoreMode::Shared));
}

#[tokio::test(start_paused = true)]
async fn a_module_that_is_dropped_before_its_first_call_leaves_the_fleet() {
    let redis = FaultyRedis::new();
    let (one, other) = (module(&redis), module(&redis));
    sleep(1_500 * MS).await;
    assert_eq!(one.replicas(), Some(2));
    drop(other);
    sleep(1_500 * MS).await;
    assert_eq!(one.replicas(), Some(1));
}

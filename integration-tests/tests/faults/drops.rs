//! A caller who goes away while Redis is asked leaves nothing behind.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use phalanx::describe::Phase;
use phalanx::{BreakerSpec, Kind, Policy, RateLimitSpec, RejectionCode, Source};
use phalanx_integration_tests::replica::Setup;
use phalanx_integration_tests::server::{Proxy, Spawned};
use tokio::time::{sleep, timeout};

use crate::kit::{MS, SECOND, worker};

async fn well() -> Result<(), Kind> {
    Ok(())
}

async fn badly() -> Result<(), Kind> {
    Err(Kind::Infrastructure)
}

async fn never() -> Result<(), Kind> {
    std::future::pending().await
}

/// Waits until something has come about in Redis.
async fn until<T: PartialEq + std::fmt::Debug>(wanted: T, look: impl AsyncFn() -> T) {
    let mut seen = look().await;
    for _ in 0..200 {
        if seen == wanted {
            return;
        }
        sleep(10 * MS).await;
        seen = look().await;
    }
    panic!("{seen:?}, and not {wanted:?}");
}

#[tokio::test]
async fn permits_come_back_from_callers_who_went_away_while_asking() {
    let redis = Spawned::start().await;
    let proxy = Proxy::start(redis.address()).await;
    // So slow that a permit that is lost stays lost.
    let limit = RateLimitSpec::new(1, 3_600 * SECOND).burst(200);
    let setup = Setup::new(proxy.url()).policy(Policy::named("limited").rate_limit(limit)).patient();
    let worker = worker(&setup).await;
    let pipeline = worker.module().pipeline("limited", "r").unwrap();
    let started = Arc::new(AtomicU64::new(0));
    proxy.delay(20 * MS);
    // Before the flight leaves, while it is under way, just when it lands, and after.
    for after in [0, 1, 5, 10, 19, 20, 21, 22, 23, 25, 30, 400] {
        let calls = (0..10).map(|_| {
            let (pipeline, started) = (pipeline.clone(), started.clone());
            let operation = move || {
                started.fetch_add(1, Ordering::Relaxed);
                never()
            };
            tokio::spawn(async move { timeout(after * MS, pipeline.run(operation)).await.is_err() })
        });
        for call in calls.collect::<Vec<_>>() {
            assert!(call.await.unwrap(), "it never ends by itself");
        }
    }
    proxy.pass().await;
    // Who began his operation has spent his permit; everybody else's is back.
    let spent = started.load(Ordering::Relaxed);
    println!("{spent} of 120 callers began, the others went away before");
    assert!((1..120).contains(&spent), "{spent} of 120 began: the test shows nothing");
    until(Some(200 - spent), async || pipeline.available_permits().await).await;
}

#[tokio::test]
async fn a_reserved_permit_comes_back_from_a_caller_who_went_away_while_waiting_for_it() {
    let redis = Spawned::start().await;
    // One an hour; nobody waits for two hours.
    let limit = RateLimitSpec::new(1, 3_600 * SECOND).max_wait(5_400 * SECOND);
    let setup = Setup::new(redis.url()).policy(Policy::named("limited").rate_limit(limit)).patient();
    let worker = worker(&setup).await;
    let pipeline = worker.module().pipeline("limited", "r").unwrap();
    assert_eq!(pipeline.run(well).await, Ok(()));
    for _ in 0..3 {
        {
            let mut waiting = pin!(pipeline.run(well));
            let waited = timeout(100 * MS, &mut waiting).await;
            assert!(waited.is_err(), "it waits for an hour: {waited:?}");
            let second = pipeline.run(well).await.unwrap_err();
            assert_eq!(
                second.rejection().map(|no| no.code()),
                Some(RejectionCode::RateLimited),
                "two hours are too long"
            );
        }
        worker.module().redis_store().unwrap().settle().await; // what he gives back is on its way
    }
}

#[tokio::test]
async fn a_trial_place_comes_back_from_a_caller_who_went_away_while_asking() {
    let redis = Spawned::start().await;
    let proxy = Proxy::start(redis.address()).await;
    let spec = BreakerSpec::consecutive_failures(1).break_for(50 * MS).probes(1, 1).probe_lease(3_600 * SECOND);
    let setup = Setup::new(proxy.url()).policy(Policy::named("guarded").breaker(spec)).patient();
    let worker = worker(&setup).await;
    let pipeline = worker.module().pipeline("guarded", "r").unwrap();
    let _ = pipeline.run(badly).await;
    until(Some(Phase::Open), async || pipeline.circuit().await.map(|circuit| circuit.phase)).await;
    sleep(60 * MS).await;
    proxy.delay(30 * MS);
    for after in [1, 10, 29, 31, 40] {
        // He asks for the probe place, or is at the dependency with it, and goes away.
        assert!(timeout(after * MS, pipeline.run(never)).await.is_err(), "it never ends by itself");
        sleep(80 * MS).await; // both round trips are over: the lease, and its return
    }
    proxy.pass().await;
    until(Some(0), async || pipeline.circuit().await.map(|circuit| circuit.probes)).await;
    let (answer, decision) = pipeline.call().run_recorded(well).await;
    assert!(answer.is_ok() && decision.probe && decision.source == Source::Fleet, "{answer:?} {decision:?}");
}

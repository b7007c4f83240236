//! A caller whose future is dropped while Redis is asked leaks nothing.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use phalanx::describe::Phase;
use phalanx::{BreakerSpec, Kind, Policy, RateLimitSpec, RejectionCode, Source};
use phalanx_integration_tests::replica::Setup;
use phalanx_testkit::server::{Proxy, RedisProcess};
use tokio::time::{sleep, timeout};

use crate::harness::{MS, SECOND, replica};

async fn succeed() -> Result<(), Kind> {
    Ok(())
}

async fn fail() -> Result<(), Kind> {
    Err(Kind::Infrastructure)
}

async fn hang() -> Result<(), Kind> {
    std::future::pending().await
}

/// Waits until `look` returns the wanted value.
async fn until<T: PartialEq + std::fmt::Debug>(wanted: T, look: impl AsyncFn() -> T) {
    let mut seen = look().await;
    for _ in 0..200 {
        if seen == wanted {
            return;
        }
        sleep(10 * MS).await;
        seen = look().await;
    }
    panic!("{seen:?} instead of {wanted:?}");
}

#[tokio::test]
async fn permits_of_callers_dropped_while_asking_redis_are_refunded() {
    let redis = RedisProcess::start().await;
    let proxy = Proxy::start(redis.address()).await;
    // A rate so low that a leaked permit is not refilled during the test.
    let limit = RateLimitSpec::new(1, 3_600 * SECOND).burst(200);
    let setup = Setup::new(proxy.url()).policy(Policy::named("limited").rate_limit(limit)).generous_budget();
    let replica = replica(&setup).await;
    let pipeline = replica.module().pipeline("limited", "r").unwrap();
    let started = Arc::new(AtomicU64::new(0));
    proxy.delay(20 * MS);
    // Dropped before the request is sent, while it is in flight, when the reply arrives, and later.
    for after in [0, 1, 5, 10, 19, 20, 21, 22, 23, 25, 30, 400] {
        let calls = (0..10).map(|_| {
            let (pipeline, started) = (pipeline.clone(), started.clone());
            let operation = move || {
                started.fetch_add(1, Ordering::Relaxed);
                hang()
            };
            tokio::spawn(async move { timeout(after * MS, pipeline.run(operation)).await.is_err() })
        });
        for call in calls.collect::<Vec<_>>() {
            assert!(call.await.unwrap(), "the operation never ends");
        }
    }
    proxy.clear_faults().await;
    // Calls whose operation started have spent their permit; all other permits are refunded.
    let spent = started.load(Ordering::Relaxed);
    println!("{spent} of 120 operations started, the other calls were dropped before");
    assert!((1..120).contains(&spent), "{spent} of 120 operations started: the test proves nothing");
    until(Some(200 - spent), async || pipeline.available_permits().await).await;
}

#[tokio::test]
async fn a_reserved_permit_of_a_caller_dropped_while_waiting_for_it_is_refunded() {
    let redis = RedisProcess::start().await;
    // One an hour; a wait of two hours exceeds max_wait.
    let limit = RateLimitSpec::new(1, 3_600 * SECOND).max_wait(5_400 * SECOND);
    let setup = Setup::new(redis.url()).policy(Policy::named("limited").rate_limit(limit)).generous_budget();
    let replica = replica(&setup).await;
    let pipeline = replica.module().pipeline("limited", "r").unwrap();
    assert_eq!(pipeline.run(succeed).await, Ok(()));
    for _ in 0..3 {
        {
            let mut waiting = pin!(pipeline.run(succeed));
            let waited = timeout(100 * MS, &mut waiting).await;
            assert!(waited.is_err(), "the wait is an hour: {waited:?}");
            let second = pipeline.run(succeed).await.unwrap_err();
            assert_eq!(
                second.rejection().map(|rejection| rejection.code()),
                Some(RejectionCode::RateLimited),
                "two hours exceed max_wait"
            );
        }
        replica.module().redis_store().unwrap().settle().await; // the refund is sent in the background
    }
}

#[tokio::test]
async fn the_probe_slot_of_a_caller_dropped_while_asking_is_freed() {
    let redis = RedisProcess::start().await;
    let proxy = Proxy::start(redis.address()).await;
    let spec = BreakerSpec::consecutive_failures(1).break_for(50 * MS).probes(1, 1).probe_lease(3_600 * SECOND);
    let setup = Setup::new(proxy.url()).policy(Policy::named("guarded").breaker(spec)).generous_budget();
    let replica = replica(&setup).await;
    let pipeline = replica.module().pipeline("guarded", "r").unwrap();
    let _ = pipeline.run(fail).await;
    until(Some(Phase::Open), async || pipeline.circuit().await.map(|circuit| circuit.phase)).await;
    sleep(60 * MS).await;
    proxy.delay(30 * MS);
    for after in [1, 10, 29, 31, 40] {
        // The caller asks for the probe slot, or is at the dependency with it, and is dropped.
        assert!(timeout(after * MS, pipeline.run(hang)).await.is_err(), "the operation never ends");
        sleep(80 * MS).await; // both round trips are over: the lease and its release
    }
    proxy.clear_faults().await;
    until(Some(0), async || pipeline.circuit().await.map(|circuit| circuit.probes)).await;
    let (answer, decision) = pipeline.call().run_recorded(succeed).await;
    assert!(answer.is_ok() && decision.probe && decision.source == Source::Fleet, "{answer:?} {decision:?}");
}

//! Distributed locks over a real Redis: a holder stopped for longer than its TTL, and waiters.

use std::time::Duration;

use phalanx::ResilienceModule;
use phalanx::lifecycle::Fences;
use phalanx::lifecycle::{DistributedLock, LockSpec};
use phalanx_integration_tests::lifecycle_process::{Fleet, ProcessEvent, Role, SERVICE};
use phalanx_integration_tests::replica::Moment;
use phalanx_testkit::server::Redis;
use tokio::time::sleep;

use crate::harness::{LifecycleProcess, fleet};

const TTL: Duration = Duration::from_secs(1);

fn lock(fleet: &Fleet, poll: Duration) -> DistributedLock<phalanx::lifecycle::Locks> {
    let client = redis::Client::open(fleet.url.as_str()).unwrap();
    let builder = ResilienceModule::with_redis(client).service(SERVICE).environment(&fleet.environment);
    let module = builder.store_budget(Duration::from_millis(500)).build().unwrap();
    DistributedLock::new(module.locks(), LockSpec::named("lock").ttl(TTL).poll(poll))
}

fn writes(event: &ProcessEvent) -> Option<u64> {
    if let ProcessEvent::Writing(fence) = event { Some(*fence) } else { None }
}

/// Invariant I-13 of `docs/guarantees.md`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_stopped_past_its_ttl_detects_the_loss_before_its_next_write_and_its_fence_is_rejected() {
    let fleet = fleet(Redis::shared().await);
    let process = LifecycleProcess::start(&Role::Hold { fleet: fleet.clone(), ttl: TTL });
    let (_, old) = process.until(writes).await;
    let fences = Fences::default();
    assert_eq!(fences.check(old), Ok(()));
    // Long enough for several renewals.
    sleep(2 * TTL).await;
    process.0.stop();
    let taker = lock(&fleet, Duration::from_millis(100)).acquire(5 * TTL).await.unwrap();
    assert!(taker.fence() > old);
    assert_eq!(fences.check(taker.check().unwrap()), Ok(()));
    sleep(TTL / 2).await;
    let resumed = Moment::now();
    process.0.resume();
    loop {
        match process.next_event().await.unwrap() {
            (at, ProcessEvent::Writing(_)) => {
                assert!(at < resumed, "it wrote {:?} after it was resumed", at.since(resumed))
            }
            (at, ProcessEvent::LockLost(fence)) => {
                println!("it detected the loss {:?} after it was resumed", at.since(resumed));
                break assert_eq!(fence, old);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(fences.check(old).is_err(), "a late write with the old fence is rejected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_pushed_to_a_waiter_in_another_replica_without_polling() {
    let fleet = fleet(Redis::shared().await);
    let never = Duration::from_secs(3_600);
    let (one, two) = (lock(&fleet, never), lock(&fleet, never));
    // A replica subscribes after its first request.
    drop(two.acquire(5 * TTL).await.unwrap());
    sleep(Duration::from_millis(500)).await;
    let held = one.acquire(5 * TTL).await.unwrap();
    let waiting = tokio::spawn(async move { two.acquire(20 * TTL).await.map(|held| (Moment::now(), held)) });
    sleep(Duration::from_millis(100)).await;
    let released = Moment::now();
    assert_eq!(held.release().await, Ok(true));
    let (at, taken) = waiting.await.unwrap().unwrap();
    println!("received and acquired within {:?}", at.since(released));
    drop(taken);
}

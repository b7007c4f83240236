//! A holder that stands still for longer than its lock lasts, and waiters over a real Redis.

use std::time::Duration;

use phalanx::ResilienceModule;
use phalanx::lifecycle::Fences;
use phalanx::lifecycle::{DistributedLock, LockSpec};
use phalanx_integration_tests::life::{Fleet, Role, Said};
use phalanx_integration_tests::replica::Moment;
use phalanx_integration_tests::server::Redis;
use tokio::time::sleep;

use crate::kit::{Life, fleet};

const TTL: Duration = Duration::from_secs(1);

fn lock(fleet: &Fleet, poll: Duration) -> DistributedLock<phalanx::lifecycle::Locks> {
    let client = redis::Client::open(fleet.url.as_str()).unwrap();
    let builder = ResilienceModule::with_redis(client).environment(&fleet.environment);
    let module = builder.store_budget(Duration::from_millis(500)).build().unwrap();
    DistributedLock::new(module.locks(), LockSpec::named("lock").ttl(TTL).poll(poll))
}

fn writes(said: &Said) -> Option<u64> {
    if let Said::Writes(fence) = said { Some(*fence) } else { None }
}

/// FAULTS G6 and I-13.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_stopped_past_its_time_says_so_before_its_next_write_and_its_fence_is_rejected() {
    let fleet = fleet(Redis::shared().await);
    let life = Life::begin(&Role::Hold { fleet: fleet.clone(), ttl: TTL });
    let (_, old) = life.until(writes).await;
    let fences = Fences::default();
    assert_eq!(fences.check(old), Ok(()));
    // Renewed several times by now.
    sleep(2 * TTL).await;
    life.0.stop();
    let taker = lock(&fleet, Duration::from_millis(100)).acquire(5 * TTL).await.unwrap();
    assert!(taker.fence() > old);
    assert_eq!(fences.check(taker.check().unwrap()), Ok(()));
    sleep(TTL / 2).await;
    let went_on = Moment::now();
    life.0.cont();
    loop {
        match life.said().await.unwrap() {
            (at, Said::Writes(_)) => assert!(at < went_on, "it wrote {:?} after it went on", at.since(went_on)),
            (at, Said::Lost(fence)) => {
                println!("it knew {:?} after it went on", at.since(went_on));
                break assert_eq!(fence, old);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(fences.check(old).is_err(), "and whatever it might still write is rejected");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_in_another_replica_is_told_of_a_release_without_looking() {
    let fleet = fleet(Redis::shared().await);
    let never = Duration::from_secs(3_600);
    let (one, two) = (lock(&fleet, never), lock(&fleet, never));
    // Whoever has asked once listens soon.
    drop(two.acquire(5 * TTL).await.unwrap());
    sleep(Duration::from_millis(500)).await;
    let held = one.acquire(5 * TTL).await.unwrap();
    let waiting = tokio::spawn(async move { two.acquire(20 * TTL).await.map(|held| (Moment::now(), held)) });
    sleep(Duration::from_millis(100)).await;
    let released = Moment::now();
    assert_eq!(held.release().await, Ok(true));
    let (at, taken) = waiting.await.unwrap().unwrap();
    println!("told and taken within {:?}", at.since(released));
    drop(taken);
}

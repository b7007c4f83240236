//! Processes that start together with a singleton step over one Redis.

use std::time::Duration;

use phalanx_integration_tests::life::{Fleet, Role, Said};
use phalanx_integration_tests::replica::Moment;
use phalanx_integration_tests::server::Redis;

use crate::kit::{Life, fleet};

const TTL: Duration = Duration::from_secs(2);

fn role(fleet: &Fleet, step: Duration) -> Role {
    Role::Start { fleet: fleet.clone(), step, ttl: TTL, wait: Duration::from_secs(30) }
}

fn began(said: &Said) -> Option<u64> {
    if let Said::Began(fence) = said { Some(*fence) } else { None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_that_start_together_one_runs_it_and_the_others_start_after_it_finished() {
    let fleet = fleet(Redis::shared().await);
    let lives: Vec<_> = (0..3).map(|_| Life::begin(&role(&fleet, Duration::from_millis(300)))).collect();
    let (mut runs, mut done, mut ready) = (0, Moment::ZERO, Vec::new());
    for life in &lives {
        loop {
            match life.said().await.unwrap() {
                (_, Said::Began(_)) => runs += 1,
                (at, Said::Done) => done = at,
                (at, Said::Ready) => break ready.push(at),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(runs, 1);
    let after: Vec<_> = ready.iter().map(|at| at.since(done)).collect();
    println!("ready so long after it was done: {after:?}");
    assert!(ready.iter().all(|at| *at > done));

    let late = Life::begin(&role(&fleet, Duration::from_millis(300)));
    assert!(matches!(late.said().await, Some((_, Said::Ready))), "who comes late skips it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_killed_is_replaced_within_its_time_and_a_second_under_a_higher_fence() {
    let fleet = fleet(Redis::shared().await);
    let holder = Life::begin(&role(&fleet, Duration::from_secs(60)));
    let (_, first) = holder.until(began).await;
    let next = Life::begin(&role(&fleet, Duration::from_millis(10)));
    // It has looked in vain before.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let killed = Moment::now();
    holder.0.kill9();
    let (at, second) = next.until(began).await;
    println!("replaced {:?} after the kill, with a ttl of {TTL:?}; fence {first} -> {second}", at.since(killed));
    assert!(at.since(killed) <= TTL + Duration::from_secs(1), "{:?}", at.since(killed));
    assert!(second > first);
    next.until_said(&Said::Ready).await;
}

/// FAULTS G8.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_redis_it_fails_after_the_configured_wait_and_the_step_is_not_run() {
    let nobody = fleet("redis://127.0.0.1:1");
    let wait = Duration::from_millis(1_500);
    let begun = Moment::now();
    let life = Life::begin(&Role::Start { fleet: nobody, step: Duration::ZERO, ttl: TTL, wait });
    let (at, said) = life.said().await.unwrap();
    let Said::Failed(error) = said else { panic!("{said:?}") };
    println!("after {:?}: {error}", at.since(begun));
    assert!(at.since(begun) >= wait && at.since(begun) < wait + Duration::from_secs(3));
    let expected = "step indexes: not run, after waiting for 1.5s: the lock store is unavailable";
    assert!(error.contains(expected), "{error}");
}

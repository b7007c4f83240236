//! Processes that start together with a singleton step.

use std::time::Duration;

use phalanx_integration_tests::lifecycle_process::{Fleet, ProcessEvent, Role};
use phalanx_integration_tests::replica::Moment;
use phalanx_testkit::server::Redis;

use crate::harness::{LifecycleProcess, fleet};

const TTL: Duration = Duration::from_secs(2);

fn role(fleet: &Fleet, step: Duration) -> Role {
    Role::Start { fleet: fleet.clone(), step, ttl: TTL, wait: Duration::from_secs(30) }
}

fn began(event: &ProcessEvent) -> Option<u64> {
    if let ProcessEvent::StepStarted(fence) = event { Some(*fence) } else { None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_processes_one_runs_the_step_and_the_others_start_after_it_finished() {
    let fleet = fleet(Redis::shared().await);
    let processes: Vec<_> =
        (0..3).map(|_| LifecycleProcess::start(&role(&fleet, Duration::from_millis(300)))).collect();
    let (mut runs, mut done, mut ready) = (0, Moment::ZERO, Vec::new());
    for process in &processes {
        loop {
            match process.next_event().await.unwrap() {
                (_, ProcessEvent::StepStarted(_)) => runs += 1,
                (at, ProcessEvent::StepDone) => done = at,
                (at, ProcessEvent::Ready) => break ready.push(at),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(runs, 1);
    let after: Vec<_> = ready.iter().map(|at| at.since(done)).collect();
    println!("ready after the step was done: {after:?}");
    assert!(ready.iter().all(|at| *at > done));

    let late = LifecycleProcess::start(&role(&fleet, Duration::from_millis(300)));
    assert!(matches!(late.next_event().await, Some((_, ProcessEvent::Ready))), "a late process skips the step");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_is_replaced_within_its_ttl_and_a_second_under_a_higher_fence() {
    let fleet = fleet(Redis::shared().await);
    let holder = LifecycleProcess::start(&role(&fleet, Duration::from_secs(60)));
    let (_, first) = holder.until(began).await;
    let next = LifecycleProcess::start(&role(&fleet, Duration::from_millis(10)));
    // Long enough for a failed attempt to acquire the lock.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let killed = Moment::now();
    holder.0.kill();
    let (at, second) = next.until(began).await;
    println!("replaced {:?} after the kill, with a ttl of {TTL:?}; fence {first} -> {second}", at.since(killed));
    assert!(at.since(killed) <= TTL + Duration::from_secs(1), "{:?}", at.since(killed));
    assert!(second > first);
    next.until_event(&ProcessEvent::Ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_the_start_fails_after_the_configured_wait_and_the_step_is_not_run() {
    let unreachable = fleet("redis://127.0.0.1:1");
    let wait = Duration::from_millis(1_500);
    let begun = Moment::now();
    let process = LifecycleProcess::start(&Role::Start { fleet: unreachable, step: Duration::ZERO, ttl: TTL, wait });
    let (at, event) = process.next_event().await.unwrap();
    let ProcessEvent::Failed(error) = event else { panic!("{event:?}") };
    println!("after {:?}: {error}", at.since(begun));
    assert!(at.since(begun) >= wait && at.since(begun) < wait + Duration::from_secs(3));
    let expected = "step indexes: not run, after waiting for 1.5s: the lock store is unavailable";
    assert!(error.contains(expected), "{error}");
}

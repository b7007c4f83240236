//! Singleton steps on virtual time: the replicas are runtimes over one lock store.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

mod support;

use std::io;
use std::time::Duration;

use futures_util::future::join_all;
use phalanx_core::lock::{Fences, LockStore};
use phalanx_lifecycle::{Runtime, SingletonSpec, StartError, Step, singleton};
use phalanx_store_memory::MemoryLocks;
use support::{Log, MS, SECOND, failing};
use tokio::time::{Instant, sleep, timeout};

const STEP: Duration = Duration::from_millis(300);

/// A replica that starts the singleton step and then a server.
fn replica(log: &Log, locks: &MemoryLocks, spec: SingletonSpec) -> Runtime {
    let step = log.step("indexes", STEP).mutates_shared_state();
    let serve = log.step("serve", Duration::ZERO);
    Runtime::builder().step(singleton(step, locks.clone(), spec)).step(serve).build().unwrap()
}

async fn start_all(replicas: &[Runtime]) -> Vec<Result<(), StartError>> {
    join_all(replicas.iter().map(Runtime::start)).await
}

fn count(lines: &[String], line: &str) -> usize {
    lines.iter().filter(|found| *found == line).count()
}

#[tokio::test(start_paused = true)]
async fn of_replicas_that_start_together_one_runs_the_step_and_the_others_wait_for_it() {
    let (log, locks) = (Log::default(), MemoryLocks::default());
    let replicas: Vec<_> = (0..3).map(|_| replica(&log, &locks, SingletonSpec::version("1"))).collect();
    let start = Instant::now();
    assert!(start_all(&replicas).await.iter().all(Result::is_ok));
    assert_eq!(start.elapsed(), STEP, "without any further wait");
    let lines = log.take();
    assert_eq!(lines[..2], ["+indexes", "indexes up"]);
    assert_eq!((count(&lines, "+indexes"), count(&lines, "serve up")), (1, 3));
    for replica in &replicas {
        replica.shutdown().await;
    }
    assert_eq!(count(&log.take(), "-indexes"), 1, "it is stopped only on the replica that ran it");
}

#[tokio::test(start_paused = true)]
async fn a_late_replica_skips_the_step_and_a_new_version_runs_it_again() {
    let (log, locks) = (Log::default(), MemoryLocks::default());
    replica(&log, &locks, SingletonSpec::version("1")).start().await.unwrap();
    sleep(24 * 3_600 * SECOND).await;
    log.take();
    replica(&log, &locks, SingletonSpec::version("1")).start().await.unwrap();
    assert_eq!(count(&log.take(), "+indexes"), 0);
    replica(&log, &locks, SingletonSpec::version("2")).start().await.unwrap();
    assert_eq!(count(&log.take(), "+indexes"), 1);
    replica(&log, &locks, SingletonSpec::version("1")).start().await.unwrap();
    assert_eq!(count(&log.take(), "+indexes"), 0, "a rollback finds the old mark");
}

#[tokio::test(start_paused = true)]
async fn with_skip_if_running_a_replica_continues_at_once() {
    let (log, locks) = (Log::default(), MemoryLocks::default());
    let spec = SingletonSpec::version("1").skip_if_running();
    let replicas = [replica(&log, &locks, spec.clone()), replica(&log, &locks, spec)];
    assert!(start_all(&replicas).await.iter().all(Result::is_ok));
    assert_eq!(log.take()[..4], ["+indexes", "+serve", "serve up", "indexes up"]);
}

#[tokio::test(start_paused = true)]
async fn an_always_step_runs_at_every_start_but_never_concurrently() {
    let (log, locks) = (Log::default(), MemoryLocks::default());
    let spec = SingletonSpec::version("1").always();
    let replicas: Vec<_> = (0..3).map(|_| replica(&log, &locks, spec.clone())).collect();
    assert!(start_all(&replicas).await.iter().all(Result::is_ok));
    assert_eq!(count(&log.take(), "+indexes"), 1, "replicas that waited for a run do not run it again");
    replica(&log, &locks, spec).start().await.unwrap();
    assert_eq!(count(&log.take(), "+indexes"), 1, "a replica that starts later does");
}

#[tokio::test(start_paused = true)]
async fn a_crashed_holder_is_replaced_after_the_ttl() {
    let (log, locks) = (Log::default(), MemoryLocks::default());
    locks.acquire("indexes", "crashed owner", 5 * SECOND).await.unwrap();
    let start = Instant::now();
    let spec = SingletonSpec::version("1").ttl(5 * SECOND);
    replica(&log, &locks, spec).start().await.unwrap();
    let took = start.elapsed();
    assert!((5 * SECOND..=6 * SECOND + STEP).contains(&took), "{took:?}");
    assert_eq!(count(&log.take(), "+indexes"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_step_is_run_by_the_next_waiting_replica() {
    let (log, locks) = (Log::default(), MemoryLocks::default());
    let broken = Runtime::builder();
    let broken =
        broken.step(singleton(failing("indexes"), locks.clone(), SingletonSpec::version("1"))).build().unwrap();
    let good = replica(&log, &locks, SingletonSpec::version("1"));
    let (failed, started) = tokio::join!(broken.start(), good.start());
    assert_eq!(failed.unwrap_err().failures[0].to_string(), "step indexes: no such table");
    started.unwrap();
    assert_eq!(count(&log.take(), "+indexes"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_replica_whose_wait_ends_fails_with_the_reason_and_does_not_run_the_step() {
    let (log, locks) = (Log::default(), MemoryLocks::default());
    locks.acquire("indexes", "slow owner", 3_600 * SECOND).await.unwrap();
    let start = Instant::now();
    let error = replica(&log, &locks, SingletonSpec::version("1").wait(20 * SECOND)).start().await.unwrap_err();
    assert_eq!(start.elapsed(), 20 * SECOND);
    let message = error.failures[0].to_string();
    assert!(
        message.starts_with("step indexes: not run, after waiting for 20s: another owner holds the lock"),
        "{message}"
    );
    assert_eq!(log.take(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_step_writes_under_its_fence_and_each_run_has_a_higher_fence() {
    let locks = MemoryLocks::default();
    let fences = std::sync::Arc::new(Fences::default());
    for version in ["1", "2", "3"] {
        let fences = fences.clone();
        let step = Step::new("seed").on_start_with(move |context| {
            let fences = fences.clone();
            async move {
                let fence = context.fence().map_err(io::Error::other)?.unwrap();
                fences.check(fence).map_err(io::Error::other)?;
                fences.check(fence - 1).map_err(io::Error::other).expect_err("an older fence is rejected");
                Ok::<(), io::Error>(())
            }
        });
        let step = singleton(step, locks.clone(), SingletonSpec::version(version));
        Runtime::builder().step(step).build().unwrap().start().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_start_releases_the_lock() {
    let (log, locks) = (Log::default(), MemoryLocks::default());
    let first = replica(&log, &locks, SingletonSpec::version("1"));
    assert!(timeout(100 * MS, first.start()).await.is_err());
    sleep(MS).await;
    let start = Instant::now();
    replica(&log, &locks, SingletonSpec::version("1")).start().await.unwrap();
    assert_eq!(start.elapsed(), STEP, "without waiting for the ttl");
}

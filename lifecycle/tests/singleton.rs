//! Steps that one replica runs for all, on virtual time: replicas are runtimes over one lock store.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

mod support;

use std::io;
use std::time::Duration;

use futures_util::future::join_all;
use phalanx_core::lock::{Fences, LockStore};
use phalanx_lifecycle::{Runtime, SingletonSpec, StartError, Step, singleton};
use phalanx_store_memory::MemoryLocks;
use support::{Diary, MS, SECOND, failing};
use tokio::time::{Instant, sleep, timeout};

const STEP: Duration = Duration::from_millis(300);

/// A replica that runs the step and then serves.
fn replica(diary: &Diary, locks: &MemoryLocks, spec: SingletonSpec) -> Runtime {
    let step = diary.step("indexes", STEP).mutates_shared_state();
    let serve = diary.step("serve", Duration::ZERO);
    Runtime::builder().step(singleton(step, locks.clone(), spec)).step(serve).build().unwrap()
}

async fn start_all(replicas: &[Runtime]) -> Vec<Result<(), StartError>> {
    join_all(replicas.iter().map(Runtime::start)).await
}

fn count(lines: &[String], line: &str) -> usize {
    lines.iter().filter(|found| *found == line).count()
}

#[tokio::test(start_paused = true)]
async fn of_replicas_that_start_together_one_runs_it_and_the_others_wait_until_it_is_done() {
    let (diary, locks) = (Diary::default(), MemoryLocks::default());
    let replicas: Vec<_> = (0..3).map(|_| replica(&diary, &locks, SingletonSpec::version("1"))).collect();
    let start = Instant::now();
    assert!(start_all(&replicas).await.iter().all(Result::is_ok));
    assert_eq!(start.elapsed(), STEP, "and not a moment longer");
    let lines = diary.read();
    assert_eq!(lines[..2], ["+indexes", "indexes up"]);
    assert_eq!((count(&lines, "+indexes"), count(&lines, "serve up")), (1, 3));
    for replica in &replicas {
        replica.shutdown().await;
    }
    assert_eq!(count(&diary.read(), "-indexes"), 1, "it is stopped where it was run");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_comes_late_skips_it_and_a_new_version_runs_it_again() {
    let (diary, locks) = (Diary::default(), MemoryLocks::default());
    replica(&diary, &locks, SingletonSpec::version("1")).start().await.unwrap();
    sleep(24 * 3_600 * SECOND).await;
    diary.read();
    replica(&diary, &locks, SingletonSpec::version("1")).start().await.unwrap();
    assert_eq!(count(&diary.read(), "+indexes"), 0);
    replica(&diary, &locks, SingletonSpec::version("2")).start().await.unwrap();
    assert_eq!(count(&diary.read(), "+indexes"), 1);
    replica(&diary, &locks, SingletonSpec::version("1")).start().await.unwrap();
    assert_eq!(count(&diary.read(), "+indexes"), 0, "a rollback finds the old mark");
}

#[tokio::test(start_paused = true)]
async fn who_skips_goes_on_at_once() {
    let (diary, locks) = (Diary::default(), MemoryLocks::default());
    let spec = SingletonSpec::version("1").skip();
    let replicas = [replica(&diary, &locks, spec.clone()), replica(&diary, &locks, spec)];
    assert!(start_all(&replicas).await.iter().all(Result::is_ok));
    assert_eq!(diary.read()[..4], ["+indexes", "+serve", "serve up", "indexes up"]);
}

#[tokio::test(start_paused = true)]
async fn an_ensure_style_step_runs_at_every_start_but_not_twice_at_a_time() {
    let (diary, locks) = (Diary::default(), MemoryLocks::default());
    let spec = SingletonSpec::version("1").always();
    let replicas: Vec<_> = (0..3).map(|_| replica(&diary, &locks, spec.clone())).collect();
    assert!(start_all(&replicas).await.iter().all(Result::is_ok));
    assert_eq!(count(&diary.read(), "+indexes"), 1, "those who waited for it need no run of their own");
    replica(&diary, &locks, spec).start().await.unwrap();
    assert_eq!(count(&diary.read(), "+indexes"), 1, "but who comes later does");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_vanished_is_replaced_when_its_time_is_over() {
    let (diary, locks) = (Diary::default(), MemoryLocks::default());
    locks.acquire("indexes", "somebody who is gone", 5 * SECOND).await.unwrap();
    let start = Instant::now();
    let spec = SingletonSpec::version("1").ttl(5 * SECOND);
    replica(&diary, &locks, spec).start().await.unwrap();
    let took = start.elapsed();
    assert!((5 * SECOND..=6 * SECOND + STEP).contains(&took), "{took:?}");
    assert_eq!(count(&diary.read(), "+indexes"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_is_tried_by_the_next_one_who_waits() {
    let (diary, locks) = (Diary::default(), MemoryLocks::default());
    let broken = Runtime::builder();
    let broken =
        broken.step(singleton(failing("indexes"), locks.clone(), SingletonSpec::version("1"))).build().unwrap();
    let good = replica(&diary, &locks, SingletonSpec::version("1"));
    let (failed, started) = tokio::join!(broken.start(), good.start());
    assert_eq!(failed.unwrap_err().failures[0].to_string(), "step indexes: no such table");
    started.unwrap();
    assert_eq!(count(&diary.read(), "+indexes"), 1);
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_vain_fails_with_a_clear_word_and_does_not_run_it() {
    let (diary, locks) = (Diary::default(), MemoryLocks::default());
    locks.acquire("indexes", "somebody slow", 3_600 * SECOND).await.unwrap();
    let start = Instant::now();
    let error = replica(&diary, &locks, SingletonSpec::version("1").wait(20 * SECOND)).start().await.unwrap_err();
    assert_eq!(start.elapsed(), 20 * SECOND);
    let words = error.failures[0].to_string();
    assert!(words.starts_with("step indexes: not run, after waiting for 20s: somebody else holds the lock"), "{words}");
    assert_eq!(diary.read(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_step_writes_under_its_fence_and_each_run_has_a_higher_one() {
    let locks = MemoryLocks::default();
    let fences = std::sync::Arc::new(Fences::default());
    for version in ["1", "2", "3"] {
        let fences = fences.clone();
        let step = Step::new("seed").start_in(move |scene| {
            let fences = fences.clone();
            async move {
                let fence = scene.fence().map_err(io::Error::other)?.unwrap();
                fences.check(fence).map_err(io::Error::other)?;
                fences.check(fence - 1).map_err(io::Error::other).expect_err("an older one is rejected");
                Ok::<(), io::Error>(())
            }
        });
        let step = singleton(step, locks.clone(), SingletonSpec::version(version));
        Runtime::builder().step(step).build().unwrap().start().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_given_up_leaves_the_lock_free() {
    let (diary, locks) = (Diary::default(), MemoryLocks::default());
    let first = replica(&diary, &locks, SingletonSpec::version("1"));
    assert!(timeout(100 * MS, first.start()).await.is_err());
    sleep(MS).await;
    let start = Instant::now();
    replica(&diary, &locks, SingletonSpec::version("1")).start().await.unwrap();
    assert_eq!(start.elapsed(), STEP, "nobody had to wait for its time to run out");
}

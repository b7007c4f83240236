//! Locks and singleton steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use phalanx::lifecycle::{DistributedLock, LockError, LockSpec, Runtime, SingletonSpec, Step, singleton};
use phalanx_core::clock::Clock;
use phalanx_core::rng::Rng;
use phalanx_store_redis::{RedisLocks, RedisStore};
use phalanx_testkit::FaultyRedis;
use tokio::time::{sleep, timeout};

use crate::harness::*;

fn lock(store: &RedisStore, seed: u64) -> DistributedLock<RedisLocks> {
    DistributedLock::new(store.locks(), LockSpec::named("report")).clock(Clock::tokio()).rng(Rng::seeded(seed))
}

pub(crate) async fn review_1_11_fences_grow_over_a_failover_to_a_server_whose_clock_is_behind() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    meet(&[one.clone(), other.clone()]).await;
    let guard = lock(&one, 1).try_acquire().await.unwrap();
    let Err(LockError::Taken { fence: before }) = lock(&other, 2).try_acquire().await else {
        panic!("the lock is held");
    };
    assert_eq!(guard.fence(), before, "the other replica has seen the fence");
    redis.fail_over(SECOND); // the replica had not received the lock
    redis.step_clock_back(500 * MS);
    sleep(100 * MS).await;
    let after = loop {
        match lock(&other, 2).try_acquire().await {
            Ok(guard) => break guard.fence(),
            Err(LockError::Unavailable(_)) => sleep(10 * MS).await,
            Err(taken) => panic!("the failover lost the lock: {taken}"),
        }
    };
    promise(after > before, || format!("fence {before}, then {after}: lower by {}", before - after))
}

pub(crate) async fn review_1_12_a_cancelled_acquire_does_not_hold_the_lock() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    meet(&[one.clone(), other.clone()]).await;
    drop(lock(&one, 1).try_acquire().await.unwrap()); // loads the scripts
    sleep(SECOND).await;
    redis.set_latency(5 * MS);
    assert!(timeout(3 * MS, lock(&one, 1).try_acquire()).await.is_err(), "cancelled before the reply");
    sleep(SECOND).await;
    let next = lock(&other, 2).try_acquire().await.map(|guard| guard.fence());
    promise(next.is_ok(), || format!("1 s after a cancelled acquire another owner got {next:?}"))
}

pub(crate) async fn review_1_12_an_acquire_that_gave_up_after_a_lost_reply_does_not_hold_the_lock() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    meet(&[one.clone(), other.clone()]).await;
    redis.lose_reply("lock_acquire", 1);
    let gave_up = lock(&one, 1).acquire(10 * MS).await.map(|guard| guard.fence());
    assert!(matches!(gave_up, Err(LockError::Unavailable(_))), "{gave_up:?}");
    assert_eq!(redis.pending_faults(), 0, "the reply was lost");
    sleep(SECOND).await;
    let next = lock(&other, 2).try_acquire().await.map(|guard| guard.fence());
    promise(next.is_ok(), || format!("1 s after an acquire that failed another owner got {next:?}"))
}

pub(crate) async fn review_1_12_a_late_release_does_not_free_a_lock_that_was_taken_again() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    meet(&[one.clone(), other.clone()]).await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let start = |store: &RedisStore| {
        let (running, most, locks) = (running.clone(), most.clone(), store.locks());
        async move {
            let step = Step::new("migrate").on_start(move || {
                let (running, most) = (running.clone(), most.clone());
                async move {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    sleep(8 * SECOND).await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, std::convert::Infallible>(())
                }
            });
            let step = singleton(step, locks, SingletonSpec::version("1").always());
            Runtime::builder().step(step).build().unwrap().start().await.map(drop)
        }
    };
    drop(lock(&one, 1).try_acquire().await.unwrap()); // loads the scripts
    sleep(SECOND).await;
    // The second look at the mark, under the lock, has no reply; the release that follows is executed 1.5 s late.
    redis.lose_reply("lock_completed", 2);
    redis.delay_request("lock_release", 1, 1_500 * MS);
    let first = tokio::spawn(start(&one));
    sleep(1_200 * MS).await; // it has asked again, and runs the step
    assert_eq!(running.load(Ordering::SeqCst), 1, "the step runs");
    let second = tokio::spawn(start(&other));
    sleep(20 * SECOND).await;
    assert_eq!(redis.pending_faults(), 0, "both faults happened");
    assert!(first.is_finished() && second.is_finished());
    let most = most.load(Ordering::SeqCst);
    promise(most == 1, || format!("{most} replicas ran the singleton step at the same time"))
}

pub(crate) async fn review_1_12_a_release_is_repeated_until_redis_has_it() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    meet(&[one.clone(), other.clone()]).await;
    let (dropped, released) = (lock(&one, 1), DistributedLock::new(one.locks(), LockSpec::named("other")));
    let guards = (dropped.try_acquire().await.unwrap(), released.try_acquire().await.unwrap());
    redis.stop();
    drop(guards.0);
    let release = guards.1.release().await;
    assert!(release.is_err(), "{release:?}");
    sleep(4 * SECOND).await;
    redis.start();
    recover(&other).await;
    sleep(3 * SECOND).await;
    let next = [lock(&other, 2), DistributedLock::new(other.locks(), LockSpec::named("other"))];
    let next = [next[0].try_acquire().await.is_ok(), next[1].try_acquire().await.is_ok()];
    promise(next == [true, true], || {
        format!("free 7 s after a guard was dropped, and released, in an outage of 4 s: {next:?}")
    })
}

pub(crate) async fn review_1_14_a_denied_channel_does_not_keep_a_lock_held() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    meet(std::slice::from_ref(&store)).await;
    let guards = [lock(&store, 1), DistributedLock::new(store.locks(), LockSpec::named("other"))];
    let guards = [guards[0].try_acquire().await.unwrap(), guards[1].try_acquire().await.unwrap()];
    redis.deny_channels(true);
    let [release, complete] = guards;
    let ends = (release.release().await, complete.complete("1", SECOND).await);
    promise(ends == (Ok(true), Ok(true)), || format!("released and completed without a channel: {ends:?}"))
}

pub(crate) async fn review_4_4_a_mark_that_is_read_outlives_thirty_days() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    meet(std::slice::from_ref(&store)).await;
    let runs = Arc::new(AtomicUsize::new(0));
    for _ in 0..5 {
        let counted = runs.clone();
        let step = Step::new("migrate").on_start(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok::<_, std::convert::Infallible>(()))
        });
        let step = singleton(step, store.locks(), SingletonSpec::version("1"));
        Runtime::builder().step(step).build().unwrap().start().await.unwrap();
        redis.step_clock_forward(11 * 24 * 3_600 * SECOND);
        sleep(SECOND).await;
    }
    let runs = runs.load(Ordering::SeqCst);
    promise(runs == 1, || format!("{runs} runs of one version in 55 days, with a start every 11 days"))
}

//! The guarantees of a gate, under paused time.

use super::*;
use crate::context::scope;
use std::future::pending;
use std::sync::atomic::AtomicU64;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);

fn code<T>(result: Result<T, Rejection>) -> Option<RejectionCode> {
    result.err().map(|rejection| rejection.code())
}

#[tokio::test(start_paused = true)]
async fn an_empty_gate_is_drained_at_once() {
    let gate = Gate::default();
    assert_eq!(gate.run(async { 7 }).await, Ok(7));
    assert_eq!(gate.drain(10 * SECOND).await, Drained::default());
}

#[tokio::test(start_paused = true)]
async fn new_work_is_rejected_with_a_retry_after() {
    let gate = Gate::new(3 * SECOND);
    gate.begin();
    gate.begin();
    assert!(gate.is_draining());
    let rejection = gate.run(async {}).await.unwrap_err();
    assert_eq!((rejection.code(), rejection.retry_after()), (RejectionCode::Draining, Some(3 * SECOND)));
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_work_in_flight() {
    let gate = Gate::default();
    let inside = gate.clone();
    let work = tokio::spawn(async move { inside.run(sleep(4 * SECOND)).await });
    tokio::task::yield_now().await;
    let drained = gate.drain(10 * SECOND).await;
    assert_eq!(drained, Drained { in_flight: 1, elapsed: 4 * SECOND, ..Drained::default() });
    assert_eq!(work.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn work_that_outlasts_the_window_is_counted_and_cancelled_with_draining() {
    let gate = Gate::default();
    let spawn = || {
        let inside = gate.clone();
        tokio::spawn(async move { inside.run(pending::<()>()).await })
    };
    let all: Vec<_> = (0..100).map(|_| spawn()).collect();
    while gate.in_flight() < 100 {
        tokio::task::yield_now().await;
    }
    let drained = gate.drain(SECOND).await;
    assert_eq!(drained, Drained { in_flight: 100, leftovers: 100, stuck: 0, elapsed: SECOND });
    for work in all {
        assert_eq!(code(work.await.unwrap()), Some(RejectionCode::Draining));
    }
}

#[tokio::test(start_paused = true)]
async fn nested_work_is_admitted_while_the_gate_drains_also_in_a_scoped_task() {
    let gate = Gate::default();
    let inner = gate.clone();
    let work = tokio::spawn(async move {
        let gate = inner.clone();
        inner
            .run(async move {
                sleep(SECOND).await;
                assert!(gate.is_draining());
                assert_eq!(gate.run(async { 1 }).await, Ok(1));
                let (bare, taken) = (gate.clone(), gate.clone());
                let bare = tokio::spawn(async move { bare.run(async {}).await }).await.unwrap();
                assert_eq!(code(bare), Some(RejectionCode::Draining), "a task without the context is outside");
                let scoped = scope(Context::current(), async move { taken.run(async { 2 }).await });
                assert_eq!(tokio::spawn(scoped).await.unwrap(), Ok(2));
            })
            .await
    });
    tokio::task::yield_now().await;
    assert_eq!(gate.drain(10 * SECOND).await.leftovers, 0);
    work.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drained_gate_rejects_nested_work_too() {
    let gate = Gate::default();
    let inside = Context::EMPTY.inside(gate.id());
    gate.begin();
    assert_eq!(code(scope(inside, gate.run(async {})).await), None);
    gate.drain(SECOND).await;
    assert_eq!(code(scope(inside, gate.run(async {})).await), Some(RejectionCode::Draining));
}

#[tokio::test(start_paused = true)]
async fn work_nested_in_one_gate_is_outside_another() {
    let (gate, other) = (Gate::default(), Gate::default());
    other.begin();
    let nested = gate.run(other.run(async {})).await.unwrap();
    assert_eq!(code(nested), Some(RejectionCode::Draining));
}

#[tokio::test(start_paused = true)]
async fn concurrent_drains_wait_for_the_same_end() {
    let gate = Gate::default();
    let inside = gate.clone();
    tokio::spawn(async move { inside.run(sleep(2 * SECOND)).await });
    tokio::task::yield_now().await;
    let (one, two) = tokio::join!(gate.drain(10 * SECOND), gate.drain(10 * SECOND));
    assert_eq!((one.leftovers, one.elapsed), (two.leftovers, two.elapsed));
    assert_eq!(gate.drain(SECOND).await.elapsed, Duration::ZERO);
}

#[test]
fn no_call_is_miscounted_when_threads_enter_and_leave_during_a_drain() {
    let gate = Gate::default();
    let (admitted, finished) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                while let Some(mut ticket) = gate.admit(Context::EMPTY) {
                    admitted.fetch_add(1, Ordering::SeqCst);
                    std::hint::spin_loop();
                    finished.fetch_add(1, Ordering::SeqCst);
                    gate.leave(&mut ticket);
                }
            });
        }
        while finished.load(Ordering::SeqCst) < 10_000 {
            std::hint::spin_loop();
        }
        gate.begin();
    });
    assert_eq!(gate.in_flight(), 0);
    assert_eq!(admitted.into_inner(), finished.into_inner());
}

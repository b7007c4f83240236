//! Timeouts and deadlines: when a call is cut off, and what the operation sees.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use phalanx::policy::{DeadlineSpec, Jitter, Stage};
use phalanx::*;
use support::*;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn an_attempt_that_takes_too_long_is_dropped() {
    let dropped = Arc::new(AtomicBool::new(false));
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let module = module(Policy::named("p").timeout(100 * MS));
    let start = Instant::now();
    let answer = module.run("p", (), || async {
        let _flag = Flag(dropped.clone());
        hang().await
    });
    assert_eq!(code(answer.await), RejectionCode::AttemptTimeout);
    assert_eq!(start.elapsed(), 100 * MS);
    assert!(dropped.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn a_detached_attempt_continues_after_its_timeout() {
    let finished = Arc::new(AtomicBool::new(false));
    let module = module(Policy::named("p").timeout(100 * MS));
    let answer = module.call("p", ()).run_detached(|| {
        let finished = finished.clone();
        async move {
            tokio::time::sleep(SECOND).await;
            finished.store(true, Ordering::Relaxed);
            Ok::<_, Failure>(1)
        }
    });
    assert_eq!(code(answer.await), RejectionCode::AttemptTimeout);
    assert!(!finished.load(Ordering::Relaxed));
    tokio::time::sleep(SECOND).await;
    assert!(finished.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn a_detached_attempt_in_time_is_the_answer_and_has_the_context() {
    let module = module(Policy::named("p").deadline(2 * SECOND));
    let answer = module.call("p", ()).run_detached(|| async { Ok::<_, Failure>(Context::current().remaining()) });
    assert_eq!(answer.await, Ok(Some(2 * SECOND)));
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_its_own_timeout() {
    let retry = RetrySpec::attempts(3).backoff(Backoff::constant(MS).jitter(Jitter::None));
    let module = module(Policy::named("p").timeout(100 * MS).retry(retry));
    let start = Instant::now();
    let (answer, record) = module.call("p", ()).run_recorded(hang).await;
    assert_eq!((code(answer), record.attempts), (RejectionCode::AttemptTimeout, 3));
    assert_eq!(start.elapsed(), 302 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_bounds_the_whole_call() {
    let retry = RetrySpec::attempts(100).backoff(Backoff::constant(50 * MS).jitter(Jitter::None));
    let module = module(Policy::named("p").deadline(SECOND).timeout(300 * MS).retry(retry));
    let start = Instant::now();
    let (answer, record) = module.call("p", ()).run_recorded(hang).await;
    // 300 + 50 + 300 + 50 + the remaining 300.
    assert_eq!((code(answer), record.attempts), (RejectionCode::DeadlineExceeded, 3));
    assert_eq!((start.elapsed(), record.stage), (SECOND, Some(Stage::Deadline)));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_gets_the_remaining_time_minus_the_safety_margin() {
    let deadline = DeadlineSpec::total(SECOND).safety_margin(100 * MS);
    let module = module(Policy::named("p").deadline(deadline).timeout(5 * SECOND));
    let start = Instant::now();
    assert_eq!(code(module.run("p", (), hang).await), RejectionCode::DeadlineExceeded);
    assert_eq!(start.elapsed(), 900 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_call_past_its_deadline_takes_no_permit() {
    let module = module(Policy::named("p").rate_limit(RateLimitSpec::per_second(5)));
    let pipeline = module.pipeline("p", ()).unwrap();
    let late = Context::EMPTY.with_deadline(Instant::now());
    let answer = scope(late, pipeline.run(hang)).await;
    assert_eq!(code(answer), RejectionCode::DeadlineExceeded);
    assert_eq!(pipeline.available_permits().await, Some(5));
}

#[tokio::test(start_paused = true)]
async fn the_operation_and_nested_policies_see_the_tighter_deadline() {
    let outer = Policy::named("outer").deadline(SECOND);
    let module = builder(outer).policy(Policy::named("inner").deadline(10 * SECOND)).build().unwrap();
    let seen = module.run("outer", (), || async {
        tokio::time::sleep(400 * MS).await;
        let remaining = || async { Ok::<_, Failure>(Context::current().remaining()) };
        module.run("inner", (), remaining).await.map_err(|_| BROKEN)
    });
    assert_eq!(seen.await, Ok(Some(600 * MS)));
    assert_eq!(Context::current(), Context::EMPTY);
}

#[tokio::test(start_paused = true)]
async fn the_closure_of_the_operation_sees_the_deadline_too() {
    let module = module(Policy::named("p").deadline(SECOND));
    let eager = || {
        let left = Context::current().remaining();
        async move { Ok::<_, Failure>(left) }
    };
    assert_eq!(module.run("p", (), eager).await, Ok(Some(SECOND)));
}

#[tokio::test(start_paused = true)]
async fn a_call_may_shorten_the_deadline_of_its_policy_and_never_extend_it() {
    let module = module(Policy::named("p").deadline(SECOND));
    for (asked, got) in [(200 * MS, 200 * MS), (60 * SECOND, SECOND)] {
        let start = Instant::now();
        assert_eq!(code(module.call("p", ()).within(asked).run(hang).await), RejectionCode::DeadlineExceeded);
        assert_eq!(start.elapsed(), got);
    }
}

#[tokio::test]
async fn a_timeout_works_on_the_system_clock_too() {
    // Waits in real time: everything else runs in paused time.
    let module = module(Policy::named("p").timeout(20 * MS));
    let pipeline = module.pipeline("p", ()).unwrap();
    for _ in 0..3 {
        let start = Instant::now();
        assert_eq!(code(pipeline.run(hang).await), RejectionCode::AttemptTimeout);
        let took = start.elapsed();
        assert!(took >= 20 * MS && took < Duration::from_secs(2), "{took:?}");
    }
}

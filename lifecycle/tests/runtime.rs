//! A runtime's life, on virtual time: waves, roll-back, drain, stop, and what is reported of it.

#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how a test says no, in its helpers too

mod support;

use std::future::{pending, ready};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx_core::event::EventKind;
use phalanx_lifecycle::{Runtime, Status, Step, StepErrorKind};
use support::{Diary, MS, SECOND, failing};
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn waves_start_in_order_and_stop_in_reverse_and_a_wave_together() {
    let diary = Diary::default();
    let runtime = Runtime::builder()
        .wave([diary.step("database", 2 * SECOND), diary.step("cache", SECOND)])
        .step(diary.step("server", SECOND))
        .build()
        .unwrap();
    assert_eq!(runtime.readiness().status, Status::Unavailable);
    let start = Instant::now();
    runtime.start().await.unwrap();
    assert_eq!(start.elapsed(), 3 * SECOND, "two seconds for the first wave, not three");
    assert!(runtime.ready());
    assert_eq!(diary.read(), ["+database", "+cache", "cache up", "database up", "+server", "server up"]);
    let ended = runtime.shutdown().await;
    assert!(ended.is_clean(), "{ended}");
    assert_eq!(diary.read(), ["-server", "-cache", "-database"]);
    assert_eq!(runtime.readiness().status, Status::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_stops_those_that_had_started_and_nothing_after_it_starts() {
    let diary = Diary::default();
    let runtime = Runtime::builder()
        .step(diary.step("first", MS))
        .wave([diary.step("second", SECOND), failing("broken")])
        .step(diary.step("third", MS))
        .build()
        .unwrap();
    let error = runtime.start().await.unwrap_err();
    assert_eq!(error.failures.len(), 1);
    assert_eq!(error.to_string(), "the service did not start\n  step broken: no such table");
    let expected = ["+first", "first up", "+second", "second up", "-second", "-first"];
    assert_eq!(diary.read(), expected, "what starts beside it is stopped too");
    assert!(!runtime.ready());
}

#[tokio::test(start_paused = true)]
async fn a_step_that_wedges_is_abandoned_and_reported_whether_starting_or_stopping() {
    let wedged = Step::new("wedged").on_start(pending::<io::Result<()>>);
    let start = Instant::now();
    let error = Runtime::builder().step(wedged).build().unwrap().start().await.unwrap_err();
    assert_eq!(start.elapsed(), 10 * SECOND, "the default");
    assert_eq!(error.failures[0].trouble, StepErrorKind::Abandoned(10 * SECOND));

    let diary = Diary::default();
    let told = Arc::new(Mutex::new(Vec::new()));
    let hear = told.clone();
    let wedged = Step::new("wedged").on_stop(pending::<io::Result<()>>).timeout(2 * SECOND);
    let panics = Step::new("panics").on_stop(|| -> std::future::Ready<io::Result<()>> {
        std::panic::resume_unwind(Box::new("one that does not print"))
    });
    let runtime = Runtime::builder()
        .step(diary.step("first", MS))
        .wave([wedged, panics])
        .step_timeout(SECOND)
        .on_event(move |event| {
            if let EventKind::StepFailed { step, reason } = event.kind {
                hear.lock().unwrap().push(format!("{step}: {reason}"));
            }
        })
        .build()
        .unwrap();
    runtime.start().await.unwrap();
    let ended = runtime.shutdown().await;
    assert_eq!(ended.elapsed, 2 * SECOND + MS, "and those below it are stopped all the same");
    let troubles: Vec<_> = ended.failures.into_iter().map(|failure| failure.trouble).collect();
    assert_eq!(troubles, [StepErrorKind::Abandoned(2 * SECOND), StepErrorKind::Panicked]);
    assert_eq!(*told.lock().unwrap(), ["wedged: not done after 2s, abandoned", "panics: it panicked"]);
    assert_eq!(diary.read().last().unwrap(), "-first");
}

#[tokio::test(start_paused = true)]
async fn a_background_step_is_told_to_stop_and_waited_for() {
    let done = Arc::new(AtomicBool::new(false));
    let finished = done.clone();
    let server = Step::background("server", |_, stopping| async move {
        stopping.wait().await;
        sleep(SECOND).await;
        finished.store(true, Ordering::Relaxed);
        io::Result::Ok(())
    });
    let crashed = Step::background("crashed", |_, _| ready(Err(io::Error::other("port taken"))));
    let runtime = Runtime::builder().wave([server, crashed]).build().unwrap();
    runtime.start().await.unwrap();
    let ended = runtime.shutdown().await;
    assert!(done.load(Ordering::Relaxed));
    assert_eq!(ended.failures[0].to_string(), "step crashed: port taken");
}

#[tokio::test(start_paused = true)]
async fn work_in_flight_is_drained_before_anything_is_stopped() {
    let diary = Diary::default();
    let runtime = Runtime::builder().step(diary.step("pool", MS)).build().unwrap();
    runtime.start().await.unwrap();
    let (gate, written) = (runtime.gate().clone(), diary.clone());
    let request = tokio::spawn(async move {
        let work = async {
            sleep(3 * SECOND).await;
            written.write("request done");
        };
        gate.run(work).await
    });
    tokio::task::yield_now().await;
    let shutdown = tokio::spawn({
        let runtime = runtime.clone();
        async move { runtime.shutdown().await }
    });
    sleep(SECOND).await;
    assert_eq!((runtime.draining(), runtime.ready()), (true, false));
    let readiness = runtime.readiness();
    assert_eq!((readiness.status, readiness.in_flight), (Status::Draining, 1));
    let ended = shutdown.await.unwrap();
    request.await.unwrap().unwrap();
    assert_eq!((ended.drained.in_flight, ended.drained.leftovers), (1, 0));
    assert_eq!(diary.read(), ["+pool", "pool up", "request done", "-pool"]);
}

#[tokio::test(start_paused = true)]
async fn the_window_ends_the_wait_and_shutting_down_again_tells_the_same() {
    let diary = Diary::default();
    let runtime = Runtime::builder().step(diary.step("pool", MS)).drain_timeout(2 * SECOND).build().unwrap();
    runtime.start().await.unwrap();
    let gate = runtime.gate().clone();
    let request = tokio::spawn(async move { gate.run(pending::<()>()).await });
    tokio::task::yield_now().await;
    let (one, two) = tokio::join!(runtime.shutdown(), runtime.shutdown());
    assert_eq!(one, two);
    assert_eq!((one.drained.leftovers, one.elapsed), (1, 2 * SECOND + MS));
    assert!(request.await.unwrap().is_err());
    assert_eq!(runtime.shutdown().await, one);
    assert_eq!(diary.read(), ["+pool", "pool up", "-pool"], "once");
}

#[tokio::test(start_paused = true)]
async fn notice_is_given_before_calls_are_rejected() {
    let runtime = Runtime::builder().notice(5 * SECOND).build().unwrap();
    runtime.start().await.unwrap();
    let shutdown = tokio::spawn({
        let runtime = runtime.clone();
        async move { runtime.shutdown().await }
    });
    sleep(4 * SECOND).await;
    assert!(runtime.draining() && runtime.gate().run(async {}).await.is_ok());
    assert_eq!(shutdown.await.unwrap().elapsed, 5 * SECOND);
    assert!(runtime.gate().run(async {}).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_first_word_drains_and_the_second_does_not_wait() {
    let runtime = Runtime::builder().build().unwrap();
    let ended = runtime.run_until(sleep(SECOND), pending()).await.unwrap();
    assert!(ended.is_clean());

    let runtime = Runtime::builder().build().unwrap();
    let gate = runtime.gate().clone();
    tokio::spawn(async move { gate.run(pending::<()>()).await });
    let ended = runtime.run_until(sleep(SECOND), sleep(2 * SECOND)).await.unwrap();
    assert_eq!((ended.forced, ended.elapsed), (true, SECOND), "after the first");
}

#[tokio::test(start_paused = true)]
async fn a_word_during_the_start_stops_what_has_started() {
    let diary = Diary::default();
    let runtime =
        Runtime::builder().step(diary.step("quick", MS)).step(diary.step("slow", 5 * SECOND)).build().unwrap();
    let ended = runtime.run_until(sleep(SECOND), pending()).await.unwrap();
    assert!(ended.is_clean(), "{ended}");
    sleep(10 * SECOND).await;
    assert_eq!(diary.read(), ["+quick", "quick up", "+slow", "-quick"], "and the slow one was dropped");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_can_be_asked_for_from_inside() {
    let runtime = Runtime::builder().build().unwrap();
    let inside = runtime.clone();
    tokio::spawn(async move {
        sleep(SECOND).await;
        inside.request_shutdown();
    });
    assert!(runtime.run_until(pending(), pending()).await.unwrap().is_clean());
    assert_eq!(Duration::ZERO, runtime.shutdown().await.drained.elapsed);
}

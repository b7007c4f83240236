//! The runtime on virtual time: waves, rollback, drain, stop, and what is reported.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed test panics, also in helpers

mod support;

use std::future::{pending, ready};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx_core::event::EventKind;
use phalanx_lifecycle::{Runtime, Status, Step, StepErrorKind};
use support::{Log, MS, SECOND, failing};
use tokio::time::{Instant, sleep};

#[tokio::test(start_paused = true)]
async fn waves_start_in_order_and_stop_in_reverse_and_steps_of_a_wave_run_concurrently() {
    let log = Log::default();
    let runtime = Runtime::builder()
        .wave([log.step("database", 2 * SECOND), log.step("cache", SECOND)])
        .step(log.step("server", SECOND))
        .build()
        .unwrap();
    assert_eq!(runtime.readiness().status, Status::Unavailable);
    let start = Instant::now();
    runtime.start().await.unwrap();
    assert_eq!(start.elapsed(), 3 * SECOND, "two seconds for the first wave, not three");
    assert!(runtime.is_ready());
    assert_eq!(log.take(), ["+database", "+cache", "cache up", "database up", "+server", "server up"]);
    let ended = runtime.shutdown().await;
    assert!(ended.is_clean(), "{ended}");
    assert_eq!(log.take(), ["-server", "-cache", "-database"]);
    assert_eq!(runtime.readiness().status, Status::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_failed_step_stops_the_started_ones_and_later_steps_do_not_start() {
    let log = Log::default();
    let runtime = Runtime::builder()
        .step(log.step("first", MS))
        .wave([log.step("second", SECOND), failing("broken")])
        .step(log.step("third", MS))
        .build()
        .unwrap();
    let error = runtime.start().await.unwrap_err();
    assert_eq!(error.failures.len(), 1);
    assert_eq!(error.to_string(), "the service did not start\n  step broken: no such table");
    let expected = ["+first", "first up", "+second", "second up", "-second", "-first"];
    assert_eq!(log.take(), expected, "a step of the same wave is stopped too");
    assert!(!runtime.is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_step_that_hangs_at_start_or_stop_is_abandoned_and_reported() {
    let hung = Step::new("hung").on_start(pending::<io::Result<()>>);
    let start = Instant::now();
    let error = Runtime::builder().step(hung).build().unwrap().start().await.unwrap_err();
    assert_eq!(start.elapsed(), 10 * SECOND, "the default");
    assert_eq!(error.failures[0].kind, StepErrorKind::Abandoned(10 * SECOND));

    let log = Log::default();
    let emitted = Arc::new(Mutex::new(Vec::new()));
    let record = emitted.clone();
    let hung = Step::new("hung").on_stop(pending::<io::Result<()>>).timeout(2 * SECOND);
    let panics = Step::new("panics").on_stop(|| -> std::future::Ready<io::Result<()>> {
        std::panic::resume_unwind(Box::new("skips the panic hook"))
    });
    let runtime = Runtime::builder()
        .step(log.step("first", MS))
        .wave([hung, panics])
        .step_timeout(SECOND)
        .on_event(move |event| {
            if let EventKind::StepFailed { step, reason } = event.kind {
                record.lock().unwrap().push(format!("{step}: {reason}"));
            }
        })
        .build()
        .unwrap();
    runtime.start().await.unwrap();
    let ended = runtime.shutdown().await;
    assert_eq!(ended.elapsed, 2 * SECOND + MS, "the earlier wave is stopped nevertheless");
    let kinds: Vec<_> = ended.failures.into_iter().map(|failure| failure.kind).collect();
    assert_eq!(kinds, [StepErrorKind::Abandoned(2 * SECOND), StepErrorKind::Panicked]);
    assert_eq!(*emitted.lock().unwrap(), ["hung: not done after 2s, abandoned", "panics: it panicked"]);
    assert_eq!(log.take().last().unwrap(), "-first");
}

#[tokio::test(start_paused = true)]
async fn a_background_step_receives_the_stop_signal_and_is_awaited() {
    let done = Arc::new(AtomicBool::new(false));
    let finished = done.clone();
    let server = Step::background("server", |_, stop| async move {
        stop.wait().await;
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
async fn work_in_flight_is_drained_before_any_step_is_stopped() {
    let log = Log::default();
    let runtime = Runtime::builder().step(log.step("pool", MS)).build().unwrap();
    runtime.start().await.unwrap();
    let (gate, written) = (runtime.gate().clone(), log.clone());
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
    assert_eq!((runtime.is_draining(), runtime.is_ready()), (true, false));
    let readiness = runtime.readiness();
    assert_eq!((readiness.status, readiness.in_flight), (Status::Draining, 1));
    let ended = shutdown.await.unwrap();
    request.await.unwrap().unwrap();
    assert_eq!((ended.drained.in_flight, ended.drained.leftovers), (1, 0));
    assert_eq!(log.take(), ["+pool", "pool up", "request done", "-pool"]);
}

#[tokio::test(start_paused = true)]
async fn the_drain_timeout_ends_the_wait_and_a_second_shutdown_returns_the_same_result() {
    let log = Log::default();
    let runtime = Runtime::builder().step(log.step("pool", MS)).drain_timeout(2 * SECOND).build().unwrap();
    runtime.start().await.unwrap();
    let gate = runtime.gate().clone();
    let request = tokio::spawn(async move { gate.run(pending::<()>()).await });
    tokio::task::yield_now().await;
    let (one, two) = tokio::join!(runtime.shutdown(), runtime.shutdown());
    assert_eq!(one, two);
    assert_eq!((one.drained.leftovers, one.elapsed), (1, 2 * SECOND + MS));
    assert!(request.await.unwrap().is_err());
    assert_eq!(runtime.shutdown().await, one);
    assert_eq!(log.take(), ["+pool", "pool up", "-pool"], "stopped once");
}

#[tokio::test(start_paused = true)]
async fn calls_are_accepted_during_the_pre_drain_delay() {
    let runtime = Runtime::builder().pre_drain_delay(5 * SECOND).build().unwrap();
    runtime.start().await.unwrap();
    let shutdown = tokio::spawn({
        let runtime = runtime.clone();
        async move { runtime.shutdown().await }
    });
    sleep(4 * SECOND).await;
    assert!(runtime.is_draining() && runtime.gate().run(async {}).await.is_ok());
    assert_eq!(shutdown.await.unwrap().elapsed, 5 * SECOND);
    assert!(runtime.gate().run(async {}).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn the_first_signal_drains_and_the_second_ends_the_shutdown_at_once() {
    let runtime = Runtime::builder().build().unwrap();
    let ended = runtime.run_until(sleep(SECOND), pending()).await.unwrap();
    assert!(ended.is_clean());

    let runtime = Runtime::builder().build().unwrap();
    let gate = runtime.gate().clone();
    tokio::spawn(async move { gate.run(pending::<()>()).await });
    let ended = runtime.run_until(sleep(SECOND), sleep(2 * SECOND)).await.unwrap();
    assert_eq!((ended.forced, ended.elapsed), (true, SECOND), "measured from the first signal");
}

#[tokio::test(start_paused = true)]
async fn a_signal_during_the_start_stops_the_started_steps() {
    let log = Log::default();
    let runtime = Runtime::builder().step(log.step("quick", MS)).step(log.step("slow", 5 * SECOND)).build().unwrap();
    let ended = runtime.run_until(sleep(SECOND), pending()).await.unwrap();
    assert!(ended.is_clean(), "{ended}");
    sleep(10 * SECOND).await;
    assert_eq!(log.take(), ["+quick", "quick up", "+slow", "-quick"], "the start of the slow step was cancelled");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_can_be_requested_by_the_service_itself() {
    let runtime = Runtime::builder().build().unwrap();
    let inside = runtime.clone();
    tokio::spawn(async move {
        sleep(SECOND).await;
        inside.request_shutdown();
    });
    assert!(runtime.run_until(pending(), pending()).await.unwrap().is_clean());
    assert_eq!(Duration::ZERO, runtime.shutdown().await.drained.elapsed);
}

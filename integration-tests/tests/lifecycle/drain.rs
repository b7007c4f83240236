//! Drains after SIGTERM, under load.

use std::time::Duration;

use phalanx_integration_tests::lifecycle_process::{ProcessEvent, Role};
use phalanx_integration_tests::replica::Moment;
use phalanx_testkit::server::RedisProcess;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::harness::{HttpResponse, LifecycleProcess, connect, fleet, get, send};

const CALLERS: usize = 1_000;

/// The longest time from the end of the drain window to the exit.
const SLACK: Duration = Duration::from_millis(100);

fn role(call: Duration, drain_timeout: Duration) -> Role {
    Role::Serve { fleet: None, callers: 0, call, drain_timeout }
}

async fn listening(process: &LifecycleProcess) -> u16 {
    let port = |event: &ProcessEvent| if let ProcessEvent::Listening(port) = event { Some(*port) } else { None };
    process.until(port).await.1
}

/// Starts a thousand calls, waits until all are in flight, and returns them.
async fn thousand(port: u16) -> JoinSet<HttpResponse> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let stream = connect(port).await;
        callers.spawn(get(stream, "/work"));
    }
    all_in_flight(port).await;
    callers
}

async fn all_in_flight(port: u16) {
    let all = format!(r#"{{"status":"ready","in_flight":{CALLERS}}}"#);
    let mut last = None;
    for _ in 0..500 {
        let ready = get(connect(port).await, "/readyz").await;
        if ready.body == all {
            return;
        }
        last = Some(ready);
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{last:?} instead of {all}");
}

/// Waits for the exit. Returns in-flight calls, leftovers, the drain time, and the time from the signal to the exit.
async fn end(process: &LifecycleProcess, signalled: Moment) -> (u64, u64, Duration, Duration) {
    let ended = |event: &ProcessEvent| match event {
        ProcessEvent::Drained { in_flight, leftovers, elapsed } => Some((*in_flight, *leftovers, *elapsed)),
        _ => None,
    };
    let (_, (in_flight, leftovers, elapsed)) = process.until(ended).await;
    assert_eq!(process.next_event().await, None);
    (in_flight, leftovers, elapsed, signalled.elapsed())
}

async fn statuses(mut callers: JoinSet<HttpResponse>) -> Vec<u16> {
    let mut statuses = Vec::new();
    while let Some(answer) = callers.join_next().await {
        statuses.push(answer.unwrap().status);
    }
    statuses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_calls_in_flight_none_is_lost_and_new_ones_are_rejected_with_retry_after() {
    let window = Duration::from_secs(20);
    let process = LifecycleProcess::start(&role(Duration::from_secs(8), window));
    let port = listening(&process).await;
    let callers = thousand(port).await;
    let signalled = Moment::now();
    process.0.terminate();
    // Once the signal has been received, every new call is rejected.
    let rejected = loop {
        let new = tokio::spawn(get(connect(port).await, "/work"));
        if let Ok(answer) = timeout(Duration::from_millis(500), new).await {
            break answer.unwrap();
        }
    };
    assert_eq!((rejected.status, &*rejected.body), (503, "draining"));
    assert_eq!(rejected.retry_after.as_deref(), Some("1"));
    let ready = get(connect(port).await, "/readyz").await;
    assert!(ready.status == 503 && ready.body.starts_with(r#"{"status":"draining""#), "{ready:?}");
    assert_eq!(get(connect(port).await, "/livez").await.status, 200, "a draining process must stay live");

    let statuses = statuses(callers).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), CALLERS);
    let (in_flight, leftovers, elapsed, gone) = end(&process, signalled).await;
    println!("{in_flight} in flight, {leftovers} left, drained and stopped in {elapsed:?}, gone after {gone:?}");
    assert!(in_flight >= CALLERS as u64 && leftovers == 0);
    assert!(gone < window, "it waited for the end of the window");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_outlast_the_window_are_cancelled_and_their_callers_get_503() {
    let window = Duration::from_secs(1);
    let process = LifecycleProcess::start(&role(Duration::from_secs(50), window));
    let callers = thousand(listening(&process).await).await;
    let signalled = Moment::now();
    process.0.terminate();
    let statuses = statuses(callers).await;
    assert!(statuses.iter().all(|status| *status == 503), "cancelled with 503: {statuses:?}");
    let (in_flight, leftovers, elapsed, gone) = end(&process, signalled).await;
    println!("{in_flight} in flight, {leftovers} left, drained and stopped in {elapsed:?}, gone after {gone:?}");
    assert_eq!((in_flight, leftovers), (CALLERS as u64, CALLERS as u64));
    // Writing a thousand responses takes time on a busy machine; the next test checks the exact bound.
    assert!(elapsed >= window && gone < window + Duration::from_secs(10), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_thousand_calls_left_the_process_exits_within_100_ms_of_the_window() {
    let (call, window) = (Duration::from_secs(50), Duration::from_secs(1));
    let process = LifecycleProcess::start(&Role::Serve { fleet: None, callers: CALLERS, call, drain_timeout: window });
    all_in_flight(listening(&process).await).await;
    let signalled = Moment::now();
    process.0.terminate();
    let (in_flight, leftovers, elapsed, gone) = end(&process, signalled).await;
    println!("{in_flight} in flight, {leftovers} left, drained and stopped in {elapsed:?}, gone after {gone:?}");
    assert_eq!((in_flight, leftovers), (CALLERS as u64, CALLERS as u64));
    assert!(elapsed >= window && elapsed <= window + SLACK, "{elapsed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_nothing_in_flight_it_exits_at_once_and_a_second_signal_ends_a_drain() {
    let process = LifecycleProcess::start(&role(Duration::from_secs(50), Duration::from_secs(50)));
    listening(&process).await;
    let signalled = Moment::now();
    process.0.terminate();
    let (in_flight, leftovers, elapsed, _) = end(&process, signalled).await;
    assert_eq!((in_flight, leftovers), (0, 0));
    assert!(elapsed < SLACK, "{elapsed:?}");

    let process = LifecycleProcess::start(&role(Duration::from_secs(50), Duration::from_secs(50)));
    let port = listening(&process).await;
    let mut stuck = connect(port).await;
    send(&mut stuck, "/work").await;
    let in_flight = async |wanted: &str| {
        while !get(connect(port).await, "/readyz").await.body.contains(wanted) {
            sleep(Duration::from_millis(2)).await;
        }
    };
    in_flight(r#""in_flight":1"#).await;
    process.0.terminate();
    in_flight("draining").await;
    let signalled = Moment::now();
    process.0.terminate();
    assert_eq!(process.next_event().await, None, "it exits without a report");
    assert!(signalled.elapsed() < Duration::from_secs(5), "{:?}", signalled.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_redis_does_not_delay_a_drain() {
    let redis = RedisProcess::start().await;
    let fleet = Some(fleet(&redis.url()));
    let process = LifecycleProcess::start(&Role::Serve {
        fleet,
        callers: 0,
        call: SLACK / 100,
        drain_timeout: Duration::from_secs(5),
    });
    let port = listening(&process).await;
    assert_eq!(get(connect(port).await, "/work").await.status, 200);
    redis.stop();
    let signalled = Moment::now();
    process.0.terminate();
    let (_, leftovers, elapsed, gone) = end(&process, signalled).await;
    println!("with a hung Redis: drained and stopped in {elapsed:?}, gone after {gone:?}");
    assert_eq!(leftovers, 0);
    assert!(elapsed <= SLACK, "{elapsed:?}");
}

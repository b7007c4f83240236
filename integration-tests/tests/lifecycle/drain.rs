//! SIGTERM under load.

use std::time::Duration;

use phalanx_integration_tests::life::{Role, Said};
use phalanx_integration_tests::replica::Moment;
use phalanx_integration_tests::server::Spawned;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::kit::{Answer, Life, ask, connect, fleet, send};

const CALLERS: usize = 1_000;

/// The bar for everything that comes after the window.
const SLACK: Duration = Duration::from_millis(100);

fn role(call: Duration, drain_timeout: Duration) -> Role {
    Role::Serve { fleet: None, callers: 0, call, drain_timeout }
}

async fn listening(life: &Life) -> u16 {
    let port = |said: &Said| if let Said::Listening(port) = said { Some(*port) } else { None };
    life.until(port).await.1
}

/// Has a thousand calls in flight; their answers.
async fn thousand(port: u16) -> JoinSet<Answer> {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let stream = connect(port).await;
        callers.spawn(ask(stream, "/work"));
    }
    all_in_flight(port).await;
    callers
}

async fn all_in_flight(port: u16) {
    let all = format!(r#"{{"status":"ready","in_flight":{CALLERS}}}"#);
    let mut last = None;
    for _ in 0..500 {
        let ready = ask(connect(port).await, "/readyz").await;
        if ready.body == all {
            return;
        }
        last = Some(ready);
        sleep(Duration::from_millis(10)).await;
    }
    panic!("not {all}, but {last:?}");
}

/// What it said at its end, and how long after the signal the process was gone.
async fn end(life: &Life, signalled: Moment) -> (u64, u64, Duration, Duration) {
    let ended = |said: &Said| match said {
        Said::Ended { in_flight, leftovers, elapsed } => Some((*in_flight, *leftovers, *elapsed)),
        _ => None,
    };
    let (_, (in_flight, leftovers, elapsed)) = life.until(ended).await;
    assert_eq!(life.said().await, None);
    (in_flight, leftovers, elapsed, signalled.elapsed())
}

async fn statuses(mut callers: JoinSet<Answer>) -> Vec<u16> {
    let mut statuses = Vec::new();
    while let Some(answer) = callers.join_next().await {
        statuses.push(answer.unwrap().status);
    }
    statuses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_calls_in_flight_none_is_lost_and_new_ones_are_told_when_to_come_back() {
    let window = Duration::from_secs(20);
    let life = Life::begin(&role(Duration::from_secs(8), window));
    let port = listening(&life).await;
    let callers = thousand(port).await;
    let signalled = Moment::now();
    life.0.term();
    // It may take a moment until the signal is heard; from then on every new call is rejected.
    let rejected = loop {
        let new = tokio::spawn(ask(connect(port).await, "/work"));
        if let Ok(answer) = timeout(Duration::from_millis(500), new).await {
            break answer.unwrap();
        }
    };
    assert_eq!((rejected.status, &*rejected.body), (503, "draining"));
    assert_eq!(rejected.retry_after.as_deref(), Some("1"));
    let ready = ask(connect(port).await, "/readyz").await;
    assert!(ready.status == 503 && ready.body.starts_with(r#"{"status":"draining""#), "{ready:?}");
    assert_eq!(ask(connect(port).await, "/livez").await.status, 200, "it must not be killed for draining");

    let statuses = statuses(callers).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), CALLERS);
    let (in_flight, leftovers, elapsed, gone) = end(&life, signalled).await;
    println!("{in_flight} in flight, {leftovers} left, drained and stopped in {elapsed:?}, gone after {gone:?}");
    assert!(in_flight >= CALLERS as u64 && leftovers == 0);
    assert!(gone < window, "it did not wait for the window to end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_outlasts_the_window_is_cancelled_and_its_callers_are_told_so() {
    let window = Duration::from_secs(1);
    let life = Life::begin(&role(Duration::from_secs(50), window));
    let callers = thousand(listening(&life).await).await;
    let signalled = Moment::now();
    life.0.term();
    let statuses = statuses(callers).await;
    assert!(statuses.iter().all(|status| *status == 503), "cancelled, and told so");
    let (in_flight, leftovers, elapsed, gone) = end(&life, signalled).await;
    println!("{in_flight} in flight, {leftovers} left, drained and stopped in {elapsed:?}, gone after {gone:?}");
    assert_eq!((in_flight, leftovers), (CALLERS as u64, CALLERS as u64));
    // Writing a thousand answers takes a busy machine its time; the bar is the next test's.
    assert!(elapsed >= window && gone < window + Duration::from_secs(10), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_thousand_calls_left_the_process_is_gone_a_tenth_of_a_second_after_the_window() {
    let (call, window) = (Duration::from_secs(50), Duration::from_secs(1));
    let life = Life::begin(&Role::Serve { fleet: None, callers: CALLERS, call, drain_timeout: window });
    all_in_flight(listening(&life).await).await;
    let signalled = Moment::now();
    life.0.term();
    let (in_flight, leftovers, elapsed, gone) = end(&life, signalled).await;
    println!("{in_flight} in flight, {leftovers} left, drained and stopped in {elapsed:?}, gone after {gone:?}");
    assert_eq!((in_flight, leftovers), (CALLERS as u64, CALLERS as u64));
    assert!(elapsed >= window && elapsed <= window + SLACK, "{elapsed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_nothing_in_flight_it_is_gone_at_once_and_a_second_signal_does_not_wait() {
    let life = Life::begin(&role(Duration::from_secs(50), Duration::from_secs(50)));
    listening(&life).await;
    let signalled = Moment::now();
    life.0.term();
    let (in_flight, leftovers, elapsed, _) = end(&life, signalled).await;
    assert_eq!((in_flight, leftovers), (0, 0));
    assert!(elapsed < SLACK, "{elapsed:?}");

    let life = Life::begin(&role(Duration::from_secs(50), Duration::from_secs(50)));
    let port = listening(&life).await;
    let mut stuck = connect(port).await;
    send(&mut stuck, "/work").await;
    let in_flight = async |wanted: &str| {
        while !ask(connect(port).await, "/readyz").await.body.contains(wanted) {
            sleep(Duration::from_millis(2)).await;
        }
    };
    in_flight(r#""in_flight":1"#).await;
    life.0.term();
    in_flight("draining").await;
    let signalled = Moment::now();
    life.0.term();
    assert_eq!(life.said().await, None, "it says nothing any more");
    assert!(signalled.elapsed() < Duration::from_secs(5), "{:?}", signalled.elapsed());
}

/// FAULTS G2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_keeps_no_drain_waiting() {
    let redis = Spawned::start().await;
    let fleet = Some(fleet(&redis.url()));
    let life =
        Life::begin(&Role::Serve { fleet, callers: 0, call: SLACK / 100, drain_timeout: Duration::from_secs(5) });
    let port = listening(&life).await;
    assert_eq!(ask(connect(port).await, "/work").await.status, 200);
    redis.stop();
    let signalled = Moment::now();
    life.0.term();
    let (_, leftovers, elapsed, gone) = end(&life, signalled).await;
    println!("with Redis hanging: drained and stopped in {elapsed:?}, gone after {gone:?}");
    assert_eq!(leftovers, 0);
    assert!(elapsed <= SLACK, "{elapsed:?}");
}

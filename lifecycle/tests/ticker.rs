//! Tickers on virtual time: jitter, backoff after a failure, and the drain.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed test panics, also in helpers

mod support;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx_core::drain::Gate;
use phalanx_core::retry::backoff::{Backoff, Jitter};
use phalanx_lifecycle::{Runtime, Ticker};
use support::{MS, SECOND};
use tokio::time::{Instant, sleep, timeout};

/// Returns when a replica with this seed ticks, within the given time.
async fn ticks(seed: u64, time: Duration) -> Vec<Duration> {
    let start = Instant::now();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let tick = move || {
        noted.lock().unwrap().push(start.elapsed());
        std::future::ready(io::Result::Ok(()))
    };
    let ticker = Ticker::every("relay", SECOND, tick).seed(seed);
    let _ = timeout(time, ticker.run(&Gate::default())).await;
    seen.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn every_interval_is_within_a_fifth_of_the_configured_one() {
    let ticks = ticks(7, 1_000 * SECOND).await;
    let intervals: Vec<_> = ticks.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Timers round up to whole milliseconds.
    assert!(intervals.iter().all(|interval| (800 * MS..=1_201 * MS).contains(interval)));
    let mean = (ticks[ticks.len() - 1] - ticks[0]).as_secs_f64() / intervals.len() as f64;
    assert!((mean - 1.0).abs() < 0.02, "{mean}");
    assert!(intervals.iter().max().unwrap().saturating_sub(*intervals.iter().min().unwrap()) > 300 * MS);
}

/// Fifty replicas start at the same moment. In lockstep, all fifty would tick within the same tenth of a second; spread
/// evenly, five would.
#[tokio::test(start_paused = true)]
async fn replicas_that_start_together_tick_apart_from_the_first_interval_on() {
    const REPLICAS: u64 = 50;
    let mut all = Vec::new();
    let replicas: Vec<_> = (0..REPLICAS).map(|seed| tokio::spawn(ticks(seed, 120 * SECOND))).collect();
    for replica in replicas {
        all.extend(replica.await.unwrap());
    }
    all.sort();
    let crowd = |from: Duration, to: Duration| {
        let windows = all.iter().filter(|at| (from..to).contains(at));
        windows.map(|at| all.iter().filter(|other| (*at..*at + 100 * MS).contains(other)).count()).max().unwrap()
    };
    let (first, later) = (crowd(Duration::ZERO, 10 * SECOND), crowd(60 * SECOND, 119 * SECOND));
    println!("of {REPLICAS} replicas, at most {first} ticked within a tenth of a second at first, {later} later");
    assert!(first <= 17 && later <= 17, "{first} and {later} of {REPLICAS} in a tenth of an interval");
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_fails_or_panics_is_retried_after_a_backoff() {
    let count = Arc::new(AtomicU32::new(0));
    let times = Arc::new(Mutex::new(Vec::new()));
    let (ticked, noted) = (count.clone(), times.clone());
    let tick = move || {
        noted.lock().unwrap().push(Instant::now());
        let number = ticked.fetch_add(1, Ordering::Relaxed);
        async move {
            match number {
                0 => Err(io::Error::other("no such queue")),
                1 => std::panic::resume_unwind(Box::new("skips the panic hook")),
                _ => Ok(()),
            }
        }
    };
    let backoff = Backoff::exponential(10 * SECOND).max(60 * SECOND).jitter(Jitter::None);
    let ticker = Ticker::every("relay", SECOND, tick).backoff(backoff).seed(1);
    let _ = timeout(34 * SECOND, ticker.run(&Gate::default())).await;
    let times = times.lock().unwrap();
    let pauses: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64().round()).collect();
    assert_eq!(pauses[..3], [10.0, 20.0, 1.0]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_the_running_tick_and_lets_no_other_begin() {
    let (begun, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (beginning, ending) = (begun.clone(), done.clone());
    let tick = move || {
        let (begun, done) = (beginning.clone(), ending.clone());
        async move {
            begun.fetch_add(1, Ordering::Relaxed);
            sleep(3 * SECOND).await;
            done.fetch_add(1, Ordering::Relaxed);
            io::Result::Ok(())
        }
    };
    let runtime = Runtime::builder().ticker(Ticker::every("relay", SECOND, tick).seed(3)).build().unwrap();
    runtime.start().await.unwrap();
    sleep(2 * SECOND).await;
    let ended = runtime.shutdown().await;
    assert!(ended.is_clean() && ended.drained.in_flight == 1, "{ended}");
    sleep(60 * SECOND).await;
    assert_eq!((begun.load(Ordering::Relaxed), done.load(Ordering::Relaxed)), (1, 1));
}

//! Callers in a closed loop: each makes its next call when the last one has ended.
//!
//! A heat is a short run of so many callers: some warm-up, then a span in which calls count. Latencies are sampled, so
//! that the clock costs every contender the same little.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::sleep;
use std::time::Duration;

use quanta::Clock;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::contender::Caller;

const WARMING_UP: u8 = 0;
const COUNTING: u8 = 1;
const OVER: u8 = 2;

/// Before calls count: as long as the slowest contender takes for a few calls of each caller.
const WARM_UP: Duration = Duration::from_millis(60);

/// With more callers than this only every [`SAMPLED`]th call is timed: two looks at the clock would show.
const ALL_TIMED: usize = 16;
const SAMPLED: u64 = 8;

/// What one heat came to.
#[derive(Debug, Default)]
pub(crate) struct Heat {
    pub(crate) calls_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Calls that did not come out as the case means to measure.
    pub(crate) astray: u64,
    pub(crate) calls: u64,
}

/// What one caller has seen.
#[derive(Default)]
struct Seen {
    calls: u64,
    astray: u64,
    nanoseconds: Vec<u32>,
}

/// Lets `callers` of them call for `span`.
pub(crate) fn heat<C: Caller>(runtime: &Runtime, callers: usize, span: Duration, caller: impl Fn(usize) -> C) -> Heat {
    let (phase, clock) = (Arc::new(AtomicU8::new(WARMING_UP)), Clock::new());
    let every = if callers <= ALL_TIMED { 1 } else { SAMPLED };
    let start = |number| runtime.spawn(closed_loop(caller(number), phase.clone(), clock.clone(), every));
    let tasks: Vec<_> = (0..callers).map(start).collect();
    sleep(WARM_UP);
    let begun = clock.raw();
    phase.store(COUNTING, Ordering::Relaxed);
    sleep(span);
    phase.store(OVER, Ordering::Relaxed);
    let took = clock.delta(begun, clock.raw());
    summary(runtime.block_on(all(tasks)), took)
}

async fn closed_loop<C: Caller>(mut caller: C, phase: Arc<AtomicU8>, clock: Clock, every: u64) -> Seen {
    let (mut seen, mut turn) = (Seen::default(), 0);
    loop {
        turn += 1;
        let sent = (turn % every == 0).then(|| clock.raw());
        let as_meant = caller.call().await;
        match phase.load(Ordering::Relaxed) {
            WARMING_UP => continue,
            COUNTING => {}
            _ => return seen,
        }
        seen.calls += 1;
        seen.astray += u64::from(!as_meant);
        if let Some(sent) = sent {
            seen.nanoseconds.push(u32::try_from(clock.delta_as_nanos(sent, clock.raw())).unwrap_or(u32::MAX));
        }
    }
}

async fn all(tasks: Vec<JoinHandle<Seen>>) -> Seen {
    let mut all = Seen::default();
    for task in tasks {
        // A task that panicked has made no call that counts; its message is on the screen.
        let seen = task.await.unwrap_or(Seen { calls: 1, astray: 1, ..Seen::default() });
        all.calls += seen.calls;
        all.astray += seen.astray;
        all.nanoseconds.extend(seen.nanoseconds);
    }
    all
}

fn summary(mut seen: Seen, took: Duration) -> Heat {
    seen.nanoseconds.sort_unstable();
    let micros = |quantile| f64::from(quantile_of(&seen.nanoseconds, quantile)) / 1e3;
    Heat {
        calls_per_s: seen.calls as f64 / took.as_secs_f64(),
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        astray: seen.astray,
        calls: seen.calls,
    }
}

/// The value below which this share of the sorted values lies; the default value if there are none.
pub(crate) fn quantile_of<T: Copy + Default>(sorted: &[T], quantile: f64) -> T {
    let place = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::quantile_of;

    #[test]
    fn a_quantile_is_a_value_that_was_seen() {
        let values: Vec<u32> = (1..=100).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|q| quantile_of(&values, q)), [1, 50, 99, 100]);
        assert_eq!(quantile_of::<u32>(&[], 0.5), 0);
    }
}

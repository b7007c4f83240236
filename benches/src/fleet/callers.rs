//! Callers in a closed loop: each makes its next call when the previous one has ended.
//!
//! A load run has a warm-up and a span in which calls are counted. Latencies are sampled, to keep the cost of the clock
//! small.

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

/// The warm-up: long enough for a few calls of each caller of the slowest contender.
const WARM_UP: Duration = Duration::from_millis(60);

/// With more callers than this only every [`SAMPLED`]th call is timed, because reading the clock would affect the result.
const ALL_TIMED: usize = 16;
const SAMPLED: u64 = 8;

/// The results of one load run.
#[derive(Debug, Default)]
pub(crate) struct LoadRun {
    pub(crate) calls_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Calls with the expected result.
    pub(crate) calls: u64,
    /// Calls with another result, which are not counted in rates.
    pub(crate) unexpected: u64,
}

/// The results of one caller.
#[derive(Default)]
struct CallerStats {
    calls: u64,
    unexpected: u64,
    nanoseconds: Vec<u32>,
}

/// Selects the calls that are timed, and times them.
struct Timing {
    clock: Clock,
    turn: u64,
    every: u64,
}

impl Timing {
    fn start(&mut self) -> Option<u64> {
        self.turn += 1;
        self.turn.is_multiple_of(self.every).then(|| self.clock.raw())
    }

    fn since(&self, start: u64) -> u32 {
        u32::try_from(self.clock.delta_as_nanos(start, self.clock.raw())).unwrap_or(u32::MAX)
    }
}

/// Runs `callers` callers for `span`, after a warm-up.
pub(crate) fn run_load<C: Caller>(
    runtime: &Runtime,
    callers: usize,
    span: Duration,
    caller: impl Fn(usize) -> C,
) -> LoadRun {
    let (phase, clock) = (Arc::new(AtomicU8::new(WARMING_UP)), Clock::new());
    let every = if callers <= ALL_TIMED { 1 } else { SAMPLED };
    // Callers sample different calls, because each caller of a slow contender makes only a few.
    let first = |number: usize| number as u64 % every;
    let start = |number| {
        let timing = Timing { clock: clock.clone(), turn: first(number), every };
        runtime.spawn(closed_loop(caller(number), phase.clone(), timing))
    };
    let tasks: Vec<_> = (0..callers).map(start).collect();
    sleep(WARM_UP);
    let begun = clock.raw();
    phase.store(COUNTING, Ordering::Relaxed);
    sleep(span);
    phase.store(OVER, Ordering::Relaxed);
    let took = clock.delta(begun, clock.raw());
    summary(runtime.block_on(all(tasks)), took)
}

async fn closed_loop<C: Caller>(mut caller: C, phase: Arc<AtomicU8>, mut timing: Timing) -> CallerStats {
    let mut stats = CallerStats::default();
    loop {
        let sent = timing.start();
        let as_expected = caller.call().await;
        match phase.load(Ordering::Relaxed) {
            WARMING_UP => continue,
            COUNTING => {}
            _ => return stats,
        }
        *(if as_expected { &mut stats.calls } else { &mut stats.unexpected }) += 1;
        if let Some(sent) = sent {
            stats.nanoseconds.push(timing.since(sent));
        }
    }
}

async fn all(tasks: Vec<JoinHandle<CallerStats>>) -> CallerStats {
    let mut all = CallerStats::default();
    for task in tasks {
        // A panicked task counts as one unexpected call; its message was printed.
        let stats = task.await.unwrap_or(CallerStats { unexpected: 1, ..CallerStats::default() });
        all.calls += stats.calls;
        all.unexpected += stats.unexpected;
        all.nanoseconds.extend(stats.nanoseconds);
    }
    all
}

fn summary(mut stats: CallerStats, took: Duration) -> LoadRun {
    stats.nanoseconds.sort_unstable();
    let micros = |quantile| f64::from(quantile_of(&stats.nanoseconds, quantile)) / 1e3;
    LoadRun {
        calls_per_s: stats.calls as f64 / took.as_secs_f64(),
        p50_us: micros(0.5),
        p99_us: micros(0.99),
        unexpected: stats.unexpected,
        calls: stats.calls,
    }
}

/// Returns a quantile of sorted values; the default value if there are none.
pub(crate) fn quantile_of<T: Copy + Default>(sorted: &[T], quantile: f64) -> T {
    let index = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::quantile_of;

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values: Vec<u32> = (1..=100).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|q| quantile_of(&values, q)), [1, 50, 99, 100]);
        assert_eq!(quantile_of::<u32>(&[], 0.5), 0);
    }
}

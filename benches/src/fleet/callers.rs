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
    /// Calls that came out as the case means to measure, and all others, which are in no rate.
    pub(crate) calls: u64,
    pub(crate) astray: u64,
}

/// What one caller has seen.
#[derive(Default)]
struct Seen {
    calls: u64,
    astray: u64,
    nanoseconds: Vec<u32>,
}

/// Which calls are timed, and by what.
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

/// Lets `callers` of them call for `span`.
pub(crate) fn heat<C: Caller>(runtime: &Runtime, callers: usize, span: Duration, caller: impl Fn(usize) -> C) -> Heat {
    let (phase, clock) = (Arc::new(AtomicU8::new(WARMING_UP)), Clock::new());
    let every = if callers <= ALL_TIMED { 1 } else { SAMPLED };
    // Not all callers sample the same turns: of slow contenders each caller has but a few.
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

async fn closed_loop<C: Caller>(mut caller: C, phase: Arc<AtomicU8>, mut timing: Timing) -> Seen {
    let mut seen = Seen::default();
    loop {
        let sent = timing.start();
        let as_meant = caller.call().await;
        match phase.load(Ordering::Relaxed) {
            WARMING_UP => continue,
            COUNTING => {}
            _ => return seen,
        }
        *(if as_meant { &mut seen.calls } else { &mut seen.astray }) += 1;
        if let Some(sent) = sent {
            seen.nanoseconds.push(timing.since(sent));
        }
    }
}

async fn all(tasks: Vec<JoinHandle<Seen>>) -> Seen {
    let mut all = Seen::default();
    for task in tasks {
        // A task that panicked has made no call that counts; its message is on the screen.
        let seen = task.await.unwrap_or(Seen { astray: 1, ..Seen::default() });
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

//! CPU starvation: time in which a thread was ready to run and had no processor.
//!
//! Linux counts it for every thread in the second number of `schedstat`. This module samples it every millisecond for the
//! threads of the runtime, which shows how much of a caller's wait was caused by the machine. On a machine with free
//! processors it is zero, and nothing is subtracted from any wait.

use std::fs;
use std::path::PathBuf;
use std::sync::Once;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::ledger::Span;
use super::moment::Moment;

/// A time, and the total wait for a processor of each thread at that time.
type Sample = (Moment, Vec<Duration>);

/// Shorter waits are normal scheduling and are ignored.
const STARVATION: Duration = Duration::from_millis(1);

/// Empty unless [`watch`] was called.
static SAMPLES: Mutex<Vec<Sample>> = Mutex::new(Vec::new());

/// Starts sampling the runtime threads of this process and the main threads of other processes.
pub(super) fn watch(processes: &[u32]) {
    static WATCHING: Once = Once::new();
    let others = processes.iter().map(|process| PathBuf::from(format!("/proc/{process}/schedstat")));
    let threads: Vec<PathBuf> = threads_of_runtime().into_iter().chain(others).collect();
    WATCHING.call_once(|| {
        drop(thread::spawn(move || {
            loop {
                let sample = sample(&threads);
                SAMPLES.lock().push(sample);
                thread::sleep(Duration::from_millis(1));
            }
        }));
    });
}

fn threads_of_runtime() -> Vec<PathBuf> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten().map(|thread| thread.path());
    let is_runtimes =
        |thread: &PathBuf| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with("tokio"));
    threads.filter(is_runtimes).map(|thread| thread.join("schedstat")).collect()
}

/// Returns how much of a caller's wait for Redis was caused by the machine. When starvation makes a timer late, the store
/// extends the budget by a quarter, because the reply may have arrived unread; that extension is included.
pub(super) fn between(wait: Span, store_budget: Duration) -> Duration {
    let (starved, more) = (without_processor(wait), store_budget / 4);
    if starved < more { starved } else { (starved + more).min(wait.length()) }
}

/// Returns for how long at least one thread was ready and had no processor.
pub(super) fn without_processor(Span { from, to }: Span) -> Duration {
    let samples = SAMPLES.lock();
    let first = samples.partition_point(|(at, _)| *at <= from).saturating_sub(1);
    let last = samples.partition_point(|(at, _)| *at < to);
    let these = &samples[first..samples.len().min(last + 1)];
    let mut waits = Vec::new();
    for (before, after) in these.iter().zip(these.iter().skip(1)) {
        let gained = before.1.iter().zip(&after.1).map(|(before, after)| after.saturating_sub(*before));
        // The kernel counts a wait when it ends.
        waits.extend(gained.filter(|wait| *wait >= STARVATION).map(|wait| (after.0.before(wait), after.0)));
    }
    waits.sort_unstable();
    let (mut covered, mut sum) = (from, Duration::ZERO);
    for (begin, end) in waits.into_iter().map(|(begin, end)| (begin.max(from), end.min(to))) {
        sum += end.since(begin.max(covered));
        covered = covered.max(end);
    }
    sum
}

fn sample(threads: &[PathBuf]) -> Sample {
    let waited = |thread: &PathBuf| {
        let text = fs::read_to_string(thread).unwrap_or_default();
        Duration::from_nanos(text.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
    };
    (Moment::now(), threads.iter().map(waited).collect())
}

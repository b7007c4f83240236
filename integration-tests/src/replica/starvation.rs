//! Time that the machine did not give: a thread was ready to run, and there was no processor for it.
//!
//! Linux counts that for every thread, in the second number of its `schedstat`. It is written down every millisecond for
//! the threads of the runtime, so that it can be told how much of a caller's wait was the machine's doing. On a machine
//! that is not overcrowded that is nothing, and nothing is taken off any wait.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::moment::Moment;

/// What each thread had waited for a processor at a moment.
type Sample = (Moment, Vec<Duration>);

/// Shorter waits are everyday life.
const STARVATION: Duration = Duration::from_millis(1);

static THREADS: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten().map(|thread| thread.path());
    let is_runtimes =
        |thread: &PathBuf| fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.starts_with("tokio"));
    threads.filter(is_runtimes).map(|thread| thread.join("schedstat")).collect()
});

static SAMPLES: LazyLock<Mutex<Vec<Sample>>> = LazyLock::new(|| {
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_millis(1));
            let sample = sample();
            SAMPLES.lock().push(sample);
        }
    });
    Mutex::new(vec![sample()])
});

/// Begins to write it down.
pub(super) fn watch() {
    LazyLock::force(&SAMPLES);
}

/// How long one and the same thread of the runtime had to wait for a processor between two moments, whichever had to
/// wait longest.
pub(super) fn between(from: Moment, to: Moment) -> Duration {
    let now = sample();
    let samples = SAMPLES.lock();
    let first = samples.partition_point(|(at, _)| *at <= from).saturating_sub(1);
    let last = samples.partition_point(|(at, _)| *at < to);
    let reaching = samples.get(last).unwrap_or(&now); // none yet: then it is now
    let these: Vec<&Sample> = samples[first..last].iter().chain([reaching]).collect();
    let waited = |thread: usize| -> Duration {
        let gained = |pair: &[&Sample]| pair[1].1[thread].saturating_sub(pair[0].1[thread]);
        these.windows(2).map(gained).filter(|gained| *gained >= STARVATION).sum()
    };
    (0..now.1.len()).map(waited).max().unwrap_or_default()
}

fn sample() -> Sample {
    let waited = |thread: &PathBuf| {
        let text = fs::read_to_string(thread).unwrap_or_default();
        Duration::from_nanos(text.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
    };
    (Moment::now(), THREADS.iter().map(waited).collect())
}

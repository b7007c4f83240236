//! A contender: one implementation of a case, which makes a number of calls in a row.
//!
//! There are three ways to drive one; all contenders of a case use the same:
//!
//! - [`Contender::plain`]: a synchronous function;
//! - [`Contender::on_one_thread`]: a future polled in a loop on this thread, because the cost of the scheduler, equal for
//!   all, would hide the difference. Timers are tokio's;
//! - [`Runtimes::on_two_workers`]: 64 tasks on a runtime of two workers, with clones of one caller, which contend for one
//!   key or one service. The time of a call is the wall time of all calls divided by their number, scheduler included.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::{Builder, EnterGuard, Runtime};

/// The number of tasks that share one caller in cases whose name ends in `_64`.
const TASKS: u64 = 64;

/// Makes calls, one after the other.
pub(crate) trait Caller: Send + 'static {
    /// Makes one call. Returns true if it was admitted and succeeded, false if it was rejected.
    fn call(&mut self) -> impl Future<Output = bool> + Send;
}

/// The required result of every call of a case, so that a case cannot measure something else unnoticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// Every call is admitted and succeeds.
    Admitted,
    /// Every call is rejected before the operation starts.
    Rejected,
}

/// Makes the given number of calls and returns how many were admitted.
type Batch = Box<dyn FnMut(u64) -> u64>;

/// One implementation of a case.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    expectation: Expectation,
    batch: Batch,
}

impl Contender {
    /// A contender whose call is a synchronous function that returns true if admitted.
    pub(crate) fn plain(name: &'static str, mut call: impl FnMut() -> bool + 'static) -> Self {
        Self::new(name, move |calls| (0..calls).map(|_| u64::from(black_box(call()))).sum())
    }

    /// A contender whose calls are awaited one after the other on the measuring thread.
    pub(crate) fn on_one_thread(name: &'static str, mut caller: impl Caller) -> Self {
        Self::new(name, move |calls| poll_until_ready(admitted(&mut caller, calls)))
    }

    /// The same contender, for a case in which every call must be rejected.
    pub(crate) fn rejecting(self) -> Self {
        Self { expectation: Expectation::Rejected, ..self }
    }

    /// Makes `calls` calls. Returns an error if the results are not the expected ones.
    pub(crate) fn run(&mut self, calls: u64) -> Result<(), String> {
        let admitted = (self.batch)(calls);
        let expected = match self.expectation {
            Expectation::Admitted => calls,
            Expectation::Rejected => 0,
        };
        if admitted == expected {
            return Ok(());
        }
        Err(format!("{}: {admitted} of {calls} calls were admitted, {expected} should have been", self.name))
    }

    fn new(name: &'static str, batch: impl FnMut(u64) -> u64 + 'static) -> Self {
        Self { name, expectation: Expectation::Admitted, batch: Box::new(batch) }
    }
}

/// The tokio runtimes behind the contenders.
pub(crate) struct Runtimes {
    /// Never run: it provides timers to the measuring thread, without workers that a timer could wake.
    one_thread: Runtime,
    two_workers: Arc<Runtime>,
}

impl Runtimes {
    pub(crate) fn start() -> std::io::Result<Self> {
        Ok(Self {
            one_thread: Builder::new_current_thread().enable_time().build()?,
            two_workers: Arc::new(Builder::new_multi_thread().worker_threads(2).enable_time().build()?),
        })
    }

    /// Lets the measuring thread use timers while the guard is held.
    pub(crate) fn enter_one_thread(&self) -> EnterGuard<'_> {
        self.one_thread.enter()
    }

    /// A contender whose calls are made by 64 tasks, each with a clone of the caller that `build` returns.
    ///
    /// `build` runs inside the runtime, because some peers spawn a task or create a timer when they are built.
    pub(crate) fn on_two_workers<C: Caller + Clone>(&self, name: &'static str, build: impl FnOnce() -> C) -> Contender {
        let runtime = Arc::clone(&self.two_workers);
        let caller = {
            let _inside = runtime.enter();
            build()
        };
        Contender::new(name, move |calls| {
            let tasks: Vec<_> = (0..TASKS)
                .map(|task| {
                    let mut caller = caller.clone();
                    let share = calls / TASKS + u64::from(task < calls % TASKS);
                    runtime.spawn(async move { admitted(&mut caller, share).await })
                })
                .collect();
            runtime.block_on(async {
                let mut sum = 0;
                for task in tasks {
                    // A task that panicked admitted nothing, which `run` then reports.
                    sum += task.await.unwrap_or(0);
                }
                sum
            })
        })
    }
}

async fn admitted(caller: &mut impl Caller, calls: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..calls {
        admitted += u64::from(caller.call().await);
    }
    admitted
}

/// Polls until ready. No measured future waits for another task, so no waker is needed.
pub(crate) fn poll_until_ready<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}

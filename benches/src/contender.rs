//! A contender: one implementation of a case, which can be asked for a number of calls in a row.
//!
//! Three ways to drive one, and the same way for all contenders of a case:
//!
//! - [`Contender::plain`]: a function that is no future;
//! - [`Contender::on_one_thread`]: a future polled in a loop on this thread, so that the scheduler, which
//!   costs every library the same, does not water down the ratio. Timers are tokio's all the same;
//! - [`Runtimes::on_two_workers`]: 64 tasks on a runtime of two workers, clones of one caller, so that they
//!   contend for one key or one service. A call's time is then the wall time of all of them by their number,
//!   and the scheduler, which two workers cannot do without, is part of it.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::{Builder, EnterGuard, Runtime};

/// How many tasks share one caller in the cases whose name ends in `_64`.
const TASKS: u64 = 64;

/// Something that can make one call, and the next one when that has ended.
pub(crate) trait Caller: Send + 'static {
    /// Makes one call; true if it was admitted and answered, false if it was rejected.
    fn call(&mut self) -> impl Future<Output = bool> + Send;
}

/// What has to come of every call of a case: a case that measures something else must not pass for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// Every call is admitted and answered.
    Admitted,
    /// Every call is rejected before the operation is started.
    Rejected,
}

/// Makes the given number of calls and says how many of them were admitted.
type Batch = Box<dyn FnMut(u64) -> u64>;

/// One implementation of a case.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    expectation: Expectation,
    batch: Batch,
}

impl Contender {
    /// A contender whose call is a plain function: true if admitted.
    pub(crate) fn plain(name: &'static str, mut call: impl FnMut() -> bool + 'static) -> Self {
        Self::new(name, move |calls| (0..calls).map(|_| u64::from(black_box(call()))).sum())
    }

    /// A contender whose calls are awaited one after the other on the measuring thread.
    pub(crate) fn on_one_thread(name: &'static str, mut caller: impl Caller) -> Self {
        Self::new(name, move |calls| poll_to_the_end(admitted(&mut caller, calls)))
    }

    /// The same contender for a case in which every call is to be rejected.
    pub(crate) fn rejecting(self) -> Self {
        Self { expectation: Expectation::Rejected, ..self }
    }

    /// Makes `calls` calls, or says what went otherwise than the case means to measure.
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
    /// Never run: it lends its timers to the measuring thread, and has no worker that could be woken for one.
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

    /// Lets the measuring thread use timers; hold the guard while contenders are built and run.
    pub(crate) fn enter_one_thread(&self) -> EnterGuard<'_> {
        self.one_thread.enter()
    }

    /// A contender whose calls are made by 64 tasks, each with its own clone of what `build` returns.
    ///
    /// `build` runs inside the runtime, because some peers spawn a task or create a timer when built.
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

/// Polls until ready. Nothing measured here waits for anything but itself, so there is no one to be woken by.
pub(crate) fn poll_to_the_end<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}

//! Pooled timers.
//!
//! Registering a timer with tokio's timer wheel and cancelling it takes the wheel's lock twice, which is most of the cost
//! of a timeout and the only point of contention between threads. A timer that did not fire, as nearly all do not, is
//! therefore not cancelled: it goes back to a pool of its thread, still registered, and the next call reuses it. It is set
//! a little too early then and may fire before the deadline of that call; only then is it reset. So a busy thread uses the
//! wheel about once per timeout and not twice per call. An idle timer costs one expiry, and at worst one spurious wake-up
//! of the task whose waker it still holds.
//!
//! A timer belongs to the runtime it was registered with; a thread that sees another runtime starts a new pool.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::task;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

/// The most idle timers of a thread: enough for the calls that wait on one worker, and 150 KiB at most.
const MAX_IDLE: usize = 1024;

/// The number of tasks of which a thread remembers the runtime.
const KNOWN_TASKS: usize = 64;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool::EMPTY) };
}

struct Pool {
    runtime: Option<runtime::Id>,
    #[allow(clippy::vec_box)] // boxed, so that a future that needs no timer stays small
    idle: Vec<Box<Armed>>,
    /// Tasks of this runtime, each at the index of its id. A task never changes its runtime, so a known task saves a call
    /// of `Handle::current`, whose reference count all threads contend for.
    known: [Option<task::Id>; KNOWN_TASKS],
}

impl Default for Pool {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Pool {
    const EMPTY: Self = Self { runtime: None, idle: Vec::new(), known: [None; KNOWN_TASKS] };

    /// Returns the runtime of the current task, and makes the pool one of that runtime. A pool of another runtime is
    /// returned for the caller to drop after the borrow: dropping a timer drops a waker, which may run code that uses the
    /// pool.
    fn runtime(&mut self) -> (runtime::Id, Option<Self>) {
        let task = task::try_id();
        if let (Some(task), Some(runtime)) = (task, self.runtime)
            && self.known[index_of(task)] == Some(task)
        {
            return (runtime, None);
        }
        let runtime = Handle::current().id();
        let stale = (self.runtime != Some(runtime))
            .then(|| std::mem::replace(self, Self { runtime: Some(runtime), ..Self::EMPTY }));
        if let Some(task) = task {
            self.known[index_of(task)] = Some(task);
        }
        (runtime, stale)
    }
}

/// A timer that is registered when it is first polled.
#[derive(Default)]
pub(crate) struct Timer(Option<Box<Armed>>);

struct Armed {
    runtime: runtime::Id,
    deadline: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Timer {
    /// Becomes ready `limit` after the first poll.
    pub(crate) fn poll_after(&mut self, limit: Duration, cx: &mut Context<'_>) -> Poll<()> {
        let armed = self.0.get_or_insert_with(|| Armed::new(limit));
        loop {
            // It must fire even if the operation has used up the task's cooperative budget.
            ready!(pin!(unconstrained(armed.sleep.as_mut())).poll(cx));
            if Instant::now() >= armed.deadline {
                return Poll::Ready(());
            }
            armed.sleep.as_mut().reset(armed.deadline);
        }
    }

    /// Returns the timer to the pool, so that the next poll starts a new one.
    #[inline]
    pub(crate) fn disarm(&mut self) {
        if let Some(armed) = self.0.take() {
            put_back(armed);
        }
    }
}

impl Armed {
    fn new(limit: Duration) -> Box<Self> {
        let now = Instant::now();
        // A deadline beyond the range of the clock becomes one in a month.
        let deadline = now.checked_add(limit).unwrap_or(now + Duration::from_secs(30 * 24 * 3_600));
        let ((runtime, stale), pooled) = POOL.with_borrow_mut(|pool| (pool.runtime(), pool.idle.pop()));
        drop(stale);
        match pooled {
            // A task may have entered another runtime: a new timer belongs to that one.
            None => {
                let sleep = Box::pin(sleep_until(deadline));
                Box::new(Self { runtime: Handle::current().id(), deadline, sleep })
            }
            Some(mut armed) => {
                if armed.sleep.deadline() > deadline {
                    armed.sleep.as_mut().reset(deadline);
                }
                (armed.runtime, armed.deadline) = (runtime, deadline);
                armed
            }
        }
    }
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        self.disarm();
    }
}

fn put_back(armed: Box<Armed>) {
    let mut armed = Some(armed);
    // A thread that is ending has no pool: the timer is dropped then, but not while the pool is borrowed.
    let _ = POOL.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        if pool.idle.len() < MAX_IDLE
            && let Some(armed) = armed.take_if(|armed| pool.runtime == Some(armed.runtime))
        {
            pool.idle.push(armed);
        }
    });
}

/// Returns the index of a task among the known ones: its id, which is the only input of its hash.
fn index_of(task: task::Id) -> usize {
    #[derive(Default)]
    struct Number(u64);
    impl Hasher for Number {
        fn finish(&self) -> u64 {
            self.0
        }
        fn write(&mut self, bytes: &[u8]) {
            self.0 = bytes.iter().fold(self.0, |number, byte| number.rotate_left(8) ^ u64::from(*byte));
        }
        fn write_u64(&mut self, number: u64) {
            self.0 = number;
        }
    }
    BuildHasherDefault::<Number>::default().hash_one(task) as usize % KNOWN_TASKS
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Timer").field(&self.0.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    async fn wait(duration: Duration) {
        let mut timer = Timer::default();
        poll_fn(|cx| timer.poll_after(duration, cx)).await;
    }

    fn idle() -> usize {
        POOL.with_borrow(|pool| pool.idle.len())
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_did_not_fire_is_reused_and_fires_on_time() {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for _ in 0..10 {
            let mut timer = Timer::default();
            assert!(timer.poll_after(Duration::from_secs(1), &mut cx).is_pending());
        }
        assert_eq!(idle(), 1);
        let start = Instant::now();
        wait(Duration::from_secs(5)).await;
        assert_eq!(start.elapsed(), Duration::from_secs(5));
        wait(Duration::from_millis(10)).await;
        assert_eq!(start.elapsed(), Duration::from_millis(5_010), "also earlier than it was set before");
        assert_eq!(idle(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_fired_while_idle_can_be_reused() {
        wait(Duration::from_millis(1)).await;
        tokio::time::advance(Duration::from_secs(60)).await;
        let start = Instant::now();
        wait(Duration::from_millis(250)).await;
        assert_eq!(start.elapsed(), Duration::from_millis(250));
    }

    #[test]
    fn a_timer_of_another_runtime_is_never_used() {
        let run = |work: fn()| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async move {
                work();
                wait(Duration::from_secs(1)).await;
            });
        };
        run(|| {});
        assert_eq!(idle(), 1);
        run(|| {
            POOL.with_borrow_mut(|pool| assert_eq!((pool.runtime().0, pool.idle.len()), (Handle::current().id(), 0)))
        });
        assert_eq!(idle(), 1);
    }

    #[test]
    fn a_known_task_is_not_taken_for_one_of_another_runtime() {
        for _ in 0..3 {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            runtime.unwrap().block_on(async {
                for _ in 0..200 {
                    tokio::spawn(async {
                        let runtime = POOL.with_borrow_mut(|pool| pool.runtime().0);
                        assert_eq!(runtime, Handle::current().id());
                        wait(Duration::from_millis(1)).await;
                    })
                    .await
                    .unwrap();
                }
            });
        }
    }

    #[test]
    fn a_timer_created_inside_another_runtime_does_not_outlive_that_runtime() {
        let build = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (home, away) = (build(), build());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        home.block_on(async {
            let guest = away.handle().clone();
            let visit = tokio::spawn(async move {
                wait(Duration::from_millis(1)).await; // the task is known from here on
                let _ = POOL.take();
                POOL.with_borrow_mut(|pool| pool.runtime().0);
                let _away = guest.enter();
                let mut timer = Timer::default();
                assert!(
                    timer
                        .poll_after(Duration::from_secs(9), &mut Context::from_waker(std::task::Waker::noop()))
                        .is_pending()
                );
            });
            visit.await.unwrap();
            away.shutdown_background();
            let mut timer = Timer::default();
            assert!(timer.poll_after(Duration::from_secs(9), &mut cx).is_pending(), "it does not panic");
        });
    }

    #[test]
    fn a_timer_may_be_dropped_on_another_thread_after_its_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let timer = runtime.block_on(async {
            let mut timer = Timer::default();
            assert!(poll_fn(|cx| Poll::Ready(timer.poll_after(Duration::from_secs(9), cx))).await.is_pending());
            timer
        });
        drop(runtime);
        std::thread::spawn(move || drop(timer)).join().unwrap();
    }
}

//! Timers that are used again.
//!
//! Registering with tokio's timer wheel and leaving it again takes its lock twice, which is most of what a time limit
//! costs and all of what threads fight over. A limit that was not needed, as nearly all are not, is therefore not
//! cancelled: its timer goes back to a pool of the thread, still registered, and the next call takes it as it is. Set
//! a little too early, it may fire before the call's time is up; only then is it moved to where it belongs. So a busy
//! thread touches the wheel about once per time limit and not twice per call, and an idle timer costs one turn of the
//! wheel and at worst one wake-up too many of a task (whose waker it holds until then).
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

/// Idle timers a thread keeps: enough for what waits at a time on one worker, and 150 KiB at most.
const KEPT: usize = 1024;

/// Tasks a thread remembers to be of its pool's runtime.
const KNOWN: usize = 64;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool::EMPTY) };
}

struct Pool {
    runtime: Option<runtime::Id>,
    #[allow(clippy::vec_box)] // boxed for its holder's sake: a future that waits for nothing should stay small
    idle: Vec<Box<Armed>>,
    /// Tasks of this runtime, each in the place that its number says. A task never changes its runtime, so knowing the
    /// task saves asking for the runtime, whose reference count all threads would fight over.
    known: [Option<task::Id>; KNOWN],
}

impl Default for Pool {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Pool {
    const EMPTY: Self = Self { runtime: None, idle: Vec::new(), known: [None; KNOWN] };

    /// The runtime of the running task; the pool is of that runtime afterwards. What it held of another one comes back
    /// to be dropped outside: dropping a timer drops a waker, and so may run code that comes back here.
    fn runtime(&mut self) -> (runtime::Id, Option<Self>) {
        let task = task::try_id();
        if let (Some(task), Some(runtime)) = (task, self.runtime)
            && self.known[place(task)] == Some(task)
        {
            return (runtime, None);
        }
        let runtime = Handle::current().id();
        let stale = (self.runtime != Some(runtime))
            .then(|| std::mem::replace(self, Self { runtime: Some(runtime), ..Self::EMPTY }));
        if let Some(task) = task {
            self.known[place(task)] = Some(task);
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
    /// Ready `limit` after it was first polled.
    pub(crate) fn poll_after(&mut self, limit: Duration, cx: &mut Context<'_>) -> Poll<()> {
        let armed = self.0.get_or_insert_with(|| Armed::new(limit));
        loop {
            // It must fire even when the operation used up the task's cooperative budget.
            ready!(pin!(unconstrained(armed.sleep.as_mut())).poll(cx));
            if Instant::now() >= armed.deadline {
                return Poll::Ready(());
            }
            armed.sleep.as_mut().reset(armed.deadline);
        }
    }

    /// Ready to be set anew.
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
        // Further away than the clock can count is as good as a month.
        let deadline = now.checked_add(limit).unwrap_or(now + Duration::from_secs(30 * 24 * 3_600));
        let ((runtime, stale), pooled) = POOL.with_borrow_mut(|pool| (pool.runtime(), pool.idle.pop()));
        drop(stale);
        match pooled {
            // A task can have entered another runtime: what is made here is of that one, whatever task asked.
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
    // A thread that is ending has no pool any more: the timer is dropped like any other, but not while the pool is
    // borrowed.
    let _ = POOL.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        if pool.idle.len() < KEPT
            && let Some(armed) = armed.take_if(|armed| pool.runtime == Some(armed.runtime))
        {
            pool.idle.push(armed);
        }
    });
}

/// The place of a task among the known ones: its number, which is all that its hash feeds.
fn place(task: task::Id) -> usize {
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
    BuildHasherDefault::<Number>::default().hash_one(task) as usize % KNOWN
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
    async fn a_timer_that_was_not_needed_is_used_again_and_fires_when_it_should() {
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
        assert_eq!(start.elapsed(), Duration::from_millis(5_010), "also when it is sooner than it was set before");
        assert_eq!(idle(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_fired_while_idle_is_as_good_as_new() {
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
    fn a_timer_made_while_the_task_visits_another_runtime_does_not_outlive_that_one() {
        let build = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (home, away) = (build(), build());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        home.block_on(async {
            let guest = away.handle().clone();
            let visit = tokio::spawn(async move {
                wait(Duration::from_millis(1)).await; // the task is known from now on
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
            assert!(timer.poll_after(Duration::from_secs(9), &mut cx).is_pending(), "and does not panic");
        });
    }

    #[test]
    fn a_timer_may_be_dropped_anywhere() {
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

//! Several threads on one bulkhead: the limit is never exceeded, and no slot and no wake-up is lost.
//!
//! Random tasks on four worker threads: calls are dropped at any time, tasks are aborted, the limit changes, more critical
//! calls displace others, and hedges take slots too. Schedules differ from run to run; the invariants do not.

#![allow(clippy::expect_used, clippy::unwrap_used)] // a failed expectation panics, in helpers too

mod support;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use phalanx::describe::Outcome;
use phalanx::policy::BudgetSpec;
use phalanx::store::Rng;
use phalanx::*;
use support::*;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};

const THREADS: usize = 4;

/// Far more than any test takes: a task that has not ended by then is stuck.
const GENEROUS: Duration = Duration::from_secs(120);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(THREADS).enable_time().build().unwrap()
}

/// A number below `bound`.
fn below(rng: &Rng, bound: u32) -> u32 {
    (rng.unit() * f64::from(bound)) as u32
}

/// The current and the largest number of concurrent runs of the operation.
#[derive(Default)]
struct Inside {
    now: AtomicU32,
    most: AtomicU32,
}

struct Present(Arc<Inside>);

impl Inside {
    fn come(self: &Arc<Self>) -> Present {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        Present(self.clone())
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Polls a future at most `polls` times and then drops it.
async fn at_most<T>(polls: u32, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut left) = (pin!(work), polls);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            if left == 0 {
                cx.waker().wake_by_ref(); // to be dropped soon, even without a wake-up
            }
            Poll::Pending
        }
    })
    .await
}

/// Asserts that no call runs or waits, and that new calls get all slots at once.
fn assert_idle(pipeline: &Pipeline, inside: &Inside) {
    let view = pipeline.bulkhead().unwrap();
    assert_eq!((view.in_use, view.waiting, inside.now.load(Ordering::SeqCst)), (0, 0, 0), "{view:?}");
    let mut calls: Vec<_> = (0..view.limit).map(|_| Box::pin(pipeline.run(hang))).collect();
    calls.iter_mut().for_each(|call| assert!(poll_once(call.as_mut()).is_pending()));
    assert_eq!(pipeline.available_slots(), Some(0));
    drop(calls);
    assert_eq!(pipeline.available_slots(), Some(view.limit));
}

/// Changes the limit on a separate thread until the returned closure is called.
fn moving(module: &ResilienceModule, policy: impl Fn(u32) -> Policy + Send + 'static, most: u32) -> impl FnOnce() {
    let (module, stop) = (module.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let thread = thread::spawn(move || {
        let mut retunes = 0_u32;
        while !stopped.load(Ordering::Relaxed) {
            module.retune(policy(1 + retunes * 2 % most)).unwrap();
            retunes += 1;
            thread::yield_now();
        }
        module.retune(policy(most)).unwrap();
        assert!(retunes > 0);
    });
    move || {
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    }
}

/// Awaits all tasks and returns how many were not aborted.
fn join(runtime: &Runtime, tasks: Vec<JoinHandle<()>>) -> usize {
    runtime.block_on(async {
        let all = async {
            let mut ended = 0;
            for task in tasks {
                match task.await {
                    Ok(()) => ended += 1,
                    Err(error) => assert!(error.is_cancelled(), "{error}"),
                }
            }
            ended
        };
        timeout(GENEROUS, all).await.expect("all tasks end")
    })
}

#[test]
fn no_wake_up_is_lost_while_calls_are_dropped_and_the_limit_changes() {
    const MOST: u32 = 3;
    let (tasks, each) = (300, 200);
    let policy = |limit| Policy::named("p").bulkhead(BulkheadSpec::fixed(limit).queue(1_000));
    let module = ResilienceModule::in_memory().policy(policy(MOST)).build().unwrap();
    let (pipeline, inside) = (Arc::new(module.pipeline("p", ()).unwrap()), Arc::new(Inside::default()));
    let (runtime, served) = (runtime(), Arc::new(AtomicU64::new(0)));
    let stop = moving(&module, policy, MOST);
    let spawn = |number: u64| {
        let (pipeline, inside, served) = (pipeline.clone(), inside.clone(), served.clone());
        runtime.spawn(async move {
            let rng = Rng::seeded(number);
            for _ in 0..each {
                let operation = || async {
                    let _present = inside.come();
                    yield_now().await;
                    Ok::<_, Failure>(1)
                };
                // Every other call is dropped at some poll. All others are served: the queue has room for all of them
                // and has no timeout.
                if below(&rng, 2) == 0 {
                    at_most(below(&rng, 4), pipeline.run(operation)).await;
                }
                assert_eq!(pipeline.run(operation).await, Ok(1));
                served.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let ended = join(&runtime, (0..tasks).map(spawn).collect());
    stop();
    assert_eq!((ended as u64, served.load(Ordering::Relaxed)), (tasks, tasks * each));
    assert!(inside.most.load(Ordering::SeqCst) <= MOST);
    assert_idle(&pipeline, &inside);
}

/// A policy with all stages that use slots: a bulkhead with one to five slots and a queue that sheds.
fn everything(limit: u32) -> Policy {
    let bulkhead = BulkheadSpec::fixed(limit).queue(12).queue_timeout(20 * MS).queue_target(5 * MS).prioritized();
    Policy::named("p")
        .bulkhead(bulkhead)
        .breaker(BreakerSpec::failure_ratio(1.0).min_throughput(1_000_000).count_attempts())
        .retry(RetrySpec::attempts(2).backoff(Backoff::constant(MS)))
        .hedge(HedgeSpec::after(MS).max_attempts(3).budget(BudgetSpec::ratio(1.0).min_per_second(1_000)))
        .idempotent()
        .timeout(5 * MS)
}

/// An operation that is fast, slow, hangs or fails at random.
async fn random_operation(inside: &Arc<Inside>, chance: u32) -> Result<u32, Failure> {
    let _present = inside.come();
    match chance {
        0..40 => yield_now().await,
        40..70 => sleep(3 * MS).await,
        70..80 => hang().await.map(drop)?,
        80..90 => return Err(BROKEN),
        _ => {}
    }
    Ok(1)
}

#[test]
fn random_calls_of_all_kinds_release_every_slot() {
    const MOST: u32 = 5;
    let (tasks, each) = (400, 40);
    let hedges = Arc::new(AtomicU64::new(0));
    let (count, ledger) = (hedges.clone(), Ledger::default());
    let watch = move |event: &Event<'_>| {
        count.fetch_add(u64::from(matches!(event.kind, EventKind::Hedge { .. })), Ordering::Relaxed);
    };
    let module = ResilienceModule::in_memory().seed(7).observer(watch).observer(ledger.clone());
    let module = module.policy(everything(3)).build().unwrap();
    let (pipeline, inside) = (Arc::new(module.pipeline("p", ()).unwrap()), Arc::new(Inside::default()));
    let (runtime, begun, rng) = (runtime(), Arc::new(AtomicU64::new(0)), Rng::seeded(42));
    let stop = moving(&module, everything, MOST);
    let spawn = |number: u64| {
        let (pipeline, inside, begun) = (pipeline.clone(), inside.clone(), begun.clone());
        runtime.spawn(async move {
            let rng = Arc::new(Rng::seeded(number));
            for _ in 0..each {
                let criticality =
                    [Criticality::BestEffort, Criticality::Normal, Criticality::Critical][below(&rng, 3) as usize];
                let (calls, inside, chance) = (pipeline.clone(), inside.clone(), rng.clone());
                let operation = || random_operation(&inside, below(&chance, 100));
                begun.fetch_add(1, Ordering::Relaxed);
                let call = calls.call().criticality(criticality).run(operation);
                let _ = match below(&rng, 4) {
                    0 => at_most(1 + below(&rng, 5), call).await,
                    1 => timeout(MS * below(&rng, 8), call).await.ok(),
                    _ => Some(call.await),
                };
            }
        })
    };
    let tasks: Vec<_> = (0..tasks).map(spawn).collect();
    for task in tasks.iter().step_by(3) {
        thread::sleep(Duration::from_micros(below(&rng, 2_000).into()));
        task.abort();
    }
    let (all, ended) = (tasks.len(), join(&runtime, tasks));
    stop();
    assert!(ended < all, "some were aborted");
    assert!(inside.most.load(Ordering::SeqCst) <= MOST, "{:?}", inside.most);
    assert!(hedges.load(Ordering::Relaxed) > 0, "hedges were sent");
    let ends = ledger.read().finished;
    assert_eq!(ends.len() as u64, begun.load(Ordering::Relaxed), "one end each");
    for outcome in [None, Some(Outcome::Success), Some(Outcome::Failure), Some(Outcome::Cancelled)] {
        assert!(ends.contains(&outcome), "no call ended in {outcome:?}");
    }
    let _inside = runtime.enter();
    assert_idle(&pipeline, &inside);
}

//! The simulated dependency of a policy: latencies, a capacity with a queue, writes, and the fault of the step.

use std::collections::HashMap;
use std::future::{Future, pending, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use phalanx::store::Rng;
use phalanx::{Clock, Kind};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

use super::fault::Fault;
use super::workload::Workload;

/// The share of the attempts that take the whole deadline while `deadline=…` is injected.
const HANGING_SHARE: f64 = 0.1;

/// A service that applies writes: the one behind the policy in a step with the fault `lost answer`.
///
/// By default a step has a simulated one. [`Player::writes`](super::Player::writes) sets another: the service that is to be
/// tested, behind its idempotency layer.
pub trait Writes: Send + Sync + 'static {
    /// Sends one write. Every attempt of the same write has the same key.
    fn write(&self, key: u64) -> Pin<Box<dyn Future<Output = Result<(), Kind>> + Send>>;

    /// Returns how often the write with this key has taken effect.
    fn effects(&self, key: u64) -> u32;
}

/// Writes in memory, with or without recognition of repeated keys.
#[derive(Debug)]
pub(super) struct SimulatedWrites {
    pub(super) idempotency_keys: bool,
    effects: Mutex<HashMap<u64, u32>>,
}

impl SimulatedWrites {
    pub(super) fn new(idempotency_keys: bool) -> Self {
        Self { idempotency_keys, effects: Mutex::default() }
    }
}

impl Writes for SimulatedWrites {
    fn write(&self, key: u64) -> Pin<Box<dyn Future<Output = Result<(), Kind>> + Send>> {
        let mut effects = self.effects.lock();
        let effects = effects.entry(key).or_default();
        if *effects == 0 || !self.idempotency_keys {
            *effects += 1;
        }
        Box::pin(ready(Ok(())))
    }

    fn effects(&self, key: u64) -> u32 {
        self.effects.lock().get(&key).copied().unwrap_or_default()
    }
}

/// The latency as a function of a quantile: straight lines through the minimum, median, p95 and maximum. No logarithm or
/// exponential, so that it is the same on every machine. In whole milliseconds: timers are no finer, and would round up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency([(f64, f64); 4]);

impl Latency {
    pub(super) fn of(workload: &Workload) -> Self {
        let (median, p95) = (workload.latency.as_secs_f64(), workload.latency_p95.as_secs_f64());
        Self([(0.0, median / 2.0), (0.5, median), (0.95, p95), (1.0, p95 * 1.25)])
    }

    /// Returns the latency at this quantile.
    fn at(&self, quantile: f64) -> Duration {
        let line = self.0.windows(2).find(|line| quantile <= line[1].0);
        let seconds = match line {
            Some([(q0, low), (q1, high)]) => low + (high - low) * (quantile - q0) / (q1 - q0),
            _ => self.0[3].1,
        };
        Duration::from_millis((seconds * 1e3).round().max(1.0) as u64)
    }

    /// Returns the mean, in seconds.
    fn mean(&self) -> f64 {
        const POINTS: u32 = 1_000;
        let sum: f64 = (0..POINTS).map(|it| self.at((f64::from(it) + 0.5) / f64::from(POINTS)).as_secs_f64()).sum();
        sum / f64::from(POINTS)
    }
}

/// One call, as the dependency sees it.
#[derive(Debug, Default)]
pub(super) struct CallTag {
    /// The key of a write.
    pub(super) key: u64,
    /// When the deadline of the request passes, in microseconds of the step.
    pub(super) deadline: Option<u64>,
    /// Attempts so far.
    pub(super) attempts: AtomicU32,
}

/// The dependency behind one policy.
pub(super) struct Dependency {
    clock: Clock,
    rng: Rng,
    latency: Latency,
    /// One permit for each call that it serves at a time.
    servers: Arc<Semaphore>,
    /// Calls per second that it completes.
    capacity: f64,
    fault: Fault,
    /// When the fault is injected, in microseconds of the step.
    window: std::ops::Range<u64>,
    pub(super) writes: Option<Arc<dyn Writes>>,
    pub(super) queue: Gauge,
    pub(super) hops: Hops,
}

/// A number and its peak.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    now: AtomicU32,
    peak: AtomicU32,
}

/// Counts one until it is dropped.
pub(super) struct Counted<'a>(&'a Gauge);

impl Gauge {
    pub(super) fn enter(&self) -> Counted<'_> {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak.fetch_max(now, Ordering::Relaxed);
        Counted(self)
    }

    pub(super) fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    pub(super) fn peak(&self) -> u32 {
        self.peak.load(Ordering::Relaxed)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Attempts under a deadline.
#[derive(Debug, Default)]
pub(super) struct Hops {
    attempts: AtomicU64,
    /// The longest that an attempt ran past the deadline of its request, in microseconds.
    overrun: AtomicU64,
}

impl Hops {
    pub(super) fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::Relaxed)
    }

    pub(super) fn overrun(&self) -> Duration {
        Duration::from_micros(self.overrun.load(Ordering::Relaxed))
    }
}

impl Dependency {
    pub(super) fn new(
        clock: Clock,
        rng: Rng,
        workload: &Workload,
        replicas: u32,
        fault: Fault,
        window: std::ops::Range<u64>,
        writes: Option<Arc<dyn Writes>>,
    ) -> Self {
        let latency = Latency::of(workload);
        let capacity = workload.capacity.unwrap_or(2.0 * workload.rate * f64::from(replicas));
        // At most a million servers: a capacity of 100,000 calls per second of a minute each would need six.
        let mean = latency.mean();
        let server_count = (capacity * mean).ceil().clamp(1.0, 1e6) as u32;
        Self {
            clock,
            rng,
            latency,
            servers: Arc::new(Semaphore::new(server_count as usize)),
            capacity: f64::from(server_count) / mean,
            fault,
            window,
            writes,
            queue: Gauge::default(),
            hops: Hops::default(),
        }
    }

    /// Calls per second that it completes.
    pub(super) const fn capacity(&self) -> f64 {
        self.capacity
    }

    /// Answers one attempt of a call, or fails it, as the fault demands.
    pub(super) async fn attempt(&self, call: &CallTag) -> Result<(), Kind> {
        let now = self.clock.now().as_micros();
        let _hop = Hop { dependency: self, deadline: call.deadline };
        let first = call.attempts.fetch_add(1, Ordering::Relaxed) == 0;
        let fault = Some(self.fault).filter(|_| self.window.contains(&now));
        let quantile = self.rng.unit();
        match fault {
            Some(Fault::Errors { share }) if self.rng.unit() < share => {
                // A failing server answers as fast as a healthy one, and queues nothing.
                sleep(self.latency.at(quantile)).await;
                return Err(Kind::Infrastructure);
            }
            Some(Fault::Deadline { total }) if self.rng.unit() < HANGING_SHARE => sleep(total).await,
            _ => self.serve(self.latency.at(quantile)).await,
        }
        match fault {
            Some(Fault::Latency { add, quantile: from }) if quantile >= from => sleep(add).await,
            _ => {}
        }
        if let Some(writes) = &self.writes {
            writes.write(call.key).await?;
            if let Some(Fault::LostAnswer { share }) = fault
                && first
                && self.rng.unit() < share
            {
                pending::<()>().await;
            }
        }
        Ok(())
    }

    /// Waits for a server, and for the time it works. A caller that gives up leaves the queue; work that has begun is
    /// finished without it.
    async fn serve(&self, service: Duration) {
        let permit = match self.servers.clone().try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                let _queued = self.queue.enter();
                self.servers.clone().acquire_owned().await.ok() // never closed
            }
        };
        let mut work = Work { permit, until: Instant::now() + service };
        sleep_until(work.until).await;
        work.permit = None;
    }
}

/// Work of a server.
struct Work {
    permit: Option<OwnedSemaphorePermit>,
    until: Instant,
}

impl Drop for Work {
    fn drop(&mut self) {
        if let (Some(permit), Ok(runtime)) = (self.permit.take(), Handle::try_current()) {
            let until = self.until;
            runtime.spawn(async move {
                sleep_until(until).await;
                drop(permit);
            });
        }
    }
}

/// An attempt under a deadline, until it ends or is cut off.
struct Hop<'a> {
    dependency: &'a Dependency,
    deadline: Option<u64>,
}

impl Drop for Hop<'_> {
    fn drop(&mut self) {
        if let Some(deadline) = self.deadline {
            let hops = &self.dependency.hops;
            hops.attempts.fetch_add(1, Ordering::Relaxed);
            let overrun = self.dependency.clock.now().as_micros().saturating_sub(deadline);
            hops.overrun.fetch_max(overrun, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latency_has_the_configured_quantiles() {
        let latency = Latency::of(&Workload::default());
        let millis = |quantile| latency.at(quantile).as_micros();
        assert_eq!([0.0, 0.5, 0.95, 1.0].map(millis), [10_000, 20_000, 40_000, 50_000]);
        // The areas below the three lines.
        let mean = 0.5 * 0.015 + 0.45 * 0.030 + 0.05 * 0.045;
        assert!((mean - latency.mean()).abs() < 0.000_1, "{mean} {}", latency.mean());
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_has_begun_is_finished_without_its_caller_and_a_queued_caller_leaves() {
        let workload = Workload { capacity: Some(0.01), ..Workload::default() };
        let fault = Fault::Overload { factor: 1.0 };
        let dependency = Dependency::new(Clock::tokio(), Rng::seeded(1), &workload, 1, fault, 0..0, None);
        assert_eq!(dependency.servers.available_permits(), 1);
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis(1));
        let start = Instant::now();
        assert!(tokio::time::timeout(ms, dependency.serve(second)).await.is_err(), "cut off while it is served");
        assert!(tokio::time::timeout(ms, dependency.serve(second)).await.is_err(), "cut off in the queue");
        assert_eq!((dependency.queue.now(), dependency.queue.peak()), (0, 1));
        dependency.serve(second).await;
        assert_eq!(
            start.elapsed().as_millis(),
            2_000,
            "one second for the first, none for the second, one for the third"
        );
    }

    #[test]
    fn writes_are_recognized_by_their_key_only_if_keys_are_supported() {
        for (keys, effects) in [(true, 1), (false, 2)] {
            let writes = SimulatedWrites::new(keys);
            drop(writes.write(7));
            drop(writes.write(7));
            assert_eq!((writes.effects(7), writes.effects(8)), (effects, 0));
        }
    }
}

//! Periodic work with jitter, so that replicas do not do it in lockstep.
//!
//! The first tick comes at a random moment within the first interval, and every following interval is drawn between 80 %
//! and 120 % of the configured one. Replicas that start together therefore spread out and stay spread out. A tick that
//! fails or panics is retried after a backoff; only a drain ends the loop. A tick passes the runtime's gate like a call: a
//! drain waits for the running tick and lets no further one begin.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use phalanx_core::drain::Gate;
use phalanx_core::event::EventKind;
use phalanx_core::retry::backoff::{Backoff, Jitter};
use phalanx_core::rng::Rng;
use tokio::time::sleep;

use crate::step::{BoxError, Step};

/// The largest deviation of an interval, as a fraction of it.
const MAX_JITTER: f64 = 0.2;

type TickFuture = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;
type TickFn = Box<dyn Fn() -> TickFuture + Send + Sync>;

/// Periodic work with jitter. Add it with [`RuntimeBuilder::ticker`](crate::RuntimeBuilder::ticker).
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
/// use phalanx_lifecycle::{Runtime, Ticker};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ticks = Arc::new(AtomicU32::new(0));
/// let counter = ticks.clone();
/// let ticker = Ticker::every("refresh", Duration::from_secs(10), move || {
///     counter.fetch_add(1, Ordering::Relaxed);
///     std::future::ready(Ok::<_, Infallible>(()))
/// });
/// let runtime = Runtime::builder().ticker(ticker).build()?;
/// runtime.start().await?;
/// tokio::time::sleep(Duration::from_secs(100)).await;
/// assert!((8..=12).contains(&ticks.load(Ordering::Relaxed))); // every 8 to 12 seconds
/// # Ok(())
/// # }
/// ```
#[must_use = "a ticker does nothing until a runtime starts it"]
pub struct Ticker {
    name: String,
    interval: Duration,
    backoff: Backoff,
    rng: Rng,
    tick: TickFn,
}

impl Ticker {
    /// Creates a ticker that runs `tick` every `interval`, give or take 20 %.
    pub fn every<F, Fut, E>(name: impl Into<String>, interval: Duration, tick: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let backoff = Backoff::exponential(Duration::from_secs(1)).max(Duration::from_secs(60)).jitter(Jitter::Equal);
        let tick = move || -> TickFuture {
            let tick = tick();
            Box::pin(async move { tick.await.map_err(Into::into) })
        };
        Self { name: name.into(), interval, backoff, rng: Rng::from_entropy(), tick: Box::new(tick) }
    }

    /// Sets the wait after a failed tick. Default: exponential from 1 s to 60 s, with equal jitter.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Seeds the random intervals, for reproducible tests.
    pub fn seed(mut self, seed: u64) -> Self {
        self.rng = Rng::seeded(seed);
        self
    }

    /// Runs the ticker until the gate drains.
    pub async fn run(&self, gate: &Gate) {
        self.run_observed(gate, &|_| {}).await;
    }

    async fn run_observed(&self, gate: &Gate, emit: &(dyn Fn(EventKind<'_>) + Send + Sync)) {
        let (mut failures, mut last_delay) = (0, Duration::ZERO);
        sleep(self.rng.between(Duration::ZERO, self.interval)).await;
        loop {
            let tick = AssertUnwindSafe(async { (self.tick)().await }).catch_unwind();
            let failure = match gate.run(tick).await {
                Err(_draining) => return,
                Ok(Ok(Ok(()))) => None,
                Ok(Ok(Err(error))) => Some(error.to_string()),
                Ok(Err(_)) => Some("it panicked".to_owned()),
            };
            let pause = match failure {
                None => {
                    (failures, last_delay) = (0, Duration::ZERO);
                    self.rng.between(self.interval.mul_f64(1.0 - MAX_JITTER), self.interval.mul_f64(1.0 + MAX_JITTER))
                }
                Some(reason) => {
                    failures += 1;
                    emit(EventKind::StepFailed { step: &self.name, reason: &reason });
                    last_delay = self.backoff.delay(failures, last_delay, &self.rng);
                    last_delay
                }
            };
            sleep(pause).await;
        }
    }

    /// Converts the ticker into a background step that ends when its runtime drains.
    pub(crate) fn into_step(self) -> Step {
        let ticker = Arc::new(self);
        let name = ticker.name.clone();
        Step::background(name, move |context, stop| async move {
            let emit = |kind: EventKind<'_>| context.runtime.emit(kind);
            tokio::select! {
                () = ticker.run_observed(context.gate(), &emit) => {}
                () = stop.wait() => {}
            }
            Ok::<(), BoxError>(())
        })
    }
}

impl fmt::Debug for Ticker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticker").field("name", &self.name).field("interval", &self.interval).finish_non_exhaustive()
    }
}

//! Work at intervals, out of step with the same work on other replicas.
//!
//! The first tick comes at a moment of its own within the first interval, and every interval is drawn anew between
//! four and six fifths of the one asked for: so replicas that start together do not meet, and those that met part again.
//! A tick that fails or panics is tried again after a back-off, and nothing but a drain ends the loop. A tick comes in by
//! the gate like any call: a drain waits for it, and lets no other begin.

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

use crate::step::{Failure, Step};

/// How far an interval may be off, either way.
const JITTER: f64 = 0.2;

type Tick = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> + Send + Sync>;

/// Work at intervals. Give it to [`RuntimeBuilder::ticker`](crate::RuntimeBuilder::ticker).
#[must_use = "a ticker does nothing until a runtime starts it"]
pub struct Ticker {
    name: String,
    interval: Duration,
    backoff: Backoff,
    rng: Rng,
    tick: Tick,
}

impl Ticker {
    /// Work to be done every `interval`, give or take a fifth.
    pub fn every<F, Fut, E>(name: impl Into<String>, interval: Duration, tick: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        let backoff = Backoff::exponential(Duration::from_secs(1)).max(Duration::from_secs(60)).jitter(Jitter::Equal);
        let tick = move || -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> {
            let tick = tick();
            Box::pin(async move { tick.await.map_err(Into::into) })
        };
        Self { name: name.into(), interval, backoff, rng: Rng::from_entropy(), tick: Box::new(tick) }
    }

    /// How long to wait after a tick that failed. Default: 1 s, doubling up to a minute, half of it by chance.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// The seed of its chance, for repeatable runs.
    pub fn seed(mut self, seed: u64) -> Self {
        self.rng = Rng::seeded(seed);
        self
    }

    /// Ticks until the gate drains.
    pub async fn run(&self, gate: &Gate) {
        self.run_telling(gate, &|_| {}).await;
    }

    async fn run_telling(&self, gate: &Gate, tell: &(dyn Fn(EventKind<'_>) + Send + Sync)) {
        let (mut failed, mut before) = (0, Duration::ZERO);
        sleep(self.rng.between(Duration::ZERO, self.interval)).await;
        loop {
            let tick = AssertUnwindSafe(async { (self.tick)().await }).catch_unwind();
            let reason = match gate.run(tick).await {
                Err(_draining) => return,
                Ok(Ok(Ok(()))) => None,
                Ok(Ok(Err(failure))) => Some(failure.to_string()),
                Ok(Err(_)) => Some("it panicked".to_owned()),
            };
            let pause = match reason {
                None => {
                    (failed, before) = (0, Duration::ZERO);
                    self.rng.between(self.interval.mul_f64(1.0 - JITTER), self.interval.mul_f64(1.0 + JITTER))
                }
                Some(reason) => {
                    failed += 1;
                    tell(EventKind::StepFailed { step: &self.name, reason: &reason });
                    before = self.backoff.delay(failed, before, &self.rng);
                    before
                }
            };
            sleep(pause).await;
        }
    }

    /// As a step: a task that ends when its runtime drains.
    pub(crate) fn into_step(self) -> Step {
        let ticker = Arc::new(self);
        let name = ticker.name.clone();
        Step::background(name, move |scene, stopping| async move {
            let tell = |what: EventKind<'_>| scene.runtime.emit(what);
            tokio::select! {
                () = ticker.run_telling(scene.gate(), &tell) => {}
                () = stopping.wait() => {}
            }
            Ok::<(), Failure>(())
        })
    }
}

impl fmt::Debug for Ticker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticker").field("name", &self.name).field("interval", &self.interval).finish_non_exhaustive()
    }
}

//! The runtime of a replica: starts its steps, reports readiness, drains its calls and stops its steps.

mod builder;
mod report;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use phalanx_core::drain::Gate;
use phalanx_core::event::{EventKind, Observers};
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::{Instant, sleep};

pub use self::builder::RuntimeBuilder;
pub use self::report::{Shutdown, StartError};
use crate::module::Module;
use crate::readiness::{Readiness, Status};
use crate::step::StepContext;
use crate::waves::{StepFailure, Waves};

/// The runtime of a replica. Cheap to clone; clones share the same state.
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use phalanx_lifecycle::{Runtime, Step};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let connect = Step::new("connect").on_start(async || Ok::<_, Infallible>(()));
/// let runtime = Runtime::builder().step(connect).build()?;
///
/// runtime.start().await?;
/// assert!(runtime.is_ready());
///
/// let shutdown = runtime.shutdown().await; // a service calls `run_until_signal` instead of both
/// assert!(shutdown.is_clean() && !runtime.is_ready());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Runtime(Arc<RuntimeInner>);

struct RuntimeInner {
    waves: Waves,
    gate: Gate,
    modules: Vec<Box<dyn Module>>,
    observers: Observers,
    drain_timeout: Duration,
    pre_drain_delay: Duration,
    phase: watch::Sender<Phase>,
    shutdown_requested: Notify,
    shutdown: OnceCell<Shutdown>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Starting,
    Ready,
    Draining,
    Stopped,
}

impl Runtime {
    /// Returns a builder with the default settings.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Whether every step has started and no shutdown has begun.
    pub fn is_ready(&self) -> bool {
        self.phase() == Phase::Ready
    }

    /// Whether a shutdown has begun and not yet ended.
    pub fn is_draining(&self) -> bool {
        self.phase() == Phase::Draining
    }

    /// Returns the answer to a readiness check, with details.
    pub fn readiness(&self) -> Readiness {
        let status = match self.phase() {
            Phase::Ready => Status::Ready,
            Phase::Draining => Status::Draining,
            Phase::Starting | Phase::Stopped => Status::Unavailable,
        };
        let stores = self.0.modules.iter().filter_map(|module| module.store_mode()).collect();
        Readiness { status, stores, in_flight: self.0.gate.in_flight() }
    }

    /// Returns the gate that all guarded calls pass. Pass other requests and jobs through [`Gate::run`], so that a drain
    /// waits for them too.
    pub fn gate(&self) -> &Gate {
        &self.0.gate
    }

    /// Lets the modules connect, and starts the steps, wave after wave. If a step fails, the steps that had started are stopped again.
    ///
    /// # Errors
    /// Returns the steps that failed to start, and those that then failed to stop.
    pub async fn start(&self) -> Result<(), StartError> {
        self.0.modules.iter().for_each(|module| module.join());
        if let Err(failures) = self.0.waves.start(&self.step_context()).await {
            self.emit_failures(&failures);
            return Err(StartError { failures, rollback: self.roll_back().await });
        }
        self.0.phase.send_if_modified(|phase| std::mem::replace(phase, (*phase).max(Phase::Ready)) < Phase::Ready);
        Ok(())
    }

    /// Drains and stops: readiness becomes `draining`, new calls are rejected, calls in flight have `drain_timeout` to
    /// end, remaining calls are cancelled, the modules leave the fleet, and the steps are stopped in reverse order.
    ///
    /// Further calls wait for the same shutdown and return the same result.
    pub async fn shutdown(&self) -> Shutdown {
        self.0.shutdown.get_or_init(|| self.drain_and_stop()).await.clone()
    }

    /// Requests a shutdown, as if a signal had arrived, from a runtime in [`Runtime::run_until_signal`] or
    /// [`Runtime::run_until`].
    pub fn request_shutdown(&self) {
        self.0.shutdown_requested.notify_one();
    }

    /// Starts, waits for `first` to complete, and shuts down. If `second` completes during the shutdown, returns at once.
    ///
    /// # Errors
    /// See [`Runtime::start`].
    pub async fn run_until(
        &self,
        first: impl Future<Output = ()>,
        second: impl Future<Output = ()>,
    ) -> Result<Shutdown, StartError> {
        let mut first = pin!(first);
        tokio::select! {
            started = self.start() => started?,
            () = &mut first => return Ok(self.shutdown_or_force(second).await),
        }
        tokio::select! {
            () = first => {}
            () = self.0.shutdown_requested.notified() => {}
        }
        Ok(self.shutdown_or_force(second).await)
    }

    async fn shutdown_or_force(&self, force: impl Future<Output = ()>) -> Shutdown {
        let start = Instant::now();
        tokio::select! {
            shutdown = self.shutdown() => shutdown,
            () = force => {
                self.0.phase.send_replace(Phase::Stopped);
                Shutdown { forced: true, elapsed: start.elapsed(), ..Shutdown::default() }
            }
        }
    }

    async fn drain_and_stop(&self) -> Shutdown {
        let start = Instant::now();
        self.0.phase.send_replace(Phase::Draining);
        if !self.0.pre_drain_delay.is_zero() {
            // A load balancer sees the readiness change late; until then its requests are served.
            sleep(self.0.pre_drain_delay).await;
        }
        self.0.gate.begin();
        self.emit(EventKind::Draining { in_flight: self.0.gate.in_flight() });
        let drained = self.0.gate.drain(self.0.drain_timeout).await;
        self.emit(EventKind::Drained(drained));
        let failures = self.leave_and_stop().await;
        Shutdown { drained, failures, forced: false, elapsed: start.elapsed() }
    }

    /// Leaves the fleet and stops the started steps.
    async fn leave_and_stop(&self) -> Vec<StepFailure> {
        join_all(self.0.modules.iter().map(|module| module.leave())).await;
        let failures = self.0.waves.stop(&self.step_context()).await;
        self.emit_failures(&failures);
        self.0.phase.send_replace(Phase::Stopped);
        failures
    }

    async fn roll_back(&self) -> Vec<StepFailure> {
        self.0.gate.begin();
        self.leave_and_stop().await
    }

    fn emit_failures(&self, failures: &[StepFailure]) {
        for StepFailure { step, kind } in failures {
            self.emit(EventKind::StepFailed { step, reason: &kind.to_string() });
        }
    }

    /// Emits an event to the observers of the runtime and of its modules.
    pub(crate) fn emit(&self, kind: EventKind<'_>) {
        self.0.observers.emit_all(kind);
        self.0.modules.iter().for_each(|module| module.emit(kind));
    }

    fn step_context(&self) -> StepContext {
        StepContext { runtime: self.clone(), lock: None }
    }

    fn phase(&self) -> Phase {
        *self.0.phase.borrow()
    }

    /// Waits until the runtime has stopped.
    pub async fn stopped(&self) {
        let _ = self.0.phase.subscribe().wait_for(|phase| *phase == Phase::Stopped).await;
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("phase", &self.phase()).field("gate", &self.0.gate).finish_non_exhaustive()
    }
}

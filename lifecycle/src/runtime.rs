//! The runtime of a replica: starts its steps, says whether it is ready, drains its calls, stops its steps.

mod assembly;
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

pub use self::assembly::RuntimeBuilder;
pub use self::report::{Shutdown, StartError};
use crate::module::Module;
use crate::plan::{Plan, StepFailure};
use crate::readiness::{Readiness, Status};
use crate::step::StepContext;

/// The runtime. Cheap to clone; clones are the same runtime.
#[derive(Clone)]
pub struct Runtime(Arc<Shared>);

struct Shared {
    plan: Plan,
    gate: Gate,
    modules: Vec<Box<dyn Module>>,
    observers: Observers,
    drain_timeout: Duration,
    notice: Duration,
    phase: watch::Sender<Phase>,
    /// Somebody wants it to stop.
    asked: Notify,
    ended: OnceCell<Shutdown>,
}

/// Where a runtime is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Starting,
    Ready,
    Draining,
    Stopped,
}

impl Runtime {
    /// A runtime being put together.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// Whether calls should be sent here: every step has started, and nobody has asked it to stop.
    pub fn ready(&self) -> bool {
        self.phase() == Phase::Ready
    }

    /// Whether it is on its way out, and not yet gone.
    pub fn draining(&self) -> bool {
        self.phase() == Phase::Draining
    }

    /// What an orchestrator asks, with details.
    pub fn readiness(&self) -> Readiness {
        let status = match self.phase() {
            Phase::Ready => Status::Ready,
            Phase::Draining => Status::Draining,
            Phase::Starting | Phase::Stopped => Status::Unavailable,
        };
        let stores = self.0.modules.iter().filter_map(|module| module.store_mode()).collect();
        Readiness { status, stores, in_flight: self.0.gate.in_flight() }
    }

    /// The gate that all calls come in by. Requests and jobs that are no guarded calls can come in by it too, with
    /// [`Gate::run`].
    pub fn gate(&self) -> &Gate {
        &self.0.gate
    }

    /// Starts the steps, wave after wave. If one fails, those that had started are stopped again.
    ///
    /// # Errors
    /// The steps that failed, and those that failed to stop.
    pub async fn start(&self) -> Result<(), StartError> {
        let scene = self.scene();
        if let Err(failures) = self.0.plan.start(&scene).await {
            return Err(StartError { failures: self.told(failures), rollback: self.roll_back().await });
        }
        self.0.phase.send_if_modified(|phase| std::mem::replace(phase, (*phase).max(Phase::Ready)) < Phase::Ready);
        Ok(())
    }

    /// Drains and stops: readiness says so, new calls are rejected, calls in flight get `drain_timeout`, what is left is
    /// cancelled, the fleet is left, and the steps are stopped in reverse. Doing it again waits for the same end.
    pub async fn shutdown(&self) -> Shutdown {
        self.0.ended.get_or_init(|| self.end()).await.clone()
    }

    /// Lets [`Runtime::run_until_signal`] go on as if a signal had come.
    pub fn request_shutdown(&self) {
        self.0.asked.notify_one();
    }

    /// Starts, waits for the first word, and shuts down. The second word ends it at once, wherever it is.
    ///
    /// # Errors
    /// As [`Runtime::start`].
    pub async fn run_until(
        &self,
        first: impl Future<Output = ()>,
        second: impl Future<Output = ()>,
    ) -> Result<Shutdown, StartError> {
        let mut first = pin!(first);
        tokio::select! {
            started = self.start() => started?,
            () = &mut first => return Ok(self.or_at_once(second).await),
        }
        tokio::select! {
            () = first => {}
            () = self.0.asked.notified() => {}
        }
        Ok(self.or_at_once(second).await)
    }

    async fn or_at_once(&self, second: impl Future<Output = ()>) -> Shutdown {
        let start = Instant::now();
        tokio::select! {
            ended = self.shutdown() => ended,
            () = second => {
                self.0.phase.send_replace(Phase::Stopped);
                Shutdown { forced: true, elapsed: start.elapsed(), ..Shutdown::default() }
            }
        }
    }

    async fn end(&self) -> Shutdown {
        let start = Instant::now();
        self.0.phase.send_replace(Phase::Draining);
        if !self.0.notice.is_zero() {
            // Balancers hear of it late; until then calls are welcome.
            sleep(self.0.notice).await;
        }
        self.0.gate.begin();
        self.emit(EventKind::Draining { in_flight: self.0.gate.in_flight() });
        let drained = self.0.gate.drain(self.0.drain_timeout).await;
        self.emit(EventKind::Drained(drained));
        let failures = self.leave_and_stop().await;
        Shutdown { drained, failures, forced: false, elapsed: start.elapsed() }
    }

    /// Hands back what is the fleet's, and stops what has started.
    async fn leave_and_stop(&self) -> Vec<StepFailure> {
        join_all(self.0.modules.iter().map(|module| module.leave())).await;
        let failures = self.told(self.0.plan.stop(&self.scene()).await);
        self.0.phase.send_replace(Phase::Stopped);
        failures
    }

    async fn roll_back(&self) -> Vec<StepFailure> {
        self.0.gate.begin();
        self.leave_and_stop().await
    }

    /// Tells of every failure.
    fn told(&self, failures: Vec<StepFailure>) -> Vec<StepFailure> {
        for StepFailure { step, trouble } in &failures {
            self.emit(EventKind::StepFailed { step, reason: &trouble.to_string() });
        }
        failures
    }

    /// Tells those who observe the runtime, and those who observe its modules.
    pub(crate) fn emit(&self, kind: EventKind<'_>) {
        self.0.observers.emit_all(kind);
        self.0.modules.iter().for_each(|module| module.emit(kind));
    }

    fn scene(&self) -> StepContext {
        StepContext { runtime: self.clone(), proof: None }
    }

    fn phase(&self) -> Phase {
        *self.0.phase.borrow()
    }

    /// Returns when it has stopped.
    pub async fn stopped(&self) {
        let _ = self.0.phase.subscribe().wait_for(|phase| *phase == Phase::Stopped).await;
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("phase", &self.phase()).field("gate", &self.0.gate).finish_non_exhaustive()
    }
}

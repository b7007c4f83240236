//! One thing to start and to stop.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::drain::Gate;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::lock::{LockLost, Proof};
use crate::runtime::Runtime;

/// Why a step failed.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

pub(crate) type Work = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;
type Make = Box<dyn Fn(StepContext) -> Work + Send + Sync>;

/// One thing to start and to stop. Steps are put in waves by [`RuntimeBuilder`](crate::RuntimeBuilder).
#[must_use = "a step does nothing until a runtime starts it"]
pub struct Step {
    pub(crate) name: String,
    start: Option<Make>,
    stop: Option<Make>,
    /// How long each of the two may take; none for the runtime's `step_timeout`.
    pub(crate) timeout: Option<Duration>,
    /// How long starting may wait for somebody else on top of that.
    pub(crate) patience: Duration,
    pub(crate) mutates_shared_state: bool,
    pub(crate) long_running: bool,
    pub(crate) guard: Option<Guarded>,
}

/// That one replica runs a step for all.
#[derive(Clone, Debug)]
pub(crate) struct Guarded {
    /// The fleet that shares the lock; none if only this process does.
    pub(crate) environment: Option<String>,
}

impl Step {
    /// A step that does nothing yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            start: None,
            stop: None,
            timeout: None,
            patience: Duration::ZERO,
            mutates_shared_state: false,
            long_running: false,
            guard: None,
        }
    }

    /// A step that is a task: started in the background, told to stop, and waited for. Servers and consumers.
    pub fn background<F, Fut, E>(name: impl Into<String>, work: F) -> Self
    where
        F: FnOnce(StepContext, StopSignal) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure> + 'static,
    {
        let (work, task) = (Mutex::new(Some(work)), Arc::new(Mutex::new(None::<Background>)));
        let begun = task.clone();
        let start = move |scene| {
            if let Some(work) = work.lock().take() {
                let (stop, stopping) = watch::channel(false);
                let work = work(scene, StopSignal(stopping));
                let handle = tokio::spawn(async move { work.await.map_err(Into::into) });
                *begun.lock() = Some(Background { stop, handle });
            }
            std::future::ready(Ok::<(), Failure>(()))
        };
        let stop = move |_| {
            let task = task.lock().take();
            async move {
                match task {
                    Some(task) => task.end().await,
                    None => Ok(()),
                }
            }
        };
        Self { long_running: true, ..Self::new(name).start_in(start).stop_in(stop) }
    }

    /// What starts it.
    pub fn on_start<F, Fut, E>(self, start: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        self.start_in(move |_| start())
    }

    /// What starts it, given the scene: the runtime, and the fence of a singleton step.
    pub fn start_in<F, Fut, E>(mut self, start: F) -> Self
    where
        F: Fn(StepContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        self.start = Some(boxed(start));
        self
    }

    /// What stops it. Asked only if it was started.
    pub fn on_stop<F, Fut, E>(self, stop: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        self.stop_in(move |_| stop())
    }

    pub(crate) fn stop_in<F, Fut, E>(mut self, stop: F) -> Self
    where
        F: Fn(StepContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        self.stop = Some(boxed(stop));
        self
    }

    /// How long starting it may take, and how long stopping it. Default: the runtime's `step_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// It changes what other replicas see (indexes, queues, seed data): in a fleet it has to be a
    /// [`singleton`](crate::singleton()).
    pub fn mutates_shared_state(mut self) -> Self {
        self.mutates_shared_state = true;
        self
    }

    /// It goes on after it was started (a loop, a server): a function that is frozen between calls cannot have it.
    pub fn long_running(mut self) -> Self {
        self.long_running = true;
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) async fn start(&self, scene: StepContext) -> Result<(), Failure> {
        match &self.start {
            Some(start) => start(scene).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn stop(&self, scene: StepContext) -> Result<(), Failure> {
        match &self.stop {
            Some(stop) => stop(scene).await,
            None => Ok(()),
        }
    }
}

fn boxed<F, Fut, E>(make: F) -> Make
where
    F: Fn(StepContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Failure>,
{
    Box::new(move |scene| {
        let work = make(scene);
        Box::pin(async move { work.await.map_err(Into::into) })
    })
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Where a step is started.
#[derive(Clone)]
pub struct StepContext {
    pub(crate) runtime: Runtime,
    pub(crate) proof: Option<Proof>,
}

impl StepContext {
    /// The runtime that starts it.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The gate that work of one's own comes in by, so that a drain waits for it.
    pub fn gate(&self) -> &Gate {
        self.runtime.gate()
    }

    /// The fence to write under, in a singleton step; none in others.
    ///
    /// # Errors
    /// The lock has been lost: somebody else may be running the step by now.
    pub fn fence(&self) -> Result<Option<u64>, LockLost> {
        self.proof.as_ref().map(Proof::check).transpose()
    }
}

impl fmt::Debug for StepContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scene").field("runtime", &self.runtime).field("proof", &self.proof).finish()
    }
}

/// Tells a background task to stop.
#[derive(Clone, Debug)]
pub struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    /// Returns when it is time to stop.
    pub async fn wait(mut self) {
        let _ = self.0.wait_for(|stop| *stop).await; // nobody left to say so says so too
    }
}

struct Background {
    stop: watch::Sender<bool>,
    handle: JoinHandle<Result<(), Failure>>,
}

impl Background {
    async fn end(self) -> Result<(), Failure> {
        self.stop.send_replace(true);
        match self.handle.await {
            Ok(ended) => ended,
            Err(failed) => Err(failed.into()),
        }
    }
}

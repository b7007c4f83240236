//! A step: one thing to start and to stop.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_core::drain::Gate;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::lock::{LockLost, LockValidity};
use crate::runtime::Runtime;

/// The error of a step: any error, boxed. The same type as `tower::BoxError`.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

type StepFuture = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;
type StepFn = Box<dyn Fn(StepContext) -> StepFuture + Send + Sync>;

/// One thing to start and to stop. A [`RuntimeBuilder`](crate::RuntimeBuilder) arranges steps in waves.
///
/// # Examples
///
/// ```
/// use std::io;
/// use phalanx_lifecycle::{Runtime, Step};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let migrate = Step::new("migrate").on_start(async || Err::<(), _>(io::Error::other("no such table")));
/// let runtime = Runtime::builder().step(migrate).build().unwrap();
///
/// let error = runtime.start().await.unwrap_err();
/// assert_eq!(error.failures[0].to_string(), "step migrate: no such table");
/// # }
/// ```
#[must_use = "a step does nothing until a runtime starts it"]
pub struct Step {
    pub(crate) name: String,
    start: Option<StepFn>,
    stop: Option<StepFn>,
    /// The timeout of starting and of stopping; none for the runtime's `step_timeout`.
    pub(crate) timeout: Option<Duration>,
    /// How long starting may wait for a lock, in addition to the timeout.
    pub(crate) lock_wait: Duration,
    pub(crate) mutates_shared_state: bool,
    pub(crate) long_running: bool,
    /// Set if one replica runs the step for all.
    pub(crate) singleton: Option<SingletonScope>,
}

/// Which replicas a singleton step excludes.
#[derive(Clone, Debug)]
pub(crate) struct SingletonScope {
    /// The environment whose replicas share the lock; none if the lock is local to this process.
    pub(crate) environment: Option<String>,
}

impl Step {
    /// Creates a step that does nothing yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            start: None,
            stop: None,
            timeout: None,
            lock_wait: Duration::ZERO,
            mutates_shared_state: false,
            long_running: false,
            singleton: None,
        }
    }

    /// Creates a step that runs as a background task, such as a server or a consumer. Stopping the step sends the
    /// [`StopSignal`] and waits for the task to end.
    pub fn background<F, Fut, E>(name: impl Into<String>, work: F) -> Self
    where
        F: FnOnce(StepContext, StopSignal) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let (work, task) = (Mutex::new(Some(work)), Arc::new(Mutex::new(None::<BackgroundTask>)));
        let started = task.clone();
        let start = move |context| {
            if let Some(work) = work.lock().take() {
                let (stop, stopped) = watch::channel(false);
                let work = work(context, StopSignal(stopped));
                let handle = tokio::spawn(async move { work.await.map_err(Into::into) });
                *started.lock() = Some(BackgroundTask { stop, handle });
            }
            std::future::ready(Ok::<(), BoxError>(()))
        };
        let stop = move |_| {
            let task = task.lock().take();
            async move {
                match task {
                    Some(task) => task.stop().await,
                    None => Ok(()),
                }
            }
        };
        Self { long_running: true, ..Self::new(name).on_start_with(start).on_stop_with(stop) }
    }

    /// Sets the function that starts the step.
    pub fn on_start<F, Fut, E>(self, start: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.on_start_with(move |_| start())
    }

    /// Sets the function that starts the step, and passes it the [`StepContext`]: the runtime, and the fence of a
    /// singleton step.
    pub fn on_start_with<F, Fut, E>(mut self, start: F) -> Self
    where
        F: Fn(StepContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.start = Some(boxed(start));
        self
    }

    /// Sets the function that stops the step. It is called only if the step has started.
    pub fn on_stop<F, Fut, E>(self, stop: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.on_stop_with(move |_| stop())
    }

    pub(crate) fn on_stop_with<F, Fut, E>(mut self, stop: F) -> Self
    where
        F: Fn(StepContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.stop = Some(boxed(stop));
        self
    }

    /// Sets the timeout of starting and of stopping the step. Default: the runtime's `step_timeout`.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Declares that the step changes state that other replicas use, such as indexes, queues or seed data. In a fleet it
    /// must then be a [`singleton`](crate::singleton()).
    pub fn mutates_shared_state(mut self) -> Self {
        self.mutates_shared_state = true;
        self
    }

    /// Declares that the step keeps running after it has started, such as a loop or a server. A serverless function
    /// cannot have such a step.
    pub fn long_running(mut self) -> Self {
        self.long_running = true;
        self
    }

    /// Returns the name of the step.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) async fn start(&self, context: StepContext) -> Result<(), BoxError> {
        match &self.start {
            Some(start) => start(context).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn stop(&self, context: StepContext) -> Result<(), BoxError> {
        match &self.stop {
            Some(stop) => stop(context).await,
            None => Ok(()),
        }
    }
}

fn boxed<F, Fut, E>(hook: F) -> StepFn
where
    F: Fn(StepContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError>,
{
    Box::new(move |context| {
        let future = hook(context);
        Box::pin(async move { future.await.map_err(Into::into) })
    })
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a step is started with: its runtime and, in a singleton step, its lock.
#[derive(Clone)]
pub struct StepContext {
    pub(crate) runtime: Runtime,
    pub(crate) lock: Option<LockValidity>,
}

impl StepContext {
    /// Returns the runtime that starts the step.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the runtime's gate. Work that passes [`Gate::run`] is drained at shutdown.
    pub fn gate(&self) -> &Gate {
        self.runtime.gate()
    }

    /// Returns the fence to write under in a singleton step; none in other steps.
    ///
    /// # Errors
    /// Returns [`LockLost`] if the lock has been lost: another replica may be running the step.
    pub fn fence(&self) -> Result<Option<u64>, LockLost> {
        self.lock.as_ref().map(LockValidity::check).transpose()
    }
}

impl fmt::Debug for StepContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepContext").field("runtime", &self.runtime).field("lock", &self.lock).finish()
    }
}

/// Asks a background task to stop. Passed to the closure of [`Step::background`].
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use phalanx_lifecycle::{Runtime, Step};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let closed = Arc::new(AtomicBool::new(false));
/// let consumer = Step::background("consumer", {
///     let closed = closed.clone();
///     async move |_context, stop| {
///         stop.wait().await; // a server passes this future to its graceful shutdown
///         closed.store(true, Ordering::Relaxed);
///         Ok::<_, Infallible>(())
///     }
/// });
/// let runtime = Runtime::builder().step(consumer).build()?;
/// runtime.start().await?;
/// assert!(runtime.shutdown().await.is_clean());
/// assert!(closed.load(Ordering::Relaxed));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    /// Waits until the step is stopped.
    pub async fn wait(mut self) {
        let _ = self.0.wait_for(|stop| *stop).await; // a dropped sender also counts as a stop signal
    }
}

struct BackgroundTask {
    stop: watch::Sender<bool>,
    handle: JoinHandle<Result<(), BoxError>>,
}

impl BackgroundTask {
    async fn stop(self) -> Result<(), BoxError> {
        self.stop.send_replace(true);
        match self.handle.await {
            Ok(result) => result,
            Err(join_error) => Err(join_error.into()),
        }
    }
}

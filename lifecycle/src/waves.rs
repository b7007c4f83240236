//! Waves of steps: started in order, concurrently within a wave, and stopped in reverse order.
//!
//! Each step runs in its own task and under its own timeout. A step that panics or exceeds its timeout is reported, and
//! its task is aborted. Only steps that have started are stopped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::step::{BoxError, Step, StepContext};

/// How a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepErrorKind {
    /// It returned an error; the text of the error and its sources.
    Failed(String),
    /// It panicked.
    Panicked,
    /// It exceeded this timeout and was aborted.
    Abandoned(Duration),
}

impl fmt::Display for StepErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(reason) => f.write_str(reason),
            Self::Panicked => f.write_str("it panicked"),
            Self::Abandoned(limit) => write!(f, "not done after {limit:?}, abandoned"),
        }
    }
}

/// A step that failed to start or to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFailure {
    /// The name of the step.
    pub step: String,
    /// How it failed.
    pub kind: StepErrorKind,
}

impl fmt::Display for StepFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.kind)
    }
}

/// All steps, and which of them have started.
pub(crate) struct Waves {
    waves: Vec<Vec<Arc<Step>>>,
    started: Mutex<Vec<Vec<Arc<Step>>>>,
    step_timeout: Duration,
}

#[derive(Clone, Copy)]
enum Hook {
    Start,
    Stop,
}

impl Waves {
    pub(crate) fn new(waves: Vec<Vec<Step>>, step_timeout: Duration) -> Self {
        let waves: Vec<Vec<_>> = waves.into_iter().map(|wave| wave.into_iter().map(Arc::new).collect()).collect();
        let started = Mutex::new(vec![Vec::new(); waves.len()]);
        Self { waves, started, step_timeout }
    }

    /// Starts wave after wave and stops at the first wave with a failure.
    pub(crate) async fn start(&self, context: &StepContext) -> Result<(), Vec<StepFailure>> {
        for (index, wave) in self.waves.iter().enumerate() {
            let starts = wave.iter().map(|step| async move {
                let limit = self.timeout_of(step).saturating_add(step.lock_wait);
                self.run(step, Hook::Start, limit, context).await?;
                if let Some(started) = self.started.lock().get_mut(index) {
                    started.push(step.clone());
                }
                Ok(())
            });
            let failures: Vec<_> = join_all(starts).await.into_iter().filter_map(Result::err).collect();
            if !failures.is_empty() {
                return Err(failures);
            }
        }
        Ok(())
    }

    /// Stops the started steps, the last wave first. A second call finds nothing to stop.
    pub(crate) async fn stop(&self, context: &StepContext) -> Vec<StepFailure> {
        let mut failures = Vec::new();
        for index in (0..self.waves.len()).rev() {
            let wave = self.started.lock().get_mut(index).map(std::mem::take).unwrap_or_default();
            let stops = wave.iter().map(|step| self.run(step, Hook::Stop, self.timeout_of(step), context));
            failures.extend(join_all(stops).await.into_iter().filter_map(Result::err));
        }
        failures
    }

    fn timeout_of(&self, step: &Step) -> Duration {
        step.timeout.unwrap_or(self.step_timeout)
    }

    async fn run(
        &self,
        step: &Arc<Step>,
        hook: Hook,
        limit: Duration,
        context: &StepContext,
    ) -> Result<(), StepFailure> {
        let (work, context) = (step.clone(), context.clone());
        let mut task = tokio::spawn(async move {
            match hook {
                Hook::Start => work.start(context).await,
                Hook::Stop => work.stop(context).await,
            }
        });
        // Aborts the task also when this future is dropped.
        let _abort = AbortOnDrop(task.abort_handle());
        let kind = match timeout(limit, &mut task).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(error))) => StepErrorKind::Failed(with_sources(&error)),
            Ok(Err(_)) => StepErrorKind::Panicked,
            Err(_) => StepErrorKind::Abandoned(limit),
        };
        Err(StepFailure { step: step.name.clone(), kind })
    }
}

/// Returns the error and its sources on one line.
fn with_sources(error: &BoxError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

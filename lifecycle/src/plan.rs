//! Waves of steps: started in order, concurrently within a wave, and stopped in reverse.
//!
//! Every step runs as a task of its own, for its time and no longer: one that panics is caught, one that wedges is
//! abandoned, and both are reported. Only what has started is stopped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::step::{Failure, Step, StepContext};

/// What became of a step that did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepErrorKind {
    /// It returned an error; its words.
    Failed(String),
    /// It panicked.
    Panicked,
    /// It was not done after so long, and was left behind.
    Abandoned(Duration),
}

impl fmt::Display for StepErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(reason) => f.write_str(reason),
            Self::Panicked => f.write_str("it panicked"),
            Self::Abandoned(after) => write!(f, "not done after {after:?}, abandoned"),
        }
    }
}

/// A step and its trouble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFailure {
    /// Which.
    pub step: String,
    /// What went wrong.
    pub trouble: StepErrorKind,
}

impl fmt::Display for StepFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.trouble)
    }
}

/// All steps, and which of them have started.
pub(crate) struct Plan {
    waves: Vec<Vec<Arc<Step>>>,
    started: Mutex<Vec<Vec<Arc<Step>>>>,
    step_timeout: Duration,
}

#[derive(Clone, Copy)]
enum Act {
    Start,
    Stop,
}

impl Plan {
    pub(crate) fn new(waves: Vec<Vec<Step>>, step_timeout: Duration) -> Self {
        let waves: Vec<Vec<_>> = waves.into_iter().map(|wave| wave.into_iter().map(Arc::new).collect()).collect();
        let started = Mutex::new(vec![Vec::new(); waves.len()]);
        Self { waves, started, step_timeout }
    }

    /// Starts wave after wave, up to the first that has trouble.
    pub(crate) async fn start(&self, scene: &StepContext) -> Result<(), Vec<StepFailure>> {
        for (number, wave) in self.waves.iter().enumerate() {
            let starts = wave.iter().map(|step| async move {
                let limit = self.limit(step).saturating_add(step.patience);
                self.run(step, Act::Start, limit, scene).await?;
                if let Some(started) = self.started.lock().get_mut(number) {
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

    /// Stops what has started, the last wave first. Doing it again finds nothing to do.
    pub(crate) async fn stop(&self, scene: &StepContext) -> Vec<StepFailure> {
        let mut failures = Vec::new();
        for number in (0..self.waves.len()).rev() {
            let wave = self.started.lock().get_mut(number).map(std::mem::take).unwrap_or_default();
            let stops = wave.iter().map(|step| self.run(step, Act::Stop, self.limit(step), scene));
            failures.extend(join_all(stops).await.into_iter().filter_map(Result::err));
        }
        failures
    }

    fn limit(&self, step: &Step) -> Duration {
        step.timeout.unwrap_or(self.step_timeout)
    }

    async fn run(&self, step: &Arc<Step>, act: Act, limit: Duration, scene: &StepContext) -> Result<(), StepFailure> {
        let (work, scene) = (step.clone(), scene.clone());
        let mut task = tokio::spawn(async move {
            match act {
                Act::Start => work.start(scene).await,
                Act::Stop => work.stop(scene).await,
            }
        });
        // Whoever stops waiting, for whatever reason, leaves nothing running behind.
        let _abandoned = AbortOnDrop(task.abort_handle());
        let trouble = match timeout(limit, &mut task).await {
            Ok(Ok(Ok(()))) => return Ok(()),
            Ok(Ok(Err(failure))) => StepErrorKind::Failed(told(&failure)),
            Ok(Err(_)) => StepErrorKind::Panicked,
            Err(_) => StepErrorKind::Abandoned(limit),
        };
        Err(StepFailure { step: step.name.clone(), trouble })
    }
}

/// The error and what caused it, in one line.
fn told(failure: &Failure) -> String {
    let mut words = failure.to_string();
    let mut cause = failure.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

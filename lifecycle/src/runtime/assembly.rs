//! A runtime being put together: every mistake is found here, and none at three in the morning.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use phalanx_core::drain::Gate;
use phalanx_core::event::{Event, Observer, Observers};
use phalanx_core::policy::validate::{ConfigError, Mistake};
use tokio::sync::{Notify, OnceCell, watch};

use super::{Phase, Runtime, Shared};
use crate::module::Module;
use crate::plan::Plan;
use crate::profile::DeploymentProfile;
use crate::step::Step;
use crate::ticker::Ticker;

const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_AFTER: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

/// A runtime being put together.
#[derive(Default)]
#[must_use = "nothing is checked or made before `build`"]
pub struct RuntimeBuilder {
    profile: DeploymentProfile,
    modules: Vec<Box<dyn Module>>,
    waves: Vec<Vec<Step>>,
    observers: Vec<Arc<dyn Observer>>,
    drain_timeout: Option<Duration>,
    step_timeout: Option<Duration>,
    retry_after: Option<Duration>,
    notice: Duration,
}

impl RuntimeBuilder {
    /// Where the service runs. Default: one process.
    pub fn profile(mut self, profile: DeploymentProfile) -> Self {
        self.profile = profile;
        self
    }

    /// A module whose calls are drained and whose fleet is left in the end.
    pub fn module(mut self, module: impl Module) -> Self {
        self.modules.push(Box::new(module));
        self
    }

    /// Steps that start together, after those added before, and stop together, before them.
    pub fn wave(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.waves.push(steps.into_iter().collect());
        self
    }

    /// A step that is a wave by itself.
    pub fn step(self, step: Step) -> Self {
        self.wave([step])
    }

    /// A loop that ticks from this wave on until the drain.
    pub fn ticker(self, ticker: Ticker) -> Self {
        self.step(ticker.into_step())
    }

    /// How long calls in flight may go on when the service is told to stop. Default 10 s; none under `Serverless`.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = Some(timeout);
        self
    }

    /// How long a step may take to start and to stop, unless it says otherwise. Default 10 s.
    pub fn step_timeout(mut self, timeout: Duration) -> Self {
        self.step_timeout = Some(timeout);
        self
    }

    /// When callers that are rejected because of the drain are told to come back. Default 1 s.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// How long readiness says `draining` before calls are rejected, for balancers that hear of it late. Default none.
    pub fn notice(mut self, notice: Duration) -> Self {
        self.notice = notice;
        self
    }

    /// Adds somebody who is told of events. The modules' own observers are told too.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Adds a function that is told of events.
    pub fn on_event(self, tell: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.observer(tell)
    }

    /// Makes the runtime.
    ///
    /// # Errors
    /// Every mistake, each with its path; the profile's objections name every offending step.
    pub fn build(self) -> Result<Runtime, ConfigError> {
        let gate = Gate::new(self.retry_after.unwrap_or(RETRY_AFTER));
        let mut mistakes = self.mistakes();
        if mistakes.is_empty() {
            let attached = self.modules.iter().enumerate().filter(|(_, module)| !module.attach(&gate));
            mistakes.extend(attached.map(|(number, _)| at_module(number, "another runtime drains its calls already")));
        }
        if !mistakes.is_empty() {
            return Err(ConfigError { mistakes });
        }
        let drain_timeout = match self.profile {
            DeploymentProfile::Serverless => Duration::ZERO,
            _ => self.drain_timeout.unwrap_or(DRAIN_TIMEOUT),
        };
        Ok(Runtime(Arc::new(Shared {
            plan: Plan::new(self.waves, self.step_timeout.unwrap_or(STEP_TIMEOUT)),
            gate,
            modules: self.modules,
            observers: Observers::new(self.observers),
            drain_timeout,
            notice: self.notice,
            phase: watch::Sender::new(Phase::Starting),
            asked: Notify::new(),
            ended: OnceCell::new(),
        })))
    }

    fn mistakes(&self) -> Vec<Mistake> {
        let steps = || self.waves.iter().flatten();
        let mut mistakes = self.profile.mistakes(steps());
        let modules = self.modules.iter().enumerate();
        mistakes.extend(modules.filter_map(|(number, module)| {
            let reason = self.profile.objection_to(module.environment())?;
            Some(at_module(number, reason))
        }));
        let mut seen = HashSet::new();
        for name in steps().map(Step::name).filter(|name| !seen.insert(name.to_owned())) {
            mistakes.push(mistake(format!("steps.{}", name.escape_debug()), "two steps have this name"));
        }
        let serverless = self.profile == DeploymentProfile::Serverless;
        if serverless && self.drain_timeout.is_some_and(|timeout| !timeout.is_zero()) {
            mistakes.push(mistake("drain_timeout".to_owned(), "there is no time to drain in a serverless function"));
        }
        let times = [("drain_timeout", self.drain_timeout), ("step_timeout", self.step_timeout)];
        for (name, time) in times.into_iter().chain([("notice", Some(self.notice)), ("retry_after", self.retry_after)])
        {
            if time.is_some_and(|time| time > LONGEST) {
                mistakes.push(mistake(name.to_owned(), "must be at most 24 hours"));
            }
        }
        if self.step_timeout.is_some_and(|timeout| timeout.is_zero()) {
            mistakes.push(mistake("step_timeout".to_owned(), "leaves no time for any step"));
        }
        mistakes
    }
}

fn at_module(number: usize, reason: &str) -> Mistake {
    mistake(format!("modules[{number}]"), reason)
}

fn mistake(path: String, reason: &str) -> Mistake {
    Mistake::new(path, reason)
}

//! The builder of a runtime, which reports every configuration error at once.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use phalanx_core::drain::Gate;
use phalanx_core::event::{Event, Observer, Observers};
use phalanx_core::policy::validate::{ConfigError, Mistake};
use tokio::sync::{Notify, OnceCell, watch};

use super::{Phase, Runtime, RuntimeInner};
use crate::module::Module;
use crate::profile::DeploymentProfile;
use crate::step::Step;
use crate::ticker::Ticker;
use crate::waves::Waves;

const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_STEP_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
const MAX_DURATION: Duration = Duration::from_secs(24 * 3_600);

/// Builds a [`Runtime`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use phalanx_lifecycle::{Runtime, Step};
///
/// let runtime = Runtime::builder()
///     .wave([Step::new("database"), Step::new("cache")]) // concurrently
///     .step(Step::new("server")) // after both
///     .drain_timeout(Duration::from_secs(20))
///     .build();
/// assert!(runtime.is_ok());
///
/// let error = Runtime::builder().wave([Step::new("cache"), Step::new("cache")]).build().unwrap_err();
/// assert_eq!(error.mistakes[0].to_string(), "steps.cache: two steps have this name");
/// ```
#[derive(Default)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct RuntimeBuilder {
    profile: DeploymentProfile,
    modules: Vec<Box<dyn Module>>,
    waves: Vec<Vec<Step>>,
    observers: Vec<Arc<dyn Observer>>,
    drain_timeout: Option<Duration>,
    step_timeout: Option<Duration>,
    retry_after: Option<Duration>,
    pre_drain_delay: Duration,
}

impl RuntimeBuilder {
    /// Sets where the service is deployed. Default: [`DeploymentProfile::SingleProcess`].
    pub fn profile(mut self, profile: DeploymentProfile) -> Self {
        self.profile = profile;
        self
    }

    /// Adds a module. At shutdown its calls are drained and it leaves its fleet.
    pub fn module(mut self, module: impl Module) -> Self {
        self.modules.push(Box::new(module));
        self
    }

    /// Adds a wave: steps that start concurrently, after all earlier waves, and stop concurrently, before them.
    pub fn wave(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.waves.push(steps.into_iter().collect());
        self
    }

    /// Adds a wave of one step.
    pub fn step(self, step: Step) -> Self {
        self.wave([step])
    }

    /// Adds a wave of one ticker, which runs until the drain.
    pub fn ticker(self, ticker: Ticker) -> Self {
        self.step(ticker.into_step())
    }

    /// Sets how long calls in flight may run on during a shutdown. Default 10 s; always zero under
    /// [`DeploymentProfile::Serverless`].
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = Some(timeout);
        self
    }

    /// Sets how long a step may take to start and to stop, unless the step has its own timeout. Default 10 s.
    pub fn step_timeout(mut self, timeout: Duration) -> Self {
        self.step_timeout = Some(timeout);
        self
    }

    /// Sets the retry-after of calls that are rejected because of the drain. Default 1 s.
    pub fn retry_after(mut self, retry_after: Duration) -> Self {
        self.retry_after = Some(retry_after);
        self
    }

    /// Sets how long calls are still accepted after readiness has become `draining`, for load balancers that see the
    /// change late. Default zero.
    pub fn pre_drain_delay(mut self, delay: Duration) -> Self {
        self.pre_drain_delay = delay;
        self
    }

    /// Registers an observer of the runtime's events. The modules' own observers receive these events too.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Registers a function that is called for every event of the runtime.
    pub fn on_event(self, callback: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.observer(callback)
    }

    /// Builds the runtime.
    ///
    /// # Errors
    /// Returns every validation error with its path, among them one for each step that the profile does not allow.
    pub fn build(self) -> Result<Runtime, ConfigError> {
        let gate = Gate::new(self.retry_after.unwrap_or(DEFAULT_RETRY_AFTER));
        let mut mistakes = self.validate();
        if mistakes.is_empty() {
            let rejected = self.modules.iter().enumerate().filter(|(_, module)| !module.attach(&gate));
            mistakes
                .extend(rejected.map(|(index, _)| module_mistake(index, "another runtime drains its calls already")));
        }
        if !mistakes.is_empty() {
            return Err(ConfigError { mistakes });
        }
        let drain_timeout = match self.profile {
            DeploymentProfile::Serverless => Duration::ZERO,
            _ => self.drain_timeout.unwrap_or(DEFAULT_DRAIN_TIMEOUT),
        };
        Ok(Runtime(Arc::new(RuntimeInner {
            waves: Waves::new(self.waves, self.step_timeout.unwrap_or(DEFAULT_STEP_TIMEOUT)),
            gate,
            modules: self.modules,
            observers: Observers::new(self.observers),
            drain_timeout,
            pre_drain_delay: self.pre_drain_delay,
            phase: watch::Sender::new(Phase::Starting),
            shutdown_requested: Notify::new(),
            shutdown: OnceCell::new(),
        })))
    }

    fn validate(&self) -> Vec<Mistake> {
        let steps = || self.waves.iter().flatten();
        let mut mistakes = self.profile.validate_steps(steps());
        let modules = self.modules.iter().enumerate();
        mistakes
            .extend(modules.flat_map(|(index, module)| self.profile.validate_module(&module_path(index), &**module)));
        let mut seen = HashSet::new();
        for name in steps().map(Step::name).filter(|name| !seen.insert(name.to_owned())) {
            mistakes.push(Mistake::new(format!("steps.{}", name.escape_debug()), "two steps have this name"));
        }
        let serverless = self.profile == DeploymentProfile::Serverless;
        if serverless && self.drain_timeout.is_some_and(|timeout| !timeout.is_zero()) {
            mistakes.push(Mistake::new("drain_timeout", "a serverless function has no time to drain"));
        }
        for (name, duration) in [
            ("drain_timeout", self.drain_timeout),
            ("step_timeout", self.step_timeout),
            ("pre_drain_delay", Some(self.pre_drain_delay)),
            ("retry_after", self.retry_after),
        ] {
            if duration.is_some_and(|duration| duration > MAX_DURATION) {
                mistakes.push(Mistake::new(name, "must be at most 24 hours"));
            }
        }
        if self.step_timeout.is_some_and(|timeout| timeout.is_zero()) {
            mistakes.push(Mistake::new("step_timeout", "must be greater than zero"));
        }
        mistakes
    }
}

fn module_mistake(index: usize, reason: &str) -> Mistake {
    Mistake::new(module_path(index), reason)
}

fn module_path(index: usize) -> String {
    format!("modules[{index}]")
}

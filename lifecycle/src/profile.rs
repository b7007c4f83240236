//! Where a service is deployed, and which steps are allowed there.
//!
//! Some startup work is safe in one process and harmful in twenty. The author of a step declares what it does
//! ([`Step::mutates_shared_state`], [`Step::long_running`]), and the profile rejects what does not fit when the runtime
//! is built.

use phalanx_core::policy::validate::Mistake;

use crate::module::Module;
use crate::step::Step;

/// The environment name that a store uses when none is configured.
const DEFAULT_ENVIRONMENT: &str = "default";

/// Where a service is deployed.
///
/// # Examples
///
/// ```
/// use phalanx_lifecycle::{DeploymentProfile, Runtime, Step};
///
/// let create_indexes = || Step::new("create-indexes").mutates_shared_state();
/// assert!(Runtime::builder().step(create_indexes()).build().is_ok());
///
/// let fleet = Runtime::builder().profile(DeploymentProfile::Fleet).step(create_indexes());
/// let error = fleet.build().unwrap_err();
/// assert_eq!(error.mistakes[0].path, "steps.create-indexes"); // every replica would run it
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeploymentProfile {
    /// One process. Every step is allowed.
    #[default]
    SingleProcess,
    /// Several replicas. A step that changes shared state must be a [`singleton`](crate::singleton()) under a lock that
    /// the fleet shares, and every shared store must name its environment and the most replicas that the fleet can have
    /// (`expected_replicas`).
    Fleet,
    /// A function that is frozen between calls. Background work is not allowed, and there is no drain timeout.
    Serverless,
}

impl DeploymentProfile {
    /// Returns one validation error, with its path, for each step that the profile does not allow.
    pub(crate) fn validate_steps<'a>(self, steps: impl Iterator<Item = &'a Step>) -> Vec<Mistake> {
        steps.filter_map(|step| Some(Mistake::new(path(step), self.step_error(step)?))).collect()
    }

    fn step_error(self, step: &Step) -> Option<&'static str> {
        match self {
            Self::SingleProcess => None,
            Self::Fleet => match &step.singleton {
                None if step.mutates_shared_state => {
                    Some("it changes state that other replicas use: make it a singleton, or run it once per deployment")
                }
                None => None,
                Some(scope) => match scope.environment.as_deref() {
                    None => Some("its lock is local to this process and does not exclude other replicas"),
                    Some(DEFAULT_ENVIRONMENT) => Some(ENVIRONMENT_NOT_NAMED),
                    Some(_) => None,
                },
            },
            Self::Serverless => {
                step.long_running.then_some("it runs in the background, where a frozen process makes no progress")
            }
        }
    }

    /// Returns why a module is not allowed. `path` is its own.
    pub(crate) fn validate_module(self, path: &str, module: &dyn Module) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        let environment = module.environment().filter(|_| self == Self::Fleet);
        if environment == Some(DEFAULT_ENVIRONMENT) {
            mistakes.push(Mistake::new(path, ENVIRONMENT_NOT_NAMED));
        }
        if environment.is_some() && module.expected_replicas().is_none() {
            mistakes.push(Mistake::new(format!("{path}.expected_replicas"), REPLICAS_NOT_SET));
        }
        mistakes
    }
}

const ENVIRONMENT_NOT_NAMED: &str = "name the environment, so that two fleets on one Redis do not share state";

const REPLICAS_NOT_SET: &str = "set the most replicas that the fleet can have (the autoscaler's maximum): a replica that \
                                never reached the shared store divides limits by it";

fn path(step: &Step) -> String {
    format!("steps.{}", step.name.escape_debug())
}

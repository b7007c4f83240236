//! Where a service runs, and what its steps may therefore do.
//!
//! Some start-up work is safe in one process and a stampede in twenty. Whether a step is such work cannot be seen from
//! outside, so its author says so, and the profile holds the steps to it: a mistake at assembly, not at three in the
//! morning.

use phalanx_core::policy::validate::Mistake;

use crate::step::Step;

/// What a store calls a fleet that nobody named.
const UNNAMED: &str = "default";

/// Where a service runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeploymentProfile {
    /// One process: steps may do what they like.
    #[default]
    SingleProcess,
    /// Replicas beside each other: a step that changes what others see has to be a singleton under a lock that the fleet
    /// shares, and whatever is shared has to say which environment it belongs to.
    Fleet,
    /// Frozen between calls and thawed at will: nothing may go on in the background, and there is no time to drain.
    Serverless,
}

impl DeploymentProfile {
    /// Everything about the steps that does not fit, each with its path.
    pub(crate) fn mistakes<'a>(self, steps: impl Iterator<Item = &'a Step>) -> Vec<Mistake> {
        steps.filter_map(|step| Some(Mistake::new(path(step), self.objection(step)?))).collect()
    }

    fn objection(self, step: &Step) -> Option<&'static str> {
        match self {
            Self::SingleProcess => None,
            Self::Fleet => match &step.guard {
                None if step.mutates_shared_state => {
                    Some("it changes what other replicas see: make it a singleton, or run it when deploying")
                }
                None => None,
                Some(guard) => match guard.environment.as_deref() {
                    None => Some("its lock is this process' own and keeps no other replica out"),
                    Some(UNNAMED) => Some(NAMELESS),
                    Some(_) => None,
                },
            },
            Self::Serverless => {
                step.long_running.then_some("it goes on in the background, where a frozen process does nothing")
            }
        }
    }

    /// What is wrong with a module that shares its state with this environment.
    pub(crate) fn objection_to(self, environment: Option<&str>) -> Option<&'static str> {
        (self == Self::Fleet && environment == Some(UNNAMED)).then_some(NAMELESS)
    }
}

const NAMELESS: &str = "name the environment: two fleets on one Redis must not take each other for one";

fn path(step: &Step) -> String {
    format!("steps.{}", step.name.escape_debug())
}

//! Fault plans as data: which fault is injected where and for how long, and what is expected of a policy file meanwhile.
//!
//! A plan is a TOML file, or the fault plan of the resiliency playbook in CSV, as it is written there. [`Player`] plays it
//! in virtual time against policies from the user's own file, and returns [`Evidence`]: each expectation with its verdict,
//! the measured figure and where the figure comes from, as text, Markdown, JSON and SVG plots.
//!
//! ```text
//!   plan.toml | plan.csv ──► read_toml.rs | read_csv.rs ──► Plan      every mistake with its line, or the plan
//!                                                            │
//!   policies (phalanx::config::Config) ─────────────────► player.rs   for each step: a new runtime with paused time,
//!                                                            │        a module for each replica over one Redis of the
//!                                                            │        simulator
//!                                                            │          traffic.rs      callers, open loop
//!                                                            │          dependency.rs   what they call, and its faults
//!                                                            │          recording.rs    what happened
//!                                                         judge.rs    expectation × policy → verdict
//!                                                            │
//!                                                        evidence.rs  text, Markdown, JSON;  svg.rs  plots
//! ```
//!
//! # Examples
//!
//! ```
//! use phalanx::config::Config;
//! use phalanx_testkit::plan::{Plan, Player};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policies = Config::from_toml(
//!     "[policies.catalog]\nbreaker = { failure_ratio = 0.5, min_throughput = 10, break_duration = '5s' }",
//! )?;
//! let plan = "case,dep,inject,window_s,expected\n\
//!             OUTAGE-5xx,catalog,5xx,30,\"open breaker, fast 503, recovery to closed\"\n";
//! let plan = Plan::from_csv("plan.csv", plan, &policies)?;
//! let evidence = Player::new(policies).play(&plan)?;
//! assert!(evidence.passed(), "{}", evidence.to_text());
//! # Ok(())
//! # }
//! ```
//!
//! # Untrusted plans
//!
//! A file is at most 1 MiB, with at most [`MAX_STEPS`] steps of at most 24 hours. A plan that would take longer than the
//! player's [budget](Player::budget) is rejected before it starts, with the time it would take.

mod dependency;
mod evidence;
mod expectation;
mod fault;
mod judge;
mod player;
mod read_csv;
mod read_toml;
mod reader;
mod recording;
mod svg;
mod traffic;
mod workload;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use phalanx::config::Config;
use phalanx::internal::files::text_of;
use phalanx::policy::Mistake;

pub use self::dependency::Writes;
pub use self::evidence::{Evidence, Phases, PolicyTotals, Slice, StepEvidence, Verdict};
pub use self::expectation::{BreakerState, Expectation};
pub use self::fault::Fault;
pub use self::player::{Estimate, Player};
pub use self::workload::Workload;

/// The most steps of a plan.
pub const MAX_STEPS: usize = 200;
/// The most replicas of a plan.
pub const MAX_REPLICAS: u32 = 10_000;
/// The most expectations of a step: each is judged over all of its calls.
const MAX_EXPECTED: usize = 32;
/// The longest fault, warm-up or recovery.
const MAX_DURATION: Duration = Duration::from_secs(24 * 3_600);
/// The longest name of a step; it is also the name of its plot.
const MAX_ID_CHARS: usize = 64;

/// A fault plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The title of the evidence. Default: the name of the file.
    pub name: String,
    /// The seed of everything that is drawn: arrivals, latencies, jitter. Default 1.
    pub seed: u64,
    /// How many modules share one store and each make calls at the workload's rate. Default 1.
    pub replicas: u32,
    /// The steps. Each starts from a new module and a healthy dependency.
    pub steps: Vec<Step>,
}

/// One fault, and what is expected while and after it is injected.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The name of the step, unique in its plan: letters, digits, `-`, `_` and `.`.
    pub id: String,
    /// Which policies are called, and whose dependencies fail.
    pub target: Target,
    /// The fault.
    pub fault: Fault,
    /// How long the fault is injected, after the workload's warm-up and before its recovery.
    pub duration: Duration,
    /// The calls, and the dependency without the fault.
    pub workload: Workload,
    /// What has to hold for each targeted policy.
    pub expected: Vec<Expectation>,
    /// The file and line of the step, for mistakes that are found later.
    at: Option<String>,
}

/// The policies that a step is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Every policy of the policy file: `*`.
    All,
    /// One policy: `catalog`, or on a route `catalog/eu`.
    Policy {
        /// The name of the policy.
        policy: String,
        /// The route; none for calls without a route.
        route: Option<String>,
    },
}

impl Target {
    /// Creates the target of one policy, without a route.
    pub fn policy(name: impl Into<String>) -> Self {
        Self::Policy { policy: name.into(), route: None }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Policy { policy, route: None } => f.write_str(policy),
            Self::Policy { policy, route: Some(route) } => write!(f, "{policy}/{route}"),
        }
    }
}

impl Step {
    /// Creates a step without expectations, with the default workload.
    pub fn new(id: impl Into<String>, target: Target, fault: Fault, duration: Duration) -> Self {
        Self { id: id.into(), target, fault, duration, workload: Workload::default(), expected: Vec::new(), at: None }
    }

    /// Sets the workload.
    #[must_use]
    pub fn workload(mut self, workload: Workload) -> Self {
        self.workload = workload;
        self
    }

    /// Sets what is expected.
    #[must_use]
    pub fn expected(mut self, expected: impl IntoIterator<Item = Expectation>) -> Self {
        self.expected = expected.into_iter().collect();
        self
    }

    /// Returns the time of the whole step: warm-up, fault and recovery.
    pub fn total(&self) -> Duration {
        self.workload.warmup.saturating_add(self.duration).saturating_add(self.workload.recovery)
    }
}

impl Plan {
    /// Reads a plan file: TOML or CSV, by its extension.
    ///
    /// # Errors
    /// Returns every mistake, each with its line. A policy that `policies` does not have is a mistake.
    pub fn load(path: impl AsRef<Path>, policies: &Config) -> Result<Self, PlanError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let wrong = |reason: String| PlanError { mistakes: vec![Mistake::new("", reason).located_at(&name)] };
        let extension = path.extension().and_then(|it| it.to_str()).unwrap_or_default().to_ascii_lowercase();
        match extension.as_str() {
            "toml" => Self::from_toml(&name, &text_of(path).map_err(wrong)?, policies),
            "csv" => Self::from_csv(&name, &text_of(path).map_err(wrong)?, policies),
            _ => Err(wrong("must end in .toml or .csv".to_owned())),
        }
    }

    /// Reads a plan in TOML; `name` is the name of the file in mistakes.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    ///
    /// # Examples
    ///
    /// ```
    /// use phalanx::config::Config;
    /// use phalanx_testkit::plan::Plan;
    ///
    /// let policies = Config::from_toml("[policies.catalog]\ntimeout = '150ms'").unwrap();
    /// let wrong = "[[steps]]\nid = 'OUTAGE'\ntarget = 'katalog'\nfault = '5xy'\nduration = '2m'\nexpected = ['recover']";
    /// let error = Plan::from_toml("plan.toml", wrong, &policies).unwrap_err();
    /// let mistakes: Vec<_> = error.mistakes.iter().map(ToString::to_string).collect();
    /// assert_eq!(mistakes[0], "plan.toml:3: steps.target: there is no policy katalog; did you mean catalog?");
    /// assert_eq!(mistakes[1], "plan.toml:4: steps.fault: there is no fault 5xy; did you mean 5xx?");
    /// assert_eq!(mistakes[2], "plan.toml:6: steps.expected: there is no expectation recover; did you mean recovers?");
    /// ```
    pub fn from_toml(name: &str, text: &str, policies: &Config) -> Result<Self, PlanError> {
        read_toml::read(name, text, policies)
    }

    /// Reads a plan in CSV with the columns `case,dep,inject,window_s,expected`; `name` is the name of the file in
    /// mistakes.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_csv(name: &str, text: &str, policies: &Config) -> Result<Self, PlanError> {
        read_csv::read(name, text, policies)
    }

    /// Sets the workload of every step: a CSV file has no columns for it.
    #[must_use]
    pub fn workload(mut self, workload: Workload) -> Self {
        for step in &mut self.steps {
            step.workload = workload.clone();
        }
        self
    }

    /// Returns every mistake of a plan that was built or changed in code: limits that a file is checked against when it
    /// is read.
    fn mistakes(&self, policies: &Config) -> Vec<Mistake> {
        let mut found = Vec::new();
        if !(1..=MAX_REPLICAS).contains(&self.replicas) {
            found.push(Mistake::new("replicas", format!("must be from 1 to {MAX_REPLICAS}")));
        }
        if self.steps.is_empty() || self.steps.len() > MAX_STEPS {
            found.push(Mistake::new("steps", format!("a plan has 1 to {MAX_STEPS} steps")));
        }
        let mut ids = std::collections::BTreeSet::new();
        for step in &self.steps {
            let mut reasons = vec![];
            reasons.extend(reader::id_mistake(&step.id).map(|reason| ("id", reason)));
            if !ids.insert(step.id.to_ascii_lowercase()) {
                reasons.push(("id", "another step has this name".to_owned()));
            }
            if step.duration.is_zero() || step.duration > MAX_DURATION {
                reasons.push(("duration", "must be above zero and at most 24 hours".to_owned()));
            }
            reasons.extend(step.fault.mistake().map(|reason| ("fault", reason)));
            reasons.extend(step.workload.mistakes());
            if step.expected.len() > MAX_EXPECTED {
                reasons.push(("expected", reader::too_many_expected()));
            }
            reasons.extend(step.expected.iter().filter_map(|it| Some(("expected", it.mismatch(&step.fault)?))));
            if let Target::Policy { policy, .. } = &step.target
                && let Some(reason) = reader::unknown_policy(policy, policies)
            {
                reasons.push(("target", reason));
            }
            for (field, reason) in reasons {
                let mistake = Mistake::new(format!("steps.{field}"), reason);
                found.push(match &step.at {
                    Some(at) => mistake.located_at(at),
                    None => mistake,
                });
            }
        }
        found
    }
}

/// The error of an invalid plan: every mistake in it. Nothing was played.
#[derive(Clone, PartialEq, Eq)]
pub struct PlanError {
    /// The mistakes, in the order of their lines.
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.mistakes.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{count} mistake{plural} in the plan")?;
        self.mistakes.iter().try_for_each(|mistake| write!(f, "\n  {mistake}"))
    }
}

/// As displayed, because a `main` that returns the error prints it with `Debug`.
impl fmt::Debug for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for PlanError {}

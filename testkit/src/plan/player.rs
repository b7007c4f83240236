//! Plays plans: checks them, estimates what they take, runs their steps and collects the evidence.

use std::fmt;
use std::time::Duration;

use phalanx::Clock;
use phalanx::config::Config;
use phalanx::policy::Mistake;

use super::dependency::Writes;
use super::evidence::{Evidence, StepEvidence};
use super::fault::Fault;
use super::reader::span;
use super::traffic::{StepPlayer, WritesFactory};
use super::workload::Workload;
use super::{Plan, PlanError, Step, Target};

/// How long a plan may take, unless another budget is set.
const DEFAULT_BUDGET: Duration = Duration::from_secs(600);
/// Calls of one step: each is kept in memory until the step is judged.
const MAX_CALLS: u64 = 5_000_000;
/// Replicas × policies of the file: each replica has all of them.
const MAX_PIPELINES: u64 = 100_000;
/// The calls by which the cost of a call is measured.
const SAMPLE_CALLS: f64 = 2_000.0;
/// No machine needs longer for a call: plans that are short even at this cost are played without a measurement.
const DEAREST_CALL: Duration = Duration::from_millis(1);

/// Plays plans against policies from a file.
///
/// The policies run over the simulator's Redis, with the shipped scripts, in virtual time: a step of ten minutes takes as long as
/// the processor needs for its calls.
/// Everything that is drawn comes from the seed, so that the same plan gives the same evidence, byte for byte.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use phalanx::config::Config;
/// use phalanx_testkit::plan::{Fault, Plan, Player, Step, Target};
///
/// let policies = Config::from_toml("[policies.tax]\ntimeout = '200ms'").unwrap();
/// let outage = Step::new("OUTAGE", Target::policy("tax"), Fault::Errors { share: 1.0 }, Duration::from_secs(5));
/// let plan = Plan { name: "tax".into(), seed: 7, replicas: 1, steps: vec![outage.expected(["no_oom".parse().unwrap()])] };
/// let player = Player::new(policies);
/// assert_eq!(player.estimate(&plan).calls, 3_750); // 50 a second for 75 s
/// assert_eq!(player.play(&plan).unwrap().to_json(), player.play(&plan).unwrap().to_json());
/// ```
#[derive(Clone)]
#[must_use = "a player does nothing until `play` is called"]
pub struct Player {
    config: Config,
    seed: Option<u64>,
    budget: Duration,
    writes: Option<WritesFactory>,
}

/// What a plan takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The calls of all steps.
    pub calls: u64,
    /// The calls of the largest step.
    pub largest_step: u64,
    /// The time that passes in the plan.
    pub virtual_time: Duration,
    /// The time it takes on this machine, from the measured cost of a call.
    pub takes: Duration,
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let takes = Duration::from_secs(self.takes.as_secs().max(1));
        write!(f, "about {} for {} calls in {} of virtual time", span(takes), self.calls, span(self.virtual_time))
    }
}

impl Player {
    /// Creates a player with these policies.
    pub const fn new(policies: Config) -> Self {
        Self { config: policies, seed: None, budget: DEFAULT_BUDGET, writes: None }
    }

    /// Sets the seed. Default: the plan's.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets how long playing a plan may take. Default 10 min.
    pub const fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// Sets the service that writes are sent to in steps with the fault `lost answer`: a new one for each policy of each
    /// step. Default: a simulated one that recognizes keys, if the workload has `idempotency_keys`.
    pub fn writes<W: Writes>(mut self, service: impl Fn() -> W + Send + Sync + 'static) -> Self {
        self.writes = Some(std::sync::Arc::new(move || std::sync::Arc::new(service()) as std::sync::Arc<dyn Writes>));
        self
    }

    /// Estimates what a plan takes, by the measured cost of some calls under the plan's first policy.
    pub fn estimate(&self, plan: &Plan) -> Estimate {
        let mut estimate = self.count(plan);
        let cost = self.measure(plan).unwrap_or(DEAREST_CALL);
        estimate.takes =
            Duration::try_from_secs_f64(cost.as_secs_f64() * estimate.calls as f64).unwrap_or(Duration::MAX);
        estimate
    }

    /// Counts the calls of a plan; does not measure what they cost.
    fn count(&self, plan: &Plan) -> Estimate {
        let calls = |step: &Step| {
            let policies = match step.target {
                Target::All => self.config.policies().len(),
                Target::Policy { .. } => 1,
            };
            let factor = if let Fault::Overload { factor } = step.fault { factor } else { 1.0 };
            let healthy = step.workload.warmup.saturating_add(step.workload.recovery);
            let seconds = step.duration.as_secs_f64() * factor + healthy.as_secs_f64();
            // A conversion to an integer saturates.
            (f64::from(plan.replicas) * policies as f64 * step.workload.rate * seconds).ceil() as u64
        };
        let steps = || plan.steps.iter().map(calls);
        let virtual_time = plan.steps.iter().fold(Duration::ZERO, |sum, step| sum.saturating_add(step.total()));
        let takes = Duration::ZERO;
        let calls = steps().fold(0, u64::saturating_add);
        Estimate { calls, largest_step: steps().max().unwrap_or_default(), virtual_time, takes }
    }

    /// Measures the cost of a call under the first policy of the plan.
    fn measure(&self, plan: &Plan) -> Option<Duration> {
        let workload = Workload {
            rate: SAMPLE_CALLS,
            capacity: None,
            warmup: Duration::ZERO,
            recovery: Duration::ZERO,
            ..Workload::default()
        };
        let target = plan.steps.first().map(|step| &step.target);
        let policy = match target {
            Some(Target::Policy { policy, .. }) => policy.clone(),
            _ => self.config.policies().first()?.name.clone(),
        };
        let fault = Fault::Overload { factor: 1.0 };
        let step = Step::new("measurement", Target::policy(policy), fault, Duration::from_secs(1)).workload(workload);
        let clock = Clock::system();
        let start = clock.now();
        let recording = in_thread(|| self.step_player(plan, &step, 1).play()).ok()?;
        let calls = recording.policies.first()?.calls.len();
        Some(clock.now().since(start) / u32::try_from(calls).ok().filter(|calls| *calls > 0)?)
    }

    fn step_player<'a>(&'a self, plan: &Plan, step: &'a Step, replicas: u32) -> StepPlayer<'a> {
        // By the name of the step, so that a new step does not change the evidence of the others.
        let seed = self.seed.unwrap_or(plan.seed) ^ fnv(&step.id);
        StepPlayer { step, replicas, seed, config: &self.config, writes: self.writes.clone() }
    }

    /// Plays every step and judges what is expected of it.
    ///
    /// Runs in a thread of its own, so that it may be called inside an async test; the caller is blocked meanwhile.
    ///
    /// # Errors
    /// Returns every mistake of the plan and of the policies. A plan that would take longer than the budget is a mistake,
    /// with the time it would take; nothing is played then.
    pub fn play(&self, plan: &Plan) -> Result<Evidence, PlanError> {
        let mistakes = plan.mistakes(&self.config);
        if !mistakes.is_empty() {
            return Err(PlanError { mistakes });
        }
        self.check_size(plan)?;
        let mut steps = Vec::new();
        for step in &plan.steps {
            let player = self.step_player(plan, step, plan.replicas);
            let recording = in_thread(|| player.play()).map_err(|mistakes| PlanError { mistakes })?;
            steps.push(StepEvidence::of(step, plan.replicas, &self.config, &recording));
        }
        let seed = self.seed.unwrap_or(plan.seed);
        Ok(Evidence::new(plan.name.clone(), seed, plan.replicas, steps))
    }

    fn check_size(&self, plan: &Plan) -> Result<(), PlanError> {
        let policies = self.config.policies().len();
        if u64::from(plan.replicas).saturating_mul(policies as u64) > MAX_PIPELINES {
            let reason = format!("{} replicas × {policies} policies are more than {MAX_PIPELINES}", plan.replicas);
            return Err(PlanError { mistakes: vec![Mistake::new("replicas", reason).located_at(&plan.name)] });
        }
        let mut estimate = self.count(plan);
        let dearest = DEAREST_CALL.as_secs_f64() * estimate.calls as f64;
        if estimate.largest_step <= MAX_CALLS && dearest <= self.budget.as_secs_f64() {
            return Ok(());
        }
        estimate = self.estimate(plan);
        let advice = "shorten a duration, lower a rate or the number of replicas";
        let reason = if estimate.takes > self.budget {
            format!("would take {estimate}; the budget is {}: {advice}, or raise the budget", span(self.budget))
        } else if estimate.largest_step > MAX_CALLS {
            let calls = estimate.largest_step;
            format!("would take {estimate}, and a step has {calls} calls of at most {MAX_CALLS}: {advice}")
        } else {
            return Ok(());
        };
        Err(PlanError { mistakes: vec![Mistake::new("", reason).located_at(&plan.name)] })
    }
}

impl fmt::Debug for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Player").field("seed", &self.seed).field("budget", &self.budget).finish_non_exhaustive()
    }
}

/// Runs work in a thread of its own: a runtime cannot be started inside another one.
fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Hashes a text with FNV-1a, which is the same in every process.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

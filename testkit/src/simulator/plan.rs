//! A plan: the fleet, its load and the faults, as data. One seed makes one plan; a file holds one too.

use std::time::Duration;

use phalanx::policy::{LimitCost, LimitKey, LimitSpec};
use phalanx::{BreakerSpec, BulkheadSpec, Consistency, Policy, RateLimitSpec};
use phalanx_core::budget::BudgetSpec;
use phalanx_core::rng::Rng;
use serde::{Deserialize, Serialize};

/// Everything that decides a simulated run, with the seed of what is random in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The seed of everything random in the run.
    pub seed: u64,
    /// How many replicas the fleet has.
    pub replicas: usize,
    /// How long the run takes, in virtual seconds.
    pub seconds: u64,
    /// Masters of a Cluster; 1 is a single server.
    #[serde(default = "one")]
    pub masters: usize,
    /// The least one-way delay of the network, in milliseconds.
    #[serde(default)]
    pub latency_ms: u64,
    /// How much longer a message may take, in milliseconds.
    #[serde(default)]
    pub jitter_ms: u64,
    /// How often a replica syncs with Redis, in milliseconds.
    #[serde(default = "sync_interval")]
    pub sync_interval_ms: u64,
    /// Whether the replicas compete for a lock all the time.
    #[serde(default)]
    pub lock: bool,
    /// The policies; each is called on one route.
    pub policies: Vec<Policy>,
    /// The calls.
    #[serde(default)]
    pub loads: Vec<Load>,
    /// The faults.
    #[serde(default)]
    pub faults: Vec<Fault>,
}

const fn one() -> usize {
    1
}

const fn sync_interval() -> u64 {
    250
}

/// Calls of one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// The policy that is called.
    pub policy: String,
    /// The replica that calls; all of them if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<usize>,
    /// How the calls arrive.
    pub shape: Shape,
    /// Calls a second of each replica; callers in a closed loop.
    pub per_second: f64,
    /// Permits a call takes.
    #[serde(default = "one_permit")]
    pub cost: u32,
    /// Among how many values of the tag `tenant` the calls are divided; 0 for calls without it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tenants: u64,
    /// How long the operation takes, in milliseconds.
    #[serde(default)]
    pub operation_ms: u64,
    /// The share of calls that their callers drop before they end.
    #[serde(default)]
    pub cancelled: f64,
    /// The deadline of every call, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Whether calls settle another cost than they took, and some charge or refund permits by hand.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub settled: bool,
}

const fn one_permit() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How calls arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// At random times, with a constant mean rate.
    Steady,
    /// All calls of two seconds at once.
    Bursts,
    /// A number of callers that each call again when they have their answer.
    Closed,
}

/// A fault, from `at_ms` for `for_ms`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// When it begins, in milliseconds.
    pub at_ms: u64,
    /// How long it lasts, in milliseconds; without meaning for a fault of a moment.
    #[serde(default)]
    pub for_ms: u64,
    /// What happens.
    #[serde(flatten)]
    pub kind: FaultKind,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum FaultKind {
    /// A replica is killed, and starts again at the end.
    KillReplica {
        /// Which.
        replica: usize,
    },
    /// A replica is suspended.
    PauseReplica {
        /// Which.
        replica: usize,
    },
    /// Replicas cannot reach Redis.
    Partition {
        /// How many, from the first.
        replicas: usize,
    },
    /// Redis is stopped, and starts again with its data.
    StopRedis,
    /// Redis is stopped, and starts again without data.
    RestartEmpty,
    /// Redis is stopped, and starts again with data of this many milliseconds before.
    RestartOld {
        /// How old the data is.
        age_ms: u64,
    },
    /// Redis accepts requests and answers nothing.
    HangRedis,
    /// Every reply takes longer.
    SlowRedis {
        /// By how much.
        by_ms: u64,
    },
    /// Every n-th reply is late.
    LateReplies {
        /// n.
        every: u64,
        /// By how much.
        by_ms: u64,
    },
    /// Every n-th reply is lost; its request was executed.
    LoseReplies {
        /// n.
        every: u64,
    },
    /// Every n-th request is executed after its sender has given up.
    ExecuteLater {
        /// n.
        every: u64,
        /// How much later.
        by_ms: u64,
    },
    /// Pushed messages are lost.
    LosePushes,
    /// Pushed messages are late.
    DelayPushes {
        /// By how much.
        by_ms: u64,
    },
    /// Pushed messages arrive twice.
    DoublePushes,
    /// A replica of the server takes over; it lacks the last writes, and its clock differs.
    FailOver {
        /// The writes of this time are lost.
        lost_ms: u64,
        /// How far its clock is ahead.
        skew_ms: i64,
    },
    /// The server's clock is set.
    StepServerClock {
        /// By how much, forward or back.
        by_ms: i64,
    },
    /// The clock of a replica is set.
    StepReplicaClock {
        /// Which replica.
        replica: usize,
        /// By how much, forward or back.
        by_ms: i64,
    },
    /// All keys are removed.
    Flush,
    /// All loaded scripts are forgotten.
    FlushScripts,
    /// Every script is answered with an error.
    RedisError {
        /// The error.
        error: String,
    },
    /// A quarter of the slots moves to another master.
    MoveSlots {
        /// To which.
        master: usize,
    },
    /// One master of a Cluster is stopped.
    StopMaster {
        /// Which.
        master: usize,
    },
    /// The operation of a policy fails.
    DependencyFails {
        /// Of which policy.
        policy: String,
        /// The share of calls that fail.
        share: f64,
    },
    /// The operation of a policy takes longer.
    DependencySlow {
        /// Of which policy.
        policy: String,
        /// By how much.
        by_ms: u64,
    },
    /// The limits of a policy are halved on all replicas, one after the other, and restored.
    Retune {
        /// Of which policy.
        policy: String,
    },
    /// One replica runs another version of all policies: half the rate, twice the window.
    MixedPolicies {
        /// Which replica.
        replica: usize,
    },
    /// One replica runs the next release: its scripts store one more field.
    NextRelease {
        /// Which replica.
        replica: usize,
    },
    /// An operator forces a breaker open, and releases it at the end.
    ForceOpen {
        /// Of which policy.
        policy: String,
        /// On which replica the operator works.
        replica: usize,
    },
    /// A lever holds a policy's breaker open in one process.
    Lever {
        /// Of which policy.
        policy: String,
        /// On which replica.
        replica: usize,
    },
}

impl FaultKind {
    /// The name in plans and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::KillReplica { .. } => "kill_replica",
            Self::PauseReplica { .. } => "pause_replica",
            Self::Partition { .. } => "partition",
            Self::StopRedis => "stop_redis",
            Self::RestartEmpty => "restart_empty",
            Self::RestartOld { .. } => "restart_old",
            Self::HangRedis => "hang_redis",
            Self::SlowRedis { .. } => "slow_redis",
            Self::LateReplies { .. } => "late_replies",
            Self::LoseReplies { .. } => "lose_replies",
            Self::ExecuteLater { .. } => "execute_later",
            Self::LosePushes => "lose_pushes",
            Self::DelayPushes { .. } => "delay_pushes",
            Self::DoublePushes => "double_pushes",
            Self::FailOver { .. } => "fail_over",
            Self::StepServerClock { .. } => "step_server_clock",
            Self::StepReplicaClock { .. } => "step_replica_clock",
            Self::Flush => "flush",
            Self::FlushScripts => "flush_scripts",
            Self::RedisError { .. } => "redis_error",
            Self::MoveSlots { .. } => "move_slots",
            Self::StopMaster { .. } => "stop_master",
            Self::DependencyFails { .. } => "dependency_fails",
            Self::DependencySlow { .. } => "dependency_slow",
            Self::Retune { .. } => "retune",
            Self::MixedPolicies { .. } => "mixed_policies",
            Self::NextRelease { .. } => "next_release",
            Self::ForceOpen { .. } => "force_open",
            Self::Lever { .. } => "lever",
        }
    }

    /// All names, in the order of the enum.
    pub const NAMES: [&'static str; 29] = [
        "kill_replica",
        "pause_replica",
        "partition",
        "stop_redis",
        "restart_empty",
        "restart_old",
        "hang_redis",
        "slow_redis",
        "late_replies",
        "lose_replies",
        "execute_later",
        "lose_pushes",
        "delay_pushes",
        "double_pushes",
        "fail_over",
        "step_server_clock",
        "step_replica_clock",
        "flush",
        "flush_scripts",
        "redis_error",
        "move_slots",
        "stop_master",
        "dependency_fails",
        "dependency_slow",
        "retune",
        "mixed_policies",
        "next_release",
        "force_open",
        "lever",
    ];
}

/// The bounds of generated plans.
const MIN_SECONDS: u64 = 60;

impl Plan {
    /// Makes the plan of a seed: five replicas, four routes, fifty calls a second on each replica, a minute, and three to
    /// seven faults. Besides, one seed of four has a leased limit, the next one a limit whose calls settle their cost, then a
    /// concurrency cap, then a policy with three limits. The last fifth of the run has no fault, so that the fleet can recover.
    pub fn of_seed(seed: u64) -> Self {
        let rng = Rng::seeded(seed ^ 0x5048_414C_414E_5821);
        let pick = |n: u64| rng.next() % n;
        let masters = if pick(5) == 0 { 3 } else { 1 };
        let policies = Self::standard_policies();
        let mut loads = Vec::new();
        for policy in &policies {
            let shape = match pick(4) {
                0 => Shape::Bursts,
                1 => Shape::Closed,
                _ => Shape::Steady,
            };
            let per_second = if shape == Shape::Closed { 1.0 } else { 12.5 };
            let cost = if policy.rate_limit.is_some() && pick(4) == 0 { 2 } else { 1 };
            let cancelled = if pick(3) == 0 { 0.1 } else { 0.0 };
            let deadline_ms = (pick(4) == 0).then_some(200);
            let operation_ms = 5 + pick(40);
            let operation_ms = if shape == Shape::Closed { 80 } else { operation_ms };
            loads.push(Load {
                policy: policy.name.clone(),
                replica: None,
                shape,
                per_second,
                cost,
                tenants: 0,
                operation_ms,
                cancelled,
                deadline_ms,
                settled: false,
            });
        }
        if pick(3) == 0 {
            // Skewed: one replica calls one policy far more often than the others.
            let policy = policies[pick(policies.len() as u64) as usize].name.clone();
            loads.push(Load {
                policy,
                replica: Some(pick(5) as usize),
                shape: Shape::Steady,
                per_second: 25.0,
                cost: 1,
                tenants: 0,
                operation_ms: 10,
                cancelled: 0.0,
                deadline_ms: None,
                settled: false,
            });
        }
        let mut plan = Self {
            seed,
            replicas: 5,
            seconds: MIN_SECONDS,
            masters,
            latency_ms: pick(3),
            jitter_ms: pick(3),
            sync_interval_ms: [250, 500, 1_000][pick(3) as usize],
            lock: true,
            policies,
            loads,
            faults: Vec::new(),
        };
        let count = 3 + pick(5);
        // A dependency that fails belongs to every run: breakers that never trip show nothing.
        plan.faults.push(Fault {
            at_ms: 4_000 + pick(8_000),
            for_ms: 2_000 + pick(6_000),
            kind: FaultKind::DependencyFails { policy: "guarded".to_owned(), share: 1.0 },
        });
        if pick(3) == 0 {
            // Fails too rarely to trip the breaker, so that retries are made all the time.
            plan.faults.push(Fault {
                at_ms: 4_000 + pick(8_000),
                for_ms: 5_000 + pick(20_000),
                kind: FaultKind::DependencyFails { policy: "whole".to_owned(), share: 0.35 },
            });
        }
        for _ in 0..count {
            let kind = plan.random_fault(&rng);
            let fault = (0..20).find_map(|_| {
                let mut fault = Fault { at_ms: 2_000 + pick(38_000), for_ms: 1_500 + pick(5_000), kind: kind.clone() };
                if kind.needs_calls() {
                    fault.for_ms += 1_000; // bursts are two seconds apart
                }
                if kind.is_of_pushes() {
                    // The breaker of the first fault trips, so something is pushed.
                    fault.at_ms = plan.faults[0].at_ms - pick(500);
                    fault.for_ms += 1_500;
                }
                let hidden = plan.faults.iter().any(|other| other.hides(&fault) || fault.hides(other));
                (!hidden).then_some(fault)
            });
            plan.faults.extend(fault);
        }
        if seed.is_multiple_of(4) {
            plan.add_leases(&rng);
        }
        if seed % 4 == 1 {
            plan.add_settled_calls(&rng);
        }
        if seed % 4 == 2 {
            plan.add_slots(&rng);
        }
        if seed % 4 == 3 {
            plan.add_several_limits(&rng);
        }
        plan.faults.sort_by_key(|fault| fault.at_ms);
        plan
    }

    /// Adds a leased limit, which is full every two seconds. One replica leases all the time and calls for more than there is at
    /// once; another one leases at times.
    fn add_leases(&mut self, rng: &Rng) {
        let pick = |n: u64| rng.next() % n;
        let limit = RateLimitSpec::per_second(400).burst(200).consistency(Consistency::Leased);
        self.policies.push(Policy::named("leased").rate_limit(limit));
        let (first, second) = (pick(5) as usize, pick(5) as usize);
        let loads = [(first, Shape::Steady, 140.0), (first, Shape::Bursts, 125.0), (second, Shape::Steady, 100.0)];
        for (replica, shape, per_second) in loads {
            self.loads.push(Load {
                policy: "leased".to_owned(),
                replica: Some(replica),
                shape,
                per_second,
                cost: 1,
                tenants: 0,
                operation_ms: 5,
                cancelled: if pick(3) == 0 { 0.1 } else { 0.0 },
                deadline_ms: None,
                settled: false,
            });
        }
        if pick(2) == 0 {
            let (at_ms, for_ms) = (2_000 + pick(38_000), 2_500 + pick(5_000));
            self.faults.push(Fault { at_ms, for_ms, kind: FaultKind::Retune { policy: "leased".to_owned() } });
        }
    }

    /// Adds a concurrency cap for which the replicas compete: together they want more than there is, one of them far more.
    fn add_slots(&mut self, rng: &Rng) {
        let pick = |n: u64| rng.next() % n;
        self.policies.push(Policy::named("capped").bulkhead(BulkheadSpec::fixed(16).fleet_max_concurrency(20)));
        let busy = pick(5) as usize;
        for (replica, per_second) in [(None, 8.0 + pick(20) as f64), (Some(busy), 40.0)] {
            self.loads.push(Load {
                policy: "capped".to_owned(),
                replica,
                shape: if pick(3) == 0 { Shape::Bursts } else { Shape::Steady },
                per_second,
                cost: 1,
                tenants: 0,
                operation_ms: 100 + pick(400),
                cancelled: if pick(3) == 0 { 0.1 } else { 0.0 },
                deadline_ms: None,
                settled: false,
            });
        }
        if pick(2) == 0 {
            // Longer than a lease.
            let (at_ms, for_ms) = (2_000 + pick(36_000), 4_000 + pick(4_000));
            let fault = Fault { at_ms, for_ms, kind: FaultKind::PauseReplica { replica: busy } };
            if !self.faults.iter().any(|other| other.hides(&fault) || fault.hides(other)) {
                self.faults.push(fault);
            }
        }
    }

    /// Adds a limit whose calls settle their cost, after up to half a second. It is leased in half of the plans. Its breaker never
    /// trips: it keeps the estimates of these calls out of the oracles that take them for what calls have cost.
    fn add_settled_calls(&mut self, rng: &Rng) {
        let pick = |n: u64| rng.next() % n;
        let consistency = if pick(2) == 0 { Consistency::Leased } else { Consistency::Exact };
        let limit = RateLimitSpec::per_second(400).burst(300).consistency(consistency);
        let breaker = BreakerSpec::failure_ratio(1.0).min_throughput(1_000_000);
        self.policies.push(Policy::named("settled").rate_limit(limit).breaker(breaker));
        for (per_second, operation_ms) in [(40.0, 5), (20.0, 500)] {
            self.loads.push(Load {
                policy: "settled".to_owned(),
                replica: Some(pick(5) as usize),
                shape: Shape::Steady,
                per_second,
                cost: 2,
                tenants: 0,
                operation_ms,
                cancelled: if pick(3) == 0 { 0.1 } else { 0.0 },
                deadline_ms: None,
                settled: true,
            });
        }
        if pick(2) == 0 {
            let (at_ms, for_ms) = (2_000 + pick(38_000), 2_500 + pick(5_000));
            self.faults.push(Fault { at_ms, for_ms, kind: FaultKind::Retune { policy: "settled".to_owned() } });
        }
    }

    /// Adds a policy with three limits, each of which rejects at times: of all calls, of the route, and of three tenants.
    fn add_several_limits(&mut self, rng: &Rng) {
        let pick = |n: u64| rng.next() % n;
        let wait = Duration::from_millis([0, 0, 120][pick(3) as usize]);
        let all = LimitSpec::per_second(70).burst(35).key(LimitKey::Policy).cost(LimitCost::Fixed(1));
        let route = LimitSpec::per_second(90).burst(45);
        let tenant = LimitSpec::per_second(30).burst(15).key(LimitKey::tag("tenant"));
        let tenant = if wait.is_zero() { tenant } else { tenant.max_wait(wait) };
        let policy = Policy::named("several").limit("all", all).limit("route", route).limit("tenant", tenant);
        self.policies.push(policy);
        for (shape, per_second) in [(Shape::Steady, 15.0), (Shape::Bursts, 8.0)] {
            self.loads.push(Load {
                policy: "several".to_owned(),
                replica: None,
                shape,
                per_second,
                cost: 1 + pick(2) as u32,
                tenants: 3,
                operation_ms: 5,
                cancelled: if pick(3) == 0 { 0.1 } else { 0.0 },
                deadline_ms: None,
                settled: false,
            });
        }
        if pick(2) == 0 {
            let (at_ms, for_ms) = (2_000 + pick(38_000), 2_500 + pick(5_000));
            self.faults.push(Fault { at_ms, for_ms, kind: FaultKind::Retune { policy: "several".to_owned() } });
        }
    }

    /// The four policies of generated plans: a limit, a breaker, both with retries, and a breaker by ratio.
    pub fn standard_policies() -> Vec<Policy> {
        let second = Duration::from_secs(1);
        vec![
            Policy::named("limited").rate_limit(RateLimitSpec::per_second(40).burst(20)),
            Policy::named("guarded").breaker(
                BreakerSpec::consecutive_failures(5).break_for(3 * second).probes(2, 2).probe_lease(2 * second),
            ),
            Policy::named("whole")
                .rate_limit(RateLimitSpec::per_second(50).burst(50))
                .breaker(
                    BreakerSpec::failure_ratio(0.5)
                        .window(5 * second)
                        .min_throughput(20)
                        .break_for(2 * second)
                        .probe_lease(2 * second),
                )
                .retry(phalanx::RetrySpec::attempts(3).budget(BudgetSpec::ratio(0.2)))
                .idempotent()
                .timeout(Duration::from_millis(500)),
            Policy::named("ratio").breaker(
                BreakerSpec::failure_ratio(0.6)
                    .window(10 * second)
                    .min_throughput(10)
                    .break_for(2 * second)
                    .probes(1, 1)
                    .probe_lease(second),
            ),
        ]
    }

    fn random_fault(&self, rng: &Rng) -> FaultKind {
        let pick = |n: u64| rng.next() % n;
        let replica = pick(self.replicas as u64) as usize;
        let policy = self.policies[pick(self.policies.len() as u64) as usize].name.clone();
        let breaker = ["guarded", "whole", "ratio"][pick(3) as usize].to_owned();
        let limited = ["limited", "whole"][pick(2) as usize].to_owned();
        let single = self.masters == 1;
        match pick(29) {
            0 => FaultKind::KillReplica { replica },
            1 => FaultKind::PauseReplica { replica },
            2 => FaultKind::Partition { replicas: 1 + replica % 3 },
            3 => FaultKind::StopRedis,
            4 => FaultKind::RestartEmpty,
            5 if single => FaultKind::RestartOld { age_ms: 500 + pick(5_000) },
            6 => FaultKind::HangRedis,
            7 => FaultKind::SlowRedis { by_ms: 1 + pick(30) },
            8 => FaultKind::LateReplies { every: 2 + pick(6), by_ms: 25 + pick(100) },
            9 => FaultKind::LoseReplies { every: 2 + pick(6) },
            10 => FaultKind::ExecuteLater { every: 2 + pick(6), by_ms: 30 + pick(1_000) },
            11 => FaultKind::LosePushes,
            12 => FaultKind::DelayPushes { by_ms: 20 + pick(2_000) },
            13 => FaultKind::DoublePushes,
            14 if single => FaultKind::FailOver { lost_ms: pick(2_000), skew_ms: pick(4_000) as i64 - 2_000 },
            15 => FaultKind::StepServerClock { by_ms: pick(20_000) as i64 - 10_000 },
            16 => FaultKind::StepReplicaClock { replica, by_ms: pick(20_000) as i64 - 10_000 },
            17 => FaultKind::Flush,
            18 => FaultKind::FlushScripts,
            19 => {
                let errors = [
                    "READONLY You can't write against a read only replica.",
                    "LOADING Redis is loading",
                    "OOM command not allowed",
                ];
                FaultKind::RedisError { error: errors[pick(3) as usize].to_owned() }
            }
            20 if !single => FaultKind::MoveSlots { master: pick(3) as usize },
            21 if !single => FaultKind::StopMaster { master: pick(3) as usize },
            22 => FaultKind::DependencyFails { policy: breaker, share: 0.3 + 0.7 * rng.unit() },
            23 => FaultKind::DependencySlow { policy, by_ms: 50 + pick(600) },
            24 => FaultKind::Retune { policy: limited },
            25 => FaultKind::MixedPolicies { replica },
            26 => FaultKind::NextRelease { replica },
            27 => FaultKind::ForceOpen { policy: breaker, replica },
            28 => FaultKind::Lever { policy: breaker, replica },
            _ => FaultKind::HangRedis,
        }
    }

    /// Returns the number of a policy.
    pub(crate) fn policy(&self, name: &str) -> usize {
        self.policies.iter().position(|policy| policy.name == name).unwrap_or(0)
    }

    /// Returns when each fault begins and ends, in order: milliseconds, the number of the fault, whether it begins.
    pub(crate) fn moments(&self) -> Vec<(u64, usize, bool)> {
        let both =
            |(index, fault): (usize, &Fault)| [(fault.at_ms, index, true), (fault.at_ms + fault.for_ms, index, false)];
        let mut moments: Vec<_> = self.faults.iter().enumerate().flat_map(both).collect();
        moments.sort_by_key(|&(at, index, begins)| (at, index, !begins));
        moments
    }

    /// When the last fault ends, in milliseconds.
    pub fn last_fault_ends(&self) -> u64 {
        self.faults.iter().map(|fault| fault.at_ms + fault.for_ms).max().unwrap_or(0)
    }

    /// Reads a plan from TOML.
    ///
    /// # Errors
    /// Returns what is wrong, with its place, and everything else that makes the plan impossible.
    pub fn parse(text: &str) -> Result<Self, String> {
        let plan: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let mistakes = plan.mistakes();
        if mistakes.is_empty() { Ok(plan) } else { Err(mistakes.join("\n")) }
    }

    /// Writes the plan as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_else(|error| format!("# not expressible: {error}\n"))
    }

    /// Returns everything that makes the plan impossible.
    pub fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        let mut check = |right: bool, mistake: String| {
            if !right {
                mistakes.push(mistake);
            }
        };
        check((1..=10_000).contains(&self.replicas), format!("replicas: {} is not within 1 and 10,000", self.replicas));
        check((1..=86_400).contains(&self.seconds), format!("seconds: {} is not within 1 and 86,400", self.seconds));
        check((1..=16).contains(&self.masters), format!("masters: {} is not within 1 and 16", self.masters));
        check(self.latency_ms + self.jitter_ms <= 60_000, "latency_ms + jitter_ms: more than a minute".to_owned());
        check((1..=60_000).contains(&self.sync_interval_ms), "sync_interval_ms: not within 1 and 60,000".to_owned());
        check(self.policies.len() <= 10_000, "policies: more than 10,000".to_owned());
        check(
            self.faults.len() <= 10_000 && self.loads.len() <= 10_000,
            "faults or loads: more than 10,000".to_owned(),
        );
        for policy in &self.policies {
            for mistake in policy.mistakes() {
                check(false, mistake.to_string());
            }
        }
        let known = |name: &str| self.policies.iter().any(|policy| policy.name == name);
        let unknown = |name: &str| {
            let nearest = crate::simulator::nearest(name, self.policies.iter().map(|policy| policy.name.as_str()));
            format!("no policy is named {name:?}{nearest}")
        };
        for (index, load) in self.loads.iter().enumerate() {
            check(known(&load.policy), format!("loads[{index}].policy: {}", unknown(&load.policy)));
            check(
                load.replica.is_none_or(|replica| replica < self.replicas),
                format!("loads[{index}].replica: there is no such replica"),
            );
            check(
                load.per_second.is_finite() && load.per_second > 0.0 && load.per_second <= 1e5,
                format!("loads[{index}].per_second: {} is not within 0 and 100,000", load.per_second),
            );
            check(
                (0.0..=1.0).contains(&load.cancelled),
                format!("loads[{index}].cancelled: {} is not a share", load.cancelled),
            );
        }
        for (index, fault) in self.faults.iter().enumerate() {
            let (replica, policy, master) = fault.kind.targets();
            check(
                fault.at_ms + fault.for_ms <= self.seconds.saturating_mul(1_000),
                format!("faults[{index}]: ends after the run"),
            );
            check(
                replica.is_none_or(|replica| replica < self.replicas),
                format!("faults[{index}].replica: there is no such replica"),
            );
            if let Some(policy) = policy {
                check(known(policy), format!("faults[{index}].policy: {}", unknown(policy)));
            }
            check(
                master.is_none_or(|master| master < self.masters),
                format!("faults[{index}].master: there is no such master"),
            );
        }
        mistakes
    }
}

impl Fault {
    /// Whether this fault can keep the other one from having any effect.
    fn hides(&self, other: &Self) -> bool {
        // Recovery takes some seconds too.
        let overlap = self.at_ms < other.at_ms + other.for_ms && other.at_ms < self.at_ms + self.for_ms + 4_000;
        overlap && self.kind.hides(&other.kind)
    }
}

impl FaultKind {
    /// Whether it happens to published messages.
    const fn is_of_pushes(&self) -> bool {
        matches!(self, Self::LosePushes | Self::DelayPushes { .. } | Self::DoublePushes)
    }

    /// Whether it has no effect without a call of its policy or its replica.
    const fn needs_calls(&self) -> bool {
        matches!(
            self,
            Self::DependencySlow { .. }
                | Self::DependencyFails { .. }
                | Self::Retune { .. }
                | Self::MixedPolicies { .. }
                | Self::Lever { .. }
        )
    }

    /// Whether this fault can keep the other one from having any effect, if both happen at the same time.
    fn hides(&self, other: &Self) -> bool {
        let (replica, policy, _) = self.targets();
        let (other_replica, other_policy, _) = other.targets();
        match self {
            // Messages that are delayed or lost need a server that sends some.
            Self::StopRedis
            | Self::RestartEmpty
            | Self::RestartOld { .. }
            | Self::HangRedis
            | Self::RedisError { .. }
            | Self::FailOver { .. }
            | Self::StopMaster { .. }
            | Self::Partition { .. } => {
                let of_messages = matches!(
                    other,
                    Self::SlowRedis { .. }
                        | Self::LateReplies { .. }
                        | Self::LoseReplies { .. }
                        | Self::ExecuteLater { .. }
                );
                of_messages
                    || other.is_of_pushes()
                    || matches!(other, Self::ForceOpen { .. } | Self::NextRelease { .. })
            }
            // Both count the same replies, and one that is lost cannot be late.
            Self::LoseReplies { every } => {
                other.is_of_pushes() || matches!(other, Self::LateReplies { every: late, .. } if late % every == 0)
            }
            // Replicas that find Redis too slow trip without it, and nothing is pushed.
            Self::LateReplies { .. }
            | Self::ExecuteLater { .. }
            | Self::LosePushes
            | Self::DelayPushes { .. }
            | Self::DoublePushes => other.is_of_pushes(),
            // A process that does not run does nothing else.
            Self::KillReplica { .. } | Self::PauseReplica { .. } | Self::NextRelease { .. } => {
                replica == other_replica || (replica == Some(0) && matches!(other, Self::Partition { replicas: 1 }))
            }
            // A breaker that is held open admits nothing that could fail or be slow.
            Self::ForceOpen { .. } | Self::Lever { .. } | Self::DependencyFails { .. } => {
                let admits = matches!(
                    other,
                    Self::DependencyFails { .. }
                        | Self::DependencySlow { .. }
                        | Self::ForceOpen { .. }
                        | Self::Lever { .. }
                );
                admits && policy == other_policy
            }
            _ => false,
        }
    }

    /// The replica, the policy and the master that it concerns.
    pub(crate) fn targets(&self) -> (Option<usize>, Option<&str>, Option<usize>) {
        match self {
            Self::KillReplica { replica }
            | Self::PauseReplica { replica }
            | Self::StepReplicaClock { replica, .. }
            | Self::MixedPolicies { replica }
            | Self::NextRelease { replica } => (Some(*replica), None, None),
            Self::ForceOpen { policy, replica } | Self::Lever { policy, replica } => {
                (Some(*replica), Some(policy), None)
            }
            Self::DependencyFails { policy, .. } | Self::DependencySlow { policy, .. } | Self::Retune { policy } => {
                (None, Some(policy), None)
            }
            Self::MoveSlots { master } | Self::StopMaster { master } => (None, None, Some(*master)),
            _ => (None, None, None),
        }
    }
}

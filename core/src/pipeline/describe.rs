//! The description of a compiled pipeline, as data: logs, the CLI and tests print the same thing.

use std::fmt;
use std::time::Duration;

use super::stages::Stages;
use crate::breaker::BreakerSpec;
use crate::budget::BudgetSpec;
use crate::bulkhead::{AdaptiveSpec, BulkheadSpec};
use crate::chaos::ChaosSpec;
use crate::hedge::HedgeSpec;
use crate::key::StateKey;
use crate::levers::LeverSpec;
use crate::policy::{DeadlineSpec, OnDegraded};
use crate::rate_limit::{LimitCost, LimitSpec, RateLimitSpec};
use crate::retry::RetrySpec;
use crate::store::{StateScope, Store};
use crate::throttle::ThrottleSpec;

/// The description of a pipeline, stage by stage.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Description {
    /// The policy and route.
    pub key: StateKey,
    /// The version of the policy, from 1.
    pub version: u64,
    /// What it does while the shared store is unreachable.
    pub on_degraded: OnDegraded,
    /// The lever above the policy, if one is pulled. `stages` are those with the lever applied.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub lever: Option<LeverSpec>,
    /// The stages, outermost first. Empty for a pass-through.
    pub stages: Vec<StageDescription>,
}

/// The description of one stage.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum StageDescription {
    /// The time limit of the whole call.
    Deadline(DeadlineSpec),
    /// How many calls may start in a period.
    RateLimit(RateLimitSpec),
    /// One of several limits that are decided together, with its name.
    Limit {
        /// Its name.
        name: String,
        /// Its rate, key and cost.
        limit: Box<LimitSpec>,
    },
    /// How many calls may be in flight at a time.
    Bulkhead(BulkheadSpec),
    /// When to reject calls to a failing dependency.
    Breaker(BreakerSpec),
    /// What share of the calls to an overloaded dependency to reject.
    Throttle(ThrottleSpec),
    /// Which failures to retry, and how often.
    Retry(RetrySpec),
    /// When to start a second attempt beside a slow one.
    Hedge(HedgeSpec),
    /// The longest one attempt may take.
    Timeout(#[cfg_attr(feature = "serde", serde(with = "humantime_serde"))] Duration),
    /// The faults to inject, while a lever pulls the policy's chaos.
    Chaos(ChaosSpec),
    /// A custom guard.
    Guard {
        /// Its position: compare [`Stage::order`](crate::policy::Stage::order).
        order: u16,
        /// Its name.
        name: String,
    },
}

impl StageDescription {
    /// Returns the stage's name, as in a configuration file.
    pub fn name(&self) -> &str {
        match self {
            Self::Deadline(_) => "deadline",
            Self::RateLimit(_) => "rate_limit",
            Self::Limit { .. } => "limits",
            Self::Bulkhead(_) => "bulkhead",
            Self::Breaker(_) => "breaker",
            Self::Throttle(_) => "throttle",
            Self::Retry(_) => "retry",
            Self::Hedge(_) => "hedge",
            Self::Timeout(_) => "timeout",
            Self::Chaos(_) => "chaos",
            Self::Guard { name, .. } => name,
        }
    }

    fn order(&self) -> u16 {
        use crate::policy::Stage;
        match self {
            Self::Deadline(_) => Stage::Deadline.order(),
            Self::RateLimit(_) | Self::Limit { .. } => Stage::RateLimit.order(),
            Self::Bulkhead(_) => Stage::Bulkhead.order(),
            Self::Breaker(_) | Self::Throttle(_) => Stage::Circuit.order(),
            Self::Retry(_) => Stage::Retry.order(),
            Self::Hedge(_) => Stage::Hedge.order(),
            Self::Timeout(_) => Stage::Timeout.order(),
            Self::Chaos(_) => u16::MAX, // what it disturbs is the operation
            Self::Guard { order, .. } => *order,
        }
    }
}

impl Description {
    pub(super) fn of<S: Store>(stages: &Stages<S>) -> Self {
        let effective = stages.effective_policy();
        let policy = effective.with_lever();
        let guards = policy
            .guards
            .iter()
            .map(|guard| StageDescription::Guard { order: guard.order(), name: guard.name().to_owned() });
        let built_in = [
            policy.deadline.map(StageDescription::Deadline),
            policy.rate_limit.clone().map(StageDescription::RateLimit),
            policy.bulkhead.map(StageDescription::Bulkhead),
            effective.breaker().map(StageDescription::Breaker),
            policy.throttle.map(StageDescription::Throttle),
            policy.retry.map(StageDescription::Retry),
            policy.hedge.map(StageDescription::Hedge),
            policy.timeout.map(StageDescription::Timeout),
            effective.chaos().map(StageDescription::Chaos),
        ];
        let limits = policy
            .limits
            .iter()
            .map(|(name, limit)| StageDescription::Limit { name: name.to_owned(), limit: Box::new(limit.clone()) });
        let mut list: Vec<_> = built_in.into_iter().flatten().chain(limits).chain(guards).collect();
        list.sort_by_key(StageDescription::order); // stable: a guard with the order of a stage is inside it
        Self {
            key: (*stages.key).clone(),
            version: stages.version,
            on_degraded: stages.on_degraded,
            lever: stages.lever.as_deref().cloned(),
            stages: list,
        }
    }
}

/// One line per stage.
impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (version {})", self.key, self.version)?;
        if let Some(lever) = &self.lever {
            let pulled: Vec<_> = lever.pulled().collect();
            write!(f, "\n  {:<11}{}", "lever", pulled.join(", "))?;
            if let Some(reason) = &lever.reason {
                write!(f, " ({})", reason.escape_debug())?;
            }
        }
        if self.stages.is_empty() {
            return f.write_str("\n  pass-through");
        }
        self.stages.iter().try_for_each(|stage| {
            write!(f, "\n  {:<11}", stage.name())?;
            match stage {
                StageDescription::Deadline(spec) => match spec.total {
                    Some(total) => write!(f, "{total:?} in all"),
                    None => f.write_str("the caller's own"),
                },
                StageDescription::RateLimit(spec) => {
                    let (permits, per, burst) = (spec.permits, spec.per, spec.capacity());
                    write!(f, "{permits} per {per:?}, burst {burst}")
                }
                StageDescription::Limit { name, limit } => {
                    let (permits, per, burst) = (limit.permits, limit.per, limit.rate(None).capacity());
                    write!(f, "{name}: {permits} per {per:?}, burst {burst}, by {}", limit.key)?;
                    match limit.cost {
                        LimitCost::Call => Ok(()),
                        LimitCost::Fixed(permits) => write!(f, ", {permits} a call"),
                    }
                }
                StageDescription::Bulkhead(spec) => bulkhead(f, spec),
                StageDescription::Breaker(spec) => breaker(f, spec),
                StageDescription::Throttle(spec) => {
                    write!(f, "k {} over {:?}{}", spec.k, spec.window, of_the_fleet(spec.scope))
                }
                StageDescription::Retry(spec) => {
                    let kinds: Vec<_> = spec.retry_on.iter().map(|kind| kind.name()).collect();
                    let (base, max) = (spec.backoff.base, spec.backoff.max);
                    let kinds = kinds.join(", ");
                    write!(f, "{} attempts on {kinds}, {base:?} to {max:?} apart", spec.max_attempts)?;
                    spec.budget.map_or(Ok(()), |budget| budget_of_the_fleet(f, budget))
                }
                StageDescription::Hedge(spec) => hedge(f, spec),
                StageDescription::Timeout(limit) => write!(f, "{limit:?} an attempt"),
                StageDescription::Chaos(spec) => chaos(f, spec),
                StageDescription::Guard { order, .. } => write!(f, "guard at {order}"),
            }
        })
    }
}

fn bulkhead(f: &mut fmt::Formatter<'_>, spec: &BulkheadSpec) -> fmt::Result {
    let (least, most) = (spec.min_concurrency(), spec.max_concurrency);
    match (spec.adaptive, spec.gradient) {
        (Some(AdaptiveSpec { latency_threshold, latency_quantile: None, .. }), _) => {
            write!(f, "{least} to {most} at a time, fewer over {latency_threshold:?}")?;
        }
        (Some(AdaptiveSpec { latency_threshold, latency_quantile: Some(quantile), .. }), _) => {
            write!(f, "{least} to {most} at a time, fewer at a p{} over {latency_threshold:?}", quantile * 100.0)?;
        }
        (None, Some(spec)) => {
            write!(f, "{least} to {most} at a time, fewer over {} × its latency without load", spec.rtt_tolerance)?;
        }
        (None, None) => write!(f, "{most} at a time")?,
    }
    if let Some(slots) = spec.fleet_max_concurrency {
        write!(f, ", {slots} of the fleet")?;
    }
    if spec.max_queue > 0 {
        write!(f, ", {} may wait", spec.max_queue)?;
    }
    Ok(())
}

const fn of_the_fleet(scope: StateScope) -> &'static str {
    match scope {
        StateScope::Fleet => ", of the fleet",
        StateScope::Process => "",
    }
}

fn budget_of_the_fleet(f: &mut fmt::Formatter<'_>, budget: BudgetSpec) -> fmt::Result {
    match budget.scope {
        StateScope::Fleet => f.write_str(", one budget for the fleet"),
        StateScope::Process => Ok(()),
    }
}

fn hedge(f: &mut fmt::Formatter<'_>, spec: &HedgeSpec) -> fmt::Result {
    let (most, delay) = (spec.max_attempts, spec.delay);
    match spec.adaptive_delay_quantile {
        Some(quantile) => {
            write!(f, "{most} at a time, after the p{} ({delay:?} until it is known)", quantile * 100.0)?;
        }
        None => write!(f, "{most} at a time, after {delay:?}")?,
    }
    budget_of_the_fleet(f, spec.budget)
}

fn chaos(f: &mut fmt::Formatter<'_>, spec: &ChaosSpec) -> fmt::Result {
    let ChaosSpec { latency_ratio, latency, latency_max, error_ratio, rejection_ratio } = *spec;
    write!(f, "{latency_ratio} late by {latency:?}")?;
    if let Some(most) = latency_max {
        write!(f, " to {most:?}")?;
    }
    write!(f, ", {error_ratio} failing, {rejection_ratio} rejected")
}

fn breaker(f: &mut fmt::Formatter<'_>, spec: &BreakerSpec) -> fmt::Result {
    let mut conditions = Vec::new();
    if let Some(ratio) = spec.failure_ratio {
        conditions.push(format!("{ratio} failing"));
    }
    if let Some(failures) = spec.consecutive_failures {
        conditions.push(format!("{failures} failures in a row"));
    }
    if let (Some(ratio), Some(slow)) = (spec.slow_call_ratio, spec.slow_call_threshold) {
        conditions.push(format!("{ratio} slower than {slow:?}"));
    }
    if let Some(trip) = spec.latency_trip() {
        conditions.push(format!("p{} over {:?}", trip.quantile * 100.0, trip.threshold));
    }
    let (window, least, rest) = (spec.sampling_window, spec.min_throughput, spec.break_duration);
    write!(f, "opens for {rest:?} at {} of {least}+ calls in {window:?}", conditions.join(" or "))
}

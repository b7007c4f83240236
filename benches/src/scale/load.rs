//! What the processes of `scale` are asked to do and what they report: one JSON value a line.
//!
//! A process receives its [`Assignment`] as an argument, reports [`Reply::Ready`] when all its replicas have joined the fleet,
//! and answers each [`Order`] with one reply. It exits when its input ends.

use std::time::Duration;

use phalanx::{BreakerSpec, Policy, RateLimitSpec};
use serde::{Deserialize, Serialize};

use crate::figures::Row;
use crate::settings::{FAILURE_RATIO, LONG_BREAK, MIN_CALLS, UNREACHABLE_RATE};

/// The name of every policy here.
pub(crate) const NAME: &str = "bench";

/// The break of the circuits of [`Load::Probes`].
pub(crate) const SHORT_BREAK: Duration = Duration::from_secs(1);
/// How long a probe takes: longer than the case, so that every circuit stays half-open.
pub(crate) const PROBE: Duration = Duration::from_secs(60);
/// The limit of [`Load::Limited`], per second.
pub(crate) const LIMIT: u64 = 10;

/// The policy and the kind of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Load {
    /// A breaker over a failure ratio, and calls that are answered at once.
    Healthy,
    /// The same, with calls that fail after [`Order::Fail`], and an observer of the circuits that open.
    Failing,
    /// A breaker that opens at the first failure, for a second, and an observer of outages. Calls that are admitted take
    /// [`PROBE`].
    Probes,
    /// An exact limit of [`LIMIT`] a second, no breaker.
    Limited,
    /// The breaker of `Healthy`, and routes that are called only by [`Order::FirstCalls`].
    NewRoutes,
    /// The same behind an exact limit per route that rejects nothing.
    NewLimitedRoutes,
}

impl Load {
    pub(crate) fn policy(self) -> Policy {
        let policy = Policy::named(NAME);
        match self {
            Self::Healthy | Self::Failing | Self::NewRoutes => policy.breaker(on_ratio()),
            Self::Probes => {
                let breaker = BreakerSpec::consecutive_failures(1).break_for(SHORT_BREAK);
                policy.breaker(breaker.probe_lease(2 * PROBE))
            }
            Self::Limited => policy.rate_limit(RateLimitSpec::per_second(LIMIT)),
            Self::NewLimitedRoutes => {
                policy.rate_limit(RateLimitSpec::per_second(UNREACHABLE_RATE.into())).breaker(on_ratio())
            }
        }
    }

    /// Returns whether the routes are resolved before the calls begin.
    pub(crate) const fn has_known_routes(self) -> bool {
        !matches!(self, Self::NewRoutes | Self::NewLimitedRoutes)
    }
}

fn on_ratio() -> BreakerSpec {
    let breaker = BreakerSpec::failure_ratio(FAILURE_RATIO).window(Duration::from_secs(10)).min_throughput(MIN_CALLS);
    breaker.break_for(LONG_BREAK).escalate(1.0, LONG_BREAK)
}

/// The part of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Assignment {
    pub(crate) url: String,
    pub(crate) load: Load,
    /// The replicas of this process, and of all.
    pub(crate) replicas: u32,
    pub(crate) fleet: u32,
    pub(crate) routes: u32,
}

/// Written to a process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Call every circuit of every replica once, at this rate of each.
    CallOnce { per_s: f64 },
    /// Begin to call every circuit of every replica, this often.
    Call { per_s: f64 },
    /// Make one failing call on every route, by the first replica.
    FailOnce,
    /// Let every call fail from now on.
    Fail,
    /// Wait until every replica has seen every circuit open.
    AwaitOpen,
    /// Call every route once, one after the other.
    FirstCalls,
    /// Report what was counted.
    Count,
}

/// Written by a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Ready,
    Done,
    Counted(Count),
    Opened(Opened),
    FirstCalls(FirstCalls),
    Failed(String),
}

/// The smallest share of the planned calls, and the largest share of the replicas' time without Redis, at which a result
/// counts.
pub(crate) const MIN_MADE: f64 = 0.95;
pub(crate) const MAX_DEGRADED: f64 = 0.02;

/// Calls since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Count {
    /// Calls that had to be made by now, and those that were.
    pub(crate) planned: f64,
    pub(crate) made: u64,
    /// Of the latter: admitted, and rejected.
    pub(crate) admitted: u64,
    pub(crate) rejected: u64,
    /// How often a replica was looked at, and how often it was degraded.
    pub(crate) looks: u64,
    pub(crate) degraded: u64,
    /// How often replicas became degraded; only counted by loads with an observer.
    pub(crate) outages: u64,
}

impl Count {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            planned: self.planned + other.planned,
            made: self.made + other.made,
            admitted: self.admitted + other.admitted,
            rejected: self.rejected + other.rejected,
            looks: self.looks + other.looks,
            degraded: self.degraded + other.degraded,
            outages: self.outages + other.outages,
        }
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            planned: self.planned - earlier.planned,
            made: self.made - earlier.made,
            admitted: self.admitted - earlier.admitted,
            rejected: self.rejected - earlier.rejected,
            looks: self.looks - earlier.looks,
            degraded: self.degraded - earlier.degraded,
            outages: self.outages - earlier.outages,
        }
    }

    /// Returns the share of the planned calls that was made.
    pub(crate) fn made_share(self) -> f64 {
        if self.planned > 0.0 { self.made as f64 / self.planned } else { 1.0 }
    }

    /// Returns whether a result counts: enough of the planned calls were made, and the replicas used Redis, because one that
    /// is degraded costs nothing.
    pub(crate) fn is_valid(self) -> bool {
        self.made_share() >= MIN_MADE && self.degraded_share() <= MAX_DEGRADED
    }

    fn degraded_share(self) -> f64 {
        self.degraded as f64 / self.looks.max(1) as f64
    }

    /// Adds the number of calls, the share of the planned calls that was made, and the share of the replicas' time without
    /// Redis.
    pub(crate) fn figures(self, row: Row) -> Row {
        let row = row.with("calls_made", self.made_share());
        self.degraded_figure(row.with("calls", self.made as f64))
    }

    /// Adds the share of the replicas' time without Redis.
    pub(crate) fn degraded_figure(self, row: Row) -> Row {
        row.with("degraded", self.degraded_share())
    }
}

/// When circuits were seen open, on the machine's monotonic clock in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Opened {
    /// Circuits of replicas that were seen open.
    pub(crate) circuits: u32,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// First calls of routes, in microseconds, and the memory of the process before and after them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct FirstCalls {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) rss_before: u64,
    pub(crate) rss_after: u64,
}

#[cfg(test)]
mod tests {
    use super::Count;

    #[test]
    fn a_result_counts_if_nearly_all_planned_calls_were_made_by_replicas_that_used_redis() {
        let count = |made| Count { planned: 100.0, made, looks: 50, ..Count::default() };
        assert!(count(95).is_valid() && !count(94).is_valid());
        let degraded = |degraded| Count { degraded, ..count(100) };
        assert!(degraded(1).is_valid() && !degraded(2).is_valid());
        let both = count(40).plus(count(60));
        assert_eq!((both.planned, both.made), (200.0, 100));
        assert_eq!(both.since(count(40)), count(60));
    }
}

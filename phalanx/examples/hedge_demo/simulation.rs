//! The numbers: the load, the latencies of the dependency, and the hedges to compare.

use std::time::Duration;

use phalanx::HedgeSpec;
use phalanx::policy::BudgetSpec;
use phalanx::store::Rng;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The average load.
pub(crate) const CALLS_PER_SECOND: f64 = 200.0;
pub(crate) const DURATION: Duration = Duration::from_secs(30);

/// The median latency of the lognormal distribution.
pub(crate) const TYPICAL_LATENCY: Duration = ms(20);
const LATENCY_SPREAD: f64 = 0.35;
/// The fraction of calls that take [`OUTLIER_FACTOR`] times as long: a pause, a lost packet, a bad node.
pub(crate) const OUTLIER_RATIO: f64 = 0.02;
pub(crate) const OUTLIER_FACTOR: f64 = 20.0;
/// How many times longer everything takes while the dependency is slow.
pub(crate) const SLOWDOWN: f64 = 10.0;

/// The condition of the dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Normal,
    Slow,
}

/// How long the dependency takes for one call.
pub(crate) fn latency(condition: Condition, rng: &Rng) -> Duration {
    // Box-Muller: two uniform numbers give a normal one.
    let normal = (-2.0 * (1.0 - rng.unit()).ln()).sqrt() * (std::f64::consts::TAU * rng.unit()).cos();
    let outlier = if rng.unit() < OUTLIER_RATIO { OUTLIER_FACTOR } else { 1.0 };
    let slow = if condition == Condition::Slow { SLOWDOWN } else { 1.0 };
    TYPICAL_LATENCY.mul_f64((LATENCY_SPREAD * normal).exp() * outlier * slow)
}

/// The hedges to compare.
pub(crate) fn hedges(condition: Condition) -> Vec<(&'static str, Option<HedgeSpec>)> {
    let fixed = HedgeSpec::after(ms(50));
    let adaptive = fixed.at_quantile(0.95).between(ms(10), ms(1_000));
    let unlimited = fixed.budget(BudgetSpec::ratio(1.0));
    let none = ("no hedge", None);
    match condition {
        Condition::Normal => vec![none, ("hedge after 50 ms", Some(fixed)), ("hedge after the p95", Some(adaptive))],
        Condition::Slow => vec![
            none,
            ("after 50 ms, no budget", Some(unlimited)),
            ("after 50 ms, budget 20 %", Some(fixed)), // the default: a fifth of the calls, and one a second
            ("after the p95", Some(adaptive)),
        ],
    }
}

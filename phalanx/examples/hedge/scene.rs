//! The numbers: who asks how often, what the dependency does, and when a copy is sent.

use std::time::Duration;

use phalanx::HedgeSpec;
use phalanx::policy::BudgetSpec;
use phalanx::store::Rng;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Calls a second, on average.
pub(crate) const RATE: f64 = 200.0;
pub(crate) const LENGTH: Duration = Duration::from_secs(30);

/// An answer usually takes about this long (lognormal around it);
pub(crate) const TYPICAL: Duration = ms(20);
const SPREAD: f64 = 0.35;
/// two in a hundred are accidents that take so many times as long: a pause, a lost packet, a bad node.
pub(crate) const ACCIDENTS: f64 = 0.02;
pub(crate) const ACCIDENT: f64 = 20.0;
/// On a bad day everything takes so many times as long.
pub(crate) const BAD_DAY: f64 = 10.0;

/// What the dependency is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Day {
    Usual,
    Bad,
}

/// How long the dependency takes for one call.
pub(crate) fn latency(day: Day, chance: &Rng) -> Duration {
    // Box and Muller: two even draws make a normal one.
    let normal = (-2.0 * (1.0 - chance.unit()).ln()).sqrt() * (std::f64::consts::TAU * chance.unit()).cos();
    let accident = if chance.unit() < ACCIDENTS { ACCIDENT } else { 1.0 };
    let slow = if day == Day::Bad { BAD_DAY } else { 1.0 };
    TYPICAL.mul_f64((SPREAD * normal).exp() * accident * slow)
}

/// The hedges, from none to one that knows what is late.
pub(crate) fn hedges(day: Day) -> Vec<(&'static str, Option<HedgeSpec>)> {
    let fixed = HedgeSpec::after(ms(50));
    let adaptive = fixed.at_quantile(0.95).between(ms(10), ms(1_000));
    let boundless = fixed.budget(BudgetSpec::ratio(1.0));
    let none = ("no hedge", None);
    match day {
        Day::Usual => vec![none, ("a copy after 50 ms", Some(fixed)), ("a copy after the p95", Some(adaptive))],
        Day::Bad => vec![
            none,
            ("after 50 ms, no budget", Some(boundless)),
            ("after 50 ms, budget 20 %", Some(fixed)), // the default: a fifth of the calls, and one a second
            ("after the p95", Some(adaptive)),
        ],
    }
}

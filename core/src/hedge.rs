//! Hedging: if an attempt takes longer than most, a second one starts in parallel, and the first success wins.
//!
//! Hedges cut the latency tail of a dependency whose slow answers are exceptions (a pause, a lost packet, one bad node), at
//! the price of a few more calls (Dean and Barroso, "The Tail at Scale", 2013). They add load to a dependency that is slow
//! as a whole, so they draw from a budget, and a hedge starts only if the bulkhead has a free slot and the breaker admits
//! it. Only operations that may run twice can be hedged.

use std::time::Duration;

use crate::budget::BudgetSpec;

/// Configures hedging: when a hedge starts, and how many.
///
/// # Examples
/// ```
/// use std::cell::Cell;
///
/// use phalanx::{HedgeSpec, Policy, ResilienceModule};
/// # use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let hedge = HedgeSpec::after(Duration::from_millis(50));
/// let module = ResilienceModule::in_memory().policy(Policy::named("vendor").hedge(hedge).idempotent()).build()?;
/// let attempts = Cell::new(0);
/// let first_hangs = || async {
///     attempts.set(attempts.get() + 1);
///     if attempts.get() == 1 {
///         std::future::pending::<()>().await;
///     }
///     Ok::<_, std::io::Error>("answer")
/// };
/// let start = tokio::time::Instant::now();
/// assert_eq!(module.run("vendor", (), first_hangs).await.unwrap(), "answer");
/// assert_eq!((start.elapsed(), attempts.get()), (Duration::from_millis(50), 2), "the hedge answered");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct HedgeSpec {
    /// How long an attempt may take before a hedge starts, and each hedge before the next. With
    /// `adaptive_delay_quantile`, until there are enough samples.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub delay: Duration,
    /// Attempts at a time, the first included; at least 2. Default 2.
    #[cfg_attr(feature = "serde", serde(default = "two"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::AtLeastTwo"))]
    pub max_attempts: u32,
    /// Starts a hedge after this quantile of recent latencies (of the fleet, if digests are shared), between 0.0 and 1.0.
    /// Default none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Between"))]
    pub adaptive_delay_quantile: Option<f64>,
    /// The shortest adaptive delay, so that fast dependencies are not called twice for nothing. Default none.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub delay_min: Option<Duration>,
    /// The longest adaptive delay, so that a slow dependency does not put hedges off for ever. Default none.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub delay_max: Option<Duration>,
    /// The budget of hedges. Default: a fifth of the calls, and one a second.
    #[cfg_attr(feature = "serde", serde(default))]
    pub budget: BudgetSpec,
}

#[cfg(feature = "serde")]
const fn two() -> u32 {
    2
}

impl HedgeSpec {
    /// Starts a hedge after this delay.
    pub fn after(delay: Duration) -> Self {
        Self {
            delay,
            max_attempts: 2,
            adaptive_delay_quantile: None,
            delay_min: None,
            delay_max: None,
            budget: BudgetSpec::default(),
        }
    }

    /// Sets the attempts at a time, the first included.
    #[must_use]
    pub const fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Starts a hedge after this quantile of recent latencies.
    #[must_use]
    pub const fn at_quantile(mut self, quantile: f64) -> Self {
        self.adaptive_delay_quantile = Some(quantile);
        self
    }

    /// Sets the shortest and the longest adaptive delay.
    #[must_use]
    pub const fn between(mut self, least: Duration, most: Duration) -> Self {
        (self.delay_min, self.delay_max) = (Some(least), Some(most));
        self
    }

    /// Sets the budget of hedges.
    #[must_use]
    pub const fn budget(mut self, budget: BudgetSpec) -> Self {
        self.budget = budget;
        self
    }

    /// Returns the delay for an observed quantile, or the configured one if there is none.
    pub(crate) fn delay_at(&self, observed: Option<Duration>) -> Duration {
        let Some(observed) = observed else { return self.delay };
        // Not `clamp`, which panics if a file has the bounds in the wrong order.
        observed.min(self.delay_max.unwrap_or(Duration::MAX)).max(self.delay_min.unwrap_or(Duration::ZERO))
    }

    /// Returns the latest start of a hedge, counted from the first attempt.
    pub(crate) fn longest_delay(&self) -> Duration {
        let adaptive = self.adaptive_delay_quantile.and(self.delay_max).unwrap_or_default();
        self.delay.max(adaptive).saturating_mul(self.max_attempts.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_delay_follows_the_observed_quantile_within_its_bounds() {
        let spec = HedgeSpec::after(50 * MS).at_quantile(0.95).between(10 * MS, 200 * MS);
        assert_eq!(spec.delay_at(None), 50 * MS, "until there are samples");
        assert_eq!(spec.delay_at(Some(80 * MS)), 80 * MS);
        assert_eq!(spec.delay_at(Some(MS)), 10 * MS);
        assert_eq!(spec.delay_at(Some(900 * MS)), 200 * MS);
    }
}

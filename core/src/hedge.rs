//! Hedging: when an attempt takes longer than most, a copy of it races it, and the first good answer wins.
//!
//! It cuts the tail of a dependency whose slow answers are accidents (a pause, a lost packet, one bad node), at the price
//! of a few calls more (Dean and Barroso, "The Tail at Scale", 2013). It makes matters worse where everything is slow,
//! so copies draw from a budget, and a copy is sent only while a slot of the bulkhead is free and the circuit lets it
//! pass. Only operations that may run twice can be hedged.

use std::time::Duration;

use crate::budget::BudgetSpec;

/// When to send a copy, and how many.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct HedgeSpec {
    /// How long an attempt may take before a copy is sent, and each copy before the next. With
    /// `adaptive_delay_quantile`, until there are samples enough to know better.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub delay: Duration,
    /// How many may run at a time, the first included; at least 2. Default 2.
    #[cfg_attr(feature = "serde", serde(default = "two"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::AtLeastTwo"))]
    pub max_attempts: u32,
    /// Send a copy after this quantile of recent latencies, the fleet's where it is shared. Between 0.0 and 1.0. Default
    /// none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Between"))]
    pub adaptive_delay_quantile: Option<f64>,
    /// An adaptive delay is never shorter, so that quick dependencies are not asked twice for nothing. Default none.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub delay_min: Option<Duration>,
    /// An adaptive delay is never longer, so that a slow dependency does not put it off for ever. Default none.
    #[cfg_attr(feature = "serde", serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub delay_max: Option<Duration>,
    /// How many copies may be sent. Default: a fifth of the calls, and one a second.
    #[cfg_attr(feature = "serde", serde(default))]
    pub budget: BudgetSpec,
}

#[cfg(feature = "serde")]
const fn two() -> u32 {
    2
}

impl HedgeSpec {
    /// A copy after this long.
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

    /// How many may run at a time, the first included.
    #[must_use]
    pub const fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sends a copy after this quantile of recent latencies.
    #[must_use]
    pub const fn at_quantile(mut self, quantile: f64) -> Self {
        self.adaptive_delay_quantile = Some(quantile);
        self
    }

    /// An adaptive delay stays between these two.
    #[must_use]
    pub const fn between(mut self, least: Duration, most: Duration) -> Self {
        (self.delay_min, self.delay_max) = (Some(least), Some(most));
        self
    }

    /// How many copies may be sent.
    #[must_use]
    pub const fn budget(mut self, budget: BudgetSpec) -> Self {
        self.budget = budget;
        self
    }

    /// The delay for a quantile that was observed; none of it, if there is none.
    pub(crate) fn delay_at(&self, observed: Option<Duration>) -> Duration {
        let Some(observed) = observed else { return self.delay };
        // Not `clamp`, which panics where a file has them the wrong way round.
        observed.min(self.delay_max.unwrap_or(Duration::MAX)).max(self.delay_min.unwrap_or(Duration::ZERO))
    }

    /// The longest a copy can be sent after the attempt it belongs to, all delays together.
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
    fn the_delay_follows_what_is_observed_within_its_bounds() {
        let spec = HedgeSpec::after(50 * MS).at_quantile(0.95).between(10 * MS, 200 * MS);
        assert_eq!(spec.delay_at(None), 50 * MS, "until it is warm");
        assert_eq!(spec.delay_at(Some(80 * MS)), 80 * MS);
        assert_eq!(spec.delay_at(Some(MS)), 10 * MS);
        assert_eq!(spec.delay_at(Some(900 * MS)), 200 * MS);
    }
}

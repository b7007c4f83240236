//! The delay before the next attempt: a curve, a cap and a jitter.
//!
//! | jitter | the delay before attempt n + 1, with c = min(max, curve(n)) |
//! |---|---|
//! | `none` | c |
//! | `full` | uniform in 0 … c |
//! | `equal` | c/2 + uniform in 0 … c/2 |
//! | `decorrelated` | exponential: uniform in base … 3 × the delay before, capped; constant and linear: c × 0.5 … 1.5 |
//!
//! They are those of "Exponential Backoff and Jitter" (AWS Architecture Blog, 2015). Replicas that retry in step turn a
//! short failure into waves of load, so the default is `decorrelated`.

use std::time::Duration;

use crate::rng::Rng;

/// The delays between attempts.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx::policy::Jitter;
/// use phalanx::store::Rng;
/// use phalanx::Backoff;
///
/// let backoff = Backoff::exponential(Duration::from_millis(100)).max(Duration::from_millis(350)).jitter(Jitter::None);
/// let millis: Vec<_> = backoff.delays(Rng::seeded(1)).take(4).map(|delay| delay.as_millis()).collect();
/// assert_eq!(millis, [100, 200, 350, 350]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Backoff {
    /// How delays grow. Default `exponential`.
    pub curve: Curve,
    /// The first delay. Default 100 ms.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub base: Duration,
    /// The longest delay. Default 5 s.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub max: Duration,
    /// The growth of the exponential curve, at least 1.0. Default 2.0.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Factor"))]
    pub multiplier: f64,
    /// The random part of a delay. Default `decorrelated`.
    pub jitter: Jitter,
}

/// How delays grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Curve {
    /// base, base, base …
    Constant,
    /// base, 2 base, 3 base …
    Linear,
    /// base, base × multiplier, base × multiplier² …
    #[default]
    Exponential,
}

/// The random part of a delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Jitter {
    /// None.
    None,
    /// From zero to the curve.
    Full,
    /// From half of the curve to the curve.
    Equal,
    /// Random relative to the previous delay, so that callers do not stay in step.
    #[default]
    Decorrelated,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            curve: Curve::Exponential,
            base: Duration::from_millis(100),
            max: Duration::from_secs(5),
            multiplier: 2.0,
            jitter: Jitter::Decorrelated,
        }
    }
}

impl Backoff {
    /// Uses the same delay every time.
    pub fn constant(base: Duration) -> Self {
        Self::of(Curve::Constant, base)
    }

    /// Uses delays that grow by `base`.
    pub fn linear(base: Duration) -> Self {
        Self::of(Curve::Linear, base)
    }

    /// Uses delays that double, or grow by `multiplier`.
    pub fn exponential(base: Duration) -> Self {
        Self::of(Curve::Exponential, base)
    }

    fn of(curve: Curve, base: Duration) -> Self {
        let defaults = Self::default();
        Self {
            curve,
            base,
            // A base above the default cap raises it: the configured number takes precedence.
            max: defaults.max.max(base),
            ..defaults
        }
    }

    /// Sets the longest delay.
    #[must_use]
    pub const fn max(mut self, max: Duration) -> Self {
        self.max = max;
        self
    }

    /// Sets the growth of the exponential curve.
    #[must_use]
    pub const fn multiplier(mut self, multiplier: f64) -> Self {
        self.multiplier = multiplier;
        self
    }

    /// Sets the random part of a delay.
    #[must_use]
    pub const fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Returns the delay after `failed` attempts (1 after the first), given the delay before it (zero at first).
    pub fn delay(&self, failed: u32, before: Duration, rng: &Rng) -> Duration {
        let curve = self.on_curve(failed);
        match (self.jitter, self.curve) {
            (Jitter::None, _) => curve,
            (Jitter::Full, _) => rng.between(Duration::ZERO, curve),
            (Jitter::Equal, _) => rng.between(curve / 2, curve),
            (Jitter::Decorrelated, Curve::Exponential) => {
                let low = self.base.min(self.max);
                let high = before.max(low).saturating_mul(3).min(self.max);
                rng.between(low, high)
            }
            (Jitter::Decorrelated, _) => curve.mul_f64(0.5 + rng.unit()).min(self.max),
        }
    }

    /// Returns the delay if the dependency may have asked for one (`Retry-After`): at least that, and a little more unless
    /// jitter is off, so that callers with the same answer do not come back together.
    pub(crate) fn delay_asked(&self, failed: u32, before: Duration, asked: Option<Duration>, rng: &Rng) -> Duration {
        let own = self.delay(failed, before, rng);
        match (asked, self.jitter) {
            (None, _) => own,
            (Some(asked), Jitter::None) => own.max(asked),
            (Some(asked), _) => own.max(rng.between(asked, asked.saturating_add(self.base))),
        }
    }

    /// Returns all delays in order, for use without a policy.
    pub fn delays(&self, rng: Rng) -> impl Iterator<Item = Duration> + use<> {
        let backoff = *self;
        let mut before = Duration::ZERO;
        (1..=u32::MAX).map(move |failed| {
            before = backoff.delay(failed, before, &rng);
            before
        })
    }

    fn on_curve(&self, failed: u32) -> Duration {
        let base = self.base.as_secs_f64();
        let seconds = match self.curve {
            Curve::Constant => base,
            Curve::Linear => base * f64::from(failed),
            Curve::Exponential => base * self.multiplier.powf(f64::from(failed.saturating_sub(1))),
        };
        // More than a `Duration` can hold is more than the cap.
        Duration::try_from_secs_f64(seconds).unwrap_or(self.max).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::{any, prop_assert, proptest};

    fn millis(backoff: Backoff) -> Vec<u128> {
        let delays = backoff.max(Duration::from_millis(350)).delays(Rng::seeded(1));
        delays.take(5).map(|delay| delay.as_millis()).collect()
    }

    #[test]
    fn without_jitter_delays_follow_the_curve() {
        let base = Duration::from_millis(100);
        let plain = |backoff: Backoff| millis(backoff.jitter(Jitter::None));
        assert_eq!(plain(Backoff::constant(base)), [100; 5]);
        assert_eq!(plain(Backoff::linear(base)), [100, 200, 300, 350, 350]);
        assert_eq!(plain(Backoff::exponential(base)), [100, 200, 350, 350, 350]);
        let faster = Backoff::exponential(base).multiplier(3.0);
        assert_eq!(plain(faster), [100, 300, 350, 350, 350]);
    }

    #[test]
    fn delays_stay_at_the_cap_for_any_number_of_attempts() {
        let backoff = Backoff::exponential(Duration::from_secs(1)).jitter(Jitter::None);
        assert_eq!(backoff.delay(u32::MAX, Duration::ZERO, &Rng::seeded(1)), Duration::from_secs(5));
    }

    #[test]
    fn a_base_above_the_default_cap_raises_it() {
        let backoff = Backoff::constant(Duration::from_secs(60)).jitter(Jitter::None);
        assert_eq!(backoff.delay(1, Duration::ZERO, &Rng::seeded(1)), Duration::from_secs(60));
    }

    proptest! {
        #[test]
        fn every_jitter_stays_inside_its_bounds(seed in any::<u64>(), attempts in 1_u32..20) {
            let rng = Rng::seeded(seed);
            let base = Duration::from_millis(100);
            for curve in [Backoff::constant(base), Backoff::linear(base), Backoff::exponential(base)] {
                let mut before = Duration::ZERO;
                for failed in 1..=attempts {
                    let c = curve.jitter(Jitter::None).delay(failed, before, &rng);
                    prop_assert!(curve.jitter(Jitter::Full).delay(failed, before, &rng) <= c);
                    let equal = curve.jitter(Jitter::Equal).delay(failed, before, &rng);
                    prop_assert!(equal >= c / 2 && equal <= c);
                    let next = curve.delay(failed, before, &rng);
                    let (low, high) = match curve.curve {
                        Curve::Exponential => (base, before.max(base) * 3),
                        _ => (c.mul_f64(0.5), c.mul_f64(1.5)),
                    };
                    prop_assert!(next >= low && next <= high.min(curve.max), "{next:?}");
                    before = next;
                }
            }
        }
    }
}

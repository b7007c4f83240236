//! How long to wait before the next attempt: a curve, a cap and a jitter.
//!
//! | jitter | the wait before attempt n + 1, with c = min(max, curve(n)) |
//! |---|---|
//! | `none` | c |
//! | `full` | uniform in 0 … c |
//! | `equal` | c/2 + uniform in 0 … c/2 |
//! | `decorrelated` | exponential: uniform in base … 3 × the wait before, capped; constant and linear: c × 0.5 … 1.5 |
//!
//! The first three and the decorrelated form are from "Exponential Backoff and Jitter" (AWS Architecture Blog, 2015).
//! Waiting in step is how a fleet turns one hiccup into a storm, so the default is `decorrelated`.

use std::time::Duration;

use crate::rng::Rng;

/// The waits between attempts.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct Backoff {
    /// How waits grow. Default `exponential`.
    pub curve: Curve,
    /// The first wait. Default 100 ms.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub base: Duration,
    /// The longest wait. Default 5 s.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub max: Duration,
    /// Growth of the exponential curve, at least 1.0. Default 2.0.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Factor"))]
    pub multiplier: f64,
    /// How chance enters. Default `decorrelated`.
    pub jitter: Jitter,
}

/// How waits grow.
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

/// How chance enters a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Jitter {
    /// Not at all.
    None,
    /// Anything from nothing to the curve.
    Full,
    /// At least half the curve.
    Equal,
    /// Around the wait before, so that no two callers stay in step.
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
    /// The same wait every time.
    pub fn constant(base: Duration) -> Self {
        Self::of(Curve::Constant, base)
    }

    /// Waits that grow by `base`.
    pub fn linear(base: Duration) -> Self {
        Self::of(Curve::Linear, base)
    }

    /// Waits that double, or grow by `multiplier`.
    pub fn exponential(base: Duration) -> Self {
        Self::of(Curve::Exponential, base)
    }

    fn of(curve: Curve, base: Duration) -> Self {
        let defaults = Self::default();
        Self {
            curve,
            base,
            // A base above the usual cap lifts it: the author's own number comes first.
            max: defaults.max.max(base),
            ..defaults
        }
    }

    /// The longest wait.
    #[must_use]
    pub const fn max(mut self, max: Duration) -> Self {
        self.max = max;
        self
    }

    /// Growth of the exponential curve.
    #[must_use]
    pub const fn multiplier(mut self, multiplier: f64) -> Self {
        self.multiplier = multiplier;
        self
    }

    /// How chance enters.
    #[must_use]
    pub const fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// The wait after `failed` attempts (1 after the first), given the wait before it (zero at first).
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

    /// The same when the dependency asked for a wait: at least that, and unless jitter is off a little more, so that all
    /// who were told the same do not come back together.
    pub(crate) fn delay_asked(&self, failed: u32, before: Duration, asked: Option<Duration>, rng: &Rng) -> Duration {
        let own = self.delay(failed, before, rng);
        match (asked, self.jitter) {
            (None, _) => own,
            (Some(asked), Jitter::None) => own.max(asked),
            (Some(asked), _) => own.max(rng.between(asked, asked.saturating_add(self.base))),
        }
    }

    /// All waits in a row, for use without a policy.
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
        // Beyond what a Duration can hold is certainly beyond the cap.
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
    fn the_curves_without_jitter() {
        let base = Duration::from_millis(100);
        let plain = |backoff: Backoff| millis(backoff.jitter(Jitter::None));
        assert_eq!(plain(Backoff::constant(base)), [100; 5]);
        assert_eq!(plain(Backoff::linear(base)), [100, 200, 300, 350, 350]);
        assert_eq!(plain(Backoff::exponential(base)), [100, 200, 350, 350, 350]);
        let faster = Backoff::exponential(base).multiplier(3.0);
        assert_eq!(plain(faster), [100, 300, 350, 350, 350]);
    }

    #[test]
    fn attempts_without_end_stay_at_the_cap() {
        let backoff = Backoff::exponential(Duration::from_secs(1)).jitter(Jitter::None);
        assert_eq!(backoff.delay(u32::MAX, Duration::ZERO, &Rng::seeded(1)), Duration::from_secs(5));
    }

    #[test]
    fn a_base_above_the_usual_cap_lifts_it() {
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

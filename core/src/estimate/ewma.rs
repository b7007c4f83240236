//! An exponentially weighted moving average.
//!
//! ```text
//! vₙ = vₙ₋₁ + α·(xₙ − vₙ₋₁)        α = 2/(w + 1)
//! ```
//!
//! It moves by samples and not by time: the latest `w` have 1 − (1 − α)ʷ, about 86 %, of the weight, and the mean age of a
//! plain average over `w` (Roberts, "Control Chart Tests Based on Geometric Moving Averages", Technometrics 1959). The
//! first samples are averaged plainly, αₙ = 1/n, or the very first would have the weight of a whole window. Gradient2
//! keeps its long-term round-trip time in one (Netflix, concurrency-limits, `ExpAvgMeasurement`: w = 600, ten to warm up)
//! and scales it.
//!
//! **Error:** never outside the smallest and the largest sample. For independent samples with variance σ² the average has
//! the variance σ²·α/(2 − α) = σ²/w. After a step, 86 % of the difference is reached within `w` samples.

/// An exponentially weighted moving average.
///
/// # Examples
/// ```
/// use phalanx::estimate::ewma::Ewma;
///
/// let mut average = Ewma::new(9, 2); // α = 2/(9 + 1)
/// average.observe(10.0);
/// average.observe(20.0);
/// assert_eq!(average.value(), Some(15.0), "the first two are averaged plainly");
/// average.observe(25.0);
/// assert_eq!(average.value(), Some(17.0));
/// ```
#[derive(Clone, Debug)]
pub struct Ewma {
    alpha: f64,
    warm_up: u32,
    count: u32,
    value: f64,
}

impl Ewma {
    /// Creates an average over about `window` samples, of which the first `warm_up` are averaged plainly. At least one each.
    pub fn new(window: u32, warm_up: u32) -> Self {
        Self { alpha: 2.0 / (f64::from(window.max(1)) + 1.0), warm_up: warm_up.max(1), count: 0, value: 0.0 }
    }

    /// Adds one sample. Negative and non-finite samples are ignored.
    pub fn observe(&mut self, sample: f64) {
        if !(sample.is_finite() && sample >= 0.0) {
            return;
        }
        let weight = if self.count < self.warm_up {
            self.count += 1;
            1.0 / f64::from(self.count)
        } else {
            self.alpha
        };
        self.value += weight * (sample - self.value);
    }

    /// Returns the average; none before the first sample.
    pub fn value(&self) -> Option<f64> {
        (self.count > 0).then_some(self.value)
    }

    /// Multiplies the average by `factor`. A negative or non-finite factor changes nothing.
    pub fn scale(&mut self, factor: f64) {
        let scaled = self.value * factor;
        if factor >= 0.0 && scaled.is_finite() {
            self.value = scaled;
        }
    }

    /// Forgets all samples.
    pub const fn clear(&mut self) {
        self.count = 0;
        self.value = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(window: u32, warm_up: u32, samples: impl IntoIterator<Item = f64>) -> Ewma {
        let mut ewma = Ewma::new(window, warm_up);
        samples.into_iter().for_each(|sample| ewma.observe(sample));
        ewma
    }

    #[track_caller]
    fn assert_near(ewma: &Ewma, value: f64) {
        let estimate = ewma.value().unwrap();
        assert!((estimate - value).abs() < 1e-9, "{estimate} for {value}");
    }

    #[test]
    fn the_first_samples_are_averaged_plainly_and_later_ones_exponentially() {
        let mut ewma = of(9, 4, [10.0, 20.0, 30.0]);
        assert_near(&ewma, 20.0);
        ewma.observe(60.0);
        assert_near(&ewma, 30.0);
        ewma.observe(80.0); // α = 2/10
        assert_near(&ewma, 40.0);
        ewma.observe(0.0);
        assert_near(&ewma, 32.0);
    }

    #[test]
    fn there_is_no_average_before_the_first_sample() {
        let mut ewma = Ewma::new(10, 3);
        assert_eq!(ewma.value(), None);
        ewma.scale(2.0);
        ewma.observe(4.0);
        assert_eq!(ewma.value(), Some(4.0));
        ewma.clear();
        assert_eq!(ewma.value(), None);
    }

    #[test]
    fn a_step_is_followed_to_six_sevenths_within_the_window() {
        let mut ewma = of(600, 10, [1.0; 600]);
        (0..600).for_each(|_| ewma.observe(2.0));
        let left = 2.0 - ewma.value().unwrap();
        assert!((0.12..0.14).contains(&left), "{left}");
    }

    #[test]
    fn samples_after_scaling_move_the_scaled_average_also_while_warming_up() {
        let mut ewma = of(9, 4, [10.0, 10.0]);
        ewma.scale(0.5);
        assert_near(&ewma, 5.0);
        ewma.observe(11.0);
        assert_near(&ewma, 7.0);
        for factor in [f64::NAN, f64::INFINITY, -1.0] {
            ewma.scale(factor);
            assert_near(&ewma, 7.0);
        }
    }

    #[test]
    fn negative_and_non_finite_samples_are_ignored() {
        let mut ewma = of(9, 1, [10.0]);
        for sample in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
            ewma.observe(sample);
        }
        assert_near(&ewma, 10.0);
        assert_eq!(of(0, 0, [1.0, 5.0]).value(), Some(5.0));
    }

    proptest! {
        #[test]
        fn an_average_is_never_outside_its_samples(
            samples in prop::collection::vec(0.0..1e12_f64, 1..200), window in 1_u32..1_000, warm_up in 0_u32..20,
        ) {
            let estimate = of(window, warm_up, samples.iter().copied()).value().unwrap();
            let (least, most) = samples.iter().fold((f64::MAX, 0.0_f64), |(l, m), s| (l.min(*s), m.max(*s)));
            prop_assert!(least * (1.0 - 1e-12) <= estimate && estimate <= most * (1.0 + 1e-12));
        }
    }
}

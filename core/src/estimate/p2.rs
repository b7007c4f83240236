//! P²: estimates one quantile of a stream without storing its values.
//!
//! (Jain and Chlamtac, "The P² Algorithm for Dynamic Calculation of Quantiles and Histograms Without Storing
//! Observations", CACM 28(10), 1985.) Five markers approximate the smallest value, the p/2, p and (1+p)/2 quantiles and the
//! largest value. Each has a height (a value) and a position (how many values are at or below it). After the n-th value
//! the position of a marker should be
//!
//! ```text
//! n'ᵢ = 1 + (n − 1)·dᵢ        d = 0, p/2, p, (1+p)/2, 1
//! ```
//!
//! One of the inner three markers that is off by one or more moves by one, d = ±1, and its height moves along a parabola
//! through it and its neighbours:
//!
//! ```text
//! qᵢ + d/(nᵢ₊₁ − nᵢ₋₁) · ( (nᵢ − nᵢ₋₁ + d)·(qᵢ₊₁ − qᵢ)/(nᵢ₊₁ − nᵢ) + (nᵢ₊₁ − nᵢ − d)·(qᵢ − qᵢ₋₁)/(nᵢ − nᵢ₋₁) )
//! ```
//!
//! or along the straight line to the neighbour, if the parabola would overtake it.
//!
//! **Error:** there is no bound for every stream. Sorted values, or two clusters with the quantile at the edge of one, can
//! give a wrong estimate, though never one outside the values seen. For values in random order it is within a few per cent
//! (see the tests). Use the [digest](super::digest) where a bound is needed. Takes a hundred bytes, and about twenty
//! nanoseconds a value.

use super::has_enough_samples;

const MARKERS: usize = 5;

/// An estimator of one quantile.
///
/// # Examples
/// ```
/// use phalanx::estimate::p2::P2;
///
/// let mut median = P2::new(0.5);
/// (0..1_001).for_each(|i| median.observe(f64::from((i * 409) % 1_001)));
/// let estimate = median.quantile().unwrap();
/// assert!((estimate / 500.0 - 1.0).abs() < 0.05, "{estimate}");
/// ```
#[derive(Clone, Debug)]
pub struct P2 {
    quantile: f64,
    count: u64,
    heights: [f64; MARKERS],
    positions: [u64; MARKERS],
}

impl P2 {
    /// Creates an estimator without values. Returns no estimate for a number that is not a quantile (0.0 to 1.0, one
    /// excluded).
    pub const fn new(quantile: f64) -> Self {
        Self { quantile, count: 0, heights: [0.0; MARKERS], positions: [1, 2, 3, 4, 5] }
    }

    /// Adds one value. Negative and non-finite values are ignored.
    pub fn observe(&mut self, value: f64) {
        if !(value.is_finite() && value >= 0.0) {
            return;
        }
        self.count += 1;
        match usize::try_from(self.count) {
            Ok(count) if count <= MARKERS => self.start(count, value),
            _ => self.advance(value),
        }
    }

    /// Returns the quantile; none for fewer than 1/(1−q) values, or fewer than five.
    pub fn quantile(&self) -> Option<f64> {
        (self.count >= MARKERS as u64 && has_enough_samples(self.count, self.quantile)).then_some(self.heights[2])
    }

    /// Returns the number of values.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Forgets all values.
    pub const fn clear(&mut self) {
        *self = Self::new(self.quantile);
    }

    /// The first five values, sorted, are the initial heights of the markers.
    fn start(&mut self, count: usize, value: f64) {
        let seen = &mut self.heights[..count];
        seen[count - 1] = value;
        seen.sort_unstable_by(f64::total_cmp);
    }

    fn advance(&mut self, value: f64) {
        self.heights[0] = self.heights[0].min(value);
        self.heights[MARKERS - 1] = self.heights[MARKERS - 1].max(value);
        // Every marker above the value has one more value below it; the last marker has them all.
        for marker in 1..MARKERS {
            if marker == MARKERS - 1 || value < self.heights[marker] {
                self.positions[marker] += 1;
            }
        }
        let p = self.quantile;
        for (marker, share) in [(1, p / 2.0), (2, p), (3, p.midpoint(1.0))] {
            let wanted = 1.0 + (self.count - 1) as f64 * share;
            let position = self.positions[marker];
            let off = wanted - position as f64;
            if off >= 1.0 && self.positions[marker + 1] - position > 1 {
                self.heights[marker] = self.height_after(marker, 1.0, marker + 1);
                self.positions[marker] += 1;
            } else if off <= -1.0 && position - self.positions[marker - 1] > 1 {
                self.heights[marker] = self.height_after(marker, -1.0, marker - 1);
                self.positions[marker] -= 1;
            }
        }
    }

    /// Returns the height of an inner marker after a step of one towards a neighbour.
    fn height_after(&self, marker: usize, step: f64, neighbour: usize) -> f64 {
        let position = |marker: usize| self.positions[marker] as f64;
        let (low, high) = (self.heights[marker - 1], self.heights[marker + 1]);
        let (below, above) = (position(marker) - position(marker - 1), position(marker + 1) - position(marker));
        let height = self.heights[marker];
        let slope = (below + step) * (high - height) / above + (above - step) * (height - low) / below;
        let curved = height + step / (below + above) * slope;
        if low < curved && curved < high {
            return curved;
        }
        height + step * (self.heights[neighbour] - height) / (position(neighbour) - position(marker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    /// The twenty observations of the paper's worked example.
    const OBSERVATIONS: [f64; 20] = [
        0.02, 0.15, 0.74, 3.39, 0.83, 22.37, 10.15, 15.43, 38.62, 15.92, 34.60, 10.28, 1.47, 0.40, 0.05, 11.39, 0.27,
        0.42, 0.09, 11.37,
    ];

    fn of(quantile: f64, values: impl IntoIterator<Item = f64>) -> P2 {
        let mut p2 = P2::new(quantile);
        values.into_iter().for_each(|value| p2.observe(value));
        p2
    }

    #[test]
    fn the_worked_example_of_the_paper_is_reproduced_line_by_line() {
        // The number of observations, and then the heights and positions of the markers. The paper rounds to two digits
        // at every step, so its last digit is off towards the end.
        let table = [
            (5, [0.02, 0.15, 0.74, 0.83, 3.39], [1, 2, 3, 4, 5]),
            (6, [0.02, 0.15, 0.74, 0.83, 22.37], [1, 2, 3, 4, 6]),
            (7, [0.02, 0.15, 0.74, 4.47, 22.37], [1, 2, 3, 5, 7]),
            (8, [0.02, 0.15, 2.18, 8.60, 22.37], [1, 2, 4, 6, 8]),
            (9, [0.02, 0.87, 4.75, 15.52, 38.62], [1, 3, 5, 7, 9]),
            (10, [0.02, 0.87, 4.75, 15.52, 38.62], [1, 3, 5, 7, 10]),
            (11, [0.02, 0.87, 9.28, 21.58, 38.62], [1, 3, 6, 8, 11]),
            (13, [0.02, 2.14, 9.28, 21.58, 38.62], [1, 4, 7, 10, 13]),
            (15, [0.02, 0.74, 6.30, 21.58, 38.62], [1, 5, 8, 12, 15]),
            (17, [0.02, 0.59, 6.30, 17.22, 38.62], [1, 5, 9, 13, 17]),
            (20, [0.02, 0.50, 4.44, 17.22, 38.62], [1, 6, 10, 16, 20]),
        ];
        for (count, heights, positions) in table {
            let p2 = of(0.5, OBSERVATIONS[..count].iter().copied());
            assert_eq!(p2.positions, positions, "after {count}");
            for (height, expected) in p2.heights.iter().zip(heights) {
                assert!((height - expected).abs() < 0.02, "{:?} after {count}", p2.heights);
            }
        }
        let median = of(0.5, OBSERVATIONS).quantile().unwrap();
        assert!((median - 4.440_634).abs() < 1e-6, "{median}");
    }

    #[test]
    fn a_quantile_needs_enough_samples() {
        for (quantile, least) in [(0.0, 5), (0.5, 5), (0.9, 10), (0.95, 20), (0.99, 100)] {
            assert_eq!(of(quantile, (1..least).map(f64::from)).quantile(), None, "p{quantile} of one less");
            assert!(of(quantile, (0..least).map(f64::from)).quantile().is_some(), "p{quantile}");
        }
    }

    #[test]
    fn a_number_that_is_not_a_quantile_is_never_estimated() {
        for quantile in [1.0, 1.5, -0.1, f64::NAN, f64::INFINITY] {
            assert_eq!(of(quantile, (0..1_000).map(f64::from)).quantile(), None);
        }
    }

    #[test]
    fn negative_and_non_finite_values_are_ignored() {
        let mut p2 = of(0.5, OBSERVATIONS);
        let before = p2.quantile();
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
            p2.observe(value);
        }
        assert_eq!((p2.quantile(), p2.count()), (before, 20));
        p2.clear();
        assert_eq!((p2.quantile(), p2.count()), (None, 0));
    }

    #[test]
    fn values_that_are_all_the_same_are_the_quantile() {
        assert_eq!(of(0.95, [7.5; 1_000]).quantile(), Some(7.5));
    }

    /// Returns the relative error of the 95th percentile of ten thousand values.
    fn off(draw: impl Fn(&Rng) -> f64) -> f64 {
        let rng = Rng::seeded(11);
        let mut values: Vec<f64> = (0..10_000).map(|_| draw(&rng)).collect();
        let estimate = of(0.95, values.iter().copied()).quantile().unwrap();
        values.sort_unstable_by(f64::total_cmp);
        estimate / values[9_499] - 1.0
    }

    #[test]
    fn values_in_random_order_are_estimated_within_a_few_per_cent() {
        let uniform = off(|rng| 10.0 + 90.0 * rng.unit());
        let exponential = off(|rng| -(1.0 - rng.unit()).ln());
        let normal = |rng: &Rng| (-2.0 * (1.0 - rng.unit()).ln()).sqrt() * (std::f64::consts::TAU * rng.unit()).cos();
        let lognormal = off(|rng| (3.0 + 0.8 * normal(rng)).exp());
        let modes = off(|rng| if rng.unit() < 0.9 { 5.0 + rng.unit() } else { 100.0 + 20.0 * rng.unit() });
        assert!(uniform.abs() < 0.01 && exponential.abs() < 0.02, "{uniform} {exponential}");
        assert!(lognormal.abs() < 0.02 && modes.abs() < 0.05, "{lognormal} {modes}");
    }

    proptest! {
        #[test]
        fn an_estimate_is_never_outside_the_values_seen(
            values in prop::collection::vec(prop_oneof![0.0..1e9_f64, Just(0.0), Just(f64::MAX)], 20..300), q in 0.0..0.95_f64,
        ) {
            let p2 = of(q, values.iter().copied());
            let estimate = p2.quantile().unwrap();
            let (least, most) = values.iter().fold((f64::MAX, 0.0_f64), |(l, m), v| (l.min(*v), m.max(*v)));
            prop_assert!((least..=most).contains(&estimate), "{estimate} of {values:?}");
            prop_assert!(p2.heights.is_sorted(), "{:?}", p2.heights);
            prop_assert!(p2.positions.is_sorted_by(|a, b| a < b) && p2.positions[4] == values.len() as u64);
        }
    }
}

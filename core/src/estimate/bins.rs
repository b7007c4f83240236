//! A histogram of latencies with logarithmic bins: the DDSketch of the [digest](super::digest).
//!
//! DDSketch (Masson, Rim and Lee, "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error Guarantees",
//! VLDB 2019). Bin i counts the latencies from γⁱ to γⁱ⁺¹ microseconds, γ = (1 + α)/(1 − α), and reports all of them as
//! 2γⁱ⁺¹/(γ + 1), which differs from each by at most the share α. The mapping is that of `sketches-ddsketch`.
//!
//! **Error:** any quantile is within α = 1 % ([`RELATIVE_ERROR`]) of a recorded latency, whatever the distribution and
//! however many sketches were merged. The range is 1 µs (shorter latencies count as 1 µs) to 1 h.
//!
//! Merging adds bin by bin, so order and grouping do not matter and nothing is lost; a sum saturates. Counts received from
//! other replicas are not trusted: any number of any values is accepted.

use std::time::Duration;

use sketches_ddsketch::Config;

use super::has_enough_samples;

/// The largest relative error of a quantile.
pub const RELATIVE_ERROR: f64 = 0.01;

/// Bins from 1 µs to 1 h at that error: ln(3.6e9) / ln(1.01 / 0.99) = 1,100.2, rounded up to whole cache lines.
pub const BINS: usize = 1_104;

/// Longer durations are ignored.
pub(super) const MAX_LATENCY: Duration = Duration::from_secs(3_600);

/// The mapping from latencies to bins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping(Config);

impl Mapping {
    pub(super) fn new() -> Self {
        Self(Config::new(RELATIVE_ERROR, BINS as u32, 1.0))
    }

    /// Returns the bin of a latency; none if it is longer than [`MAX_LATENCY`].
    #[inline]
    pub(super) fn bin(&self, latency: Duration) -> Option<usize> {
        if latency > MAX_LATENCY {
            return None;
        }
        let micros = (latency.as_nanos() as f64 / 1_000.0).max(1.0);
        Some(usize::try_from(self.0.key(micros)).unwrap_or(0).min(BINS - 1))
    }

    /// Returns the latency that a bin reports.
    fn latency(&self, bin: usize) -> Option<Duration> {
        let micros = self.0.value(i32::try_from(bin).ok()?);
        Some(Duration::from_nanos((micros * 1_000.0) as u64))
    }
}

/// The number of latencies in each bin: of a slice, of a window, of a fleet. Nine kilobytes, meant for the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bins([u64; BINS]);

impl Bins {
    /// No latencies.
    pub const EMPTY: Self = Self([0; BINS]);

    /// Adds to one bin. A bin behind the last one is ignored.
    #[inline]
    pub fn count_in(&mut self, bin: usize, count: u32) {
        if let Some(sum) = self.0.get_mut(bin) {
            *sum = sum.saturating_add(count.into());
        }
    }

    /// Adds all counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (sum, count) in self.0.iter_mut().zip(&other.0) {
            *sum = sum.saturating_add(*count);
        }
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, bin| sum.saturating_add(*bin))
    }

    /// Returns a quantile (0.0 to 1.0, one excluded); none for fewer than 1/(1−q) latencies, which would only give the
    /// largest. Takes a few microseconds and does not allocate.
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let count = self.count();
        if !has_enough_samples(count, quantile) {
            return None;
        }
        let mut rank = (quantile * (count - 1) as f64) as u64;
        let bin = self.0.iter().position(|bin| match rank.checked_sub(*bin) {
            Some(left) => {
                rank = left;
                false
            }
            None => true,
        })?;
        Mapping::new().latency(bin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use proptest::prelude::*;

    fn of<'a>(latencies: impl IntoIterator<Item = &'a Duration>) -> Bins {
        let (mapping, mut bins) = (Mapping::new(), Bins::EMPTY);
        for bin in latencies.into_iter().filter_map(|latency| mapping.bin(*latency)) {
            bins.0[bin] += 1;
        }
        bins
    }

    #[track_caller]
    fn assert_within_the_error(bins: &Bins, latencies: &[Duration], quantile: f64) {
        let mut sorted = latencies.to_vec();
        sorted.sort_unstable();
        let exact = sorted[(quantile * (sorted.len() - 1) as f64) as usize].as_secs_f64();
        let estimate = bins.quantile(quantile).unwrap().as_secs_f64();
        // A little more than the error, for the rounding to whole nanoseconds.
        assert!((estimate / exact - 1.0).abs() <= RELATIVE_ERROR * 1.001, "p{quantile}: {estimate} for {exact}");
    }

    fn normal(rng: &Rng) -> f64 {
        (-2.0 * (1.0 - rng.unit()).ln()).sqrt() * (std::f64::consts::TAU * rng.unit()).cos()
    }

    /// Seconds with a long tail.
    fn lognormal(rng: &Rng) -> f64 {
        0.1 * (1.2 * normal(rng)).exp()
    }

    fn uniform(rng: &Rng) -> f64 {
        0.001 + 0.2 * rng.unit()
    }

    /// A cache that is hit or missed.
    fn bimodal(rng: &Rng) -> f64 {
        let (middle, spread) = if rng.unit() < 0.93 { (0.002, 0.1) } else { (0.8, 0.2) };
        middle * (spread * normal(rng)).exp()
    }

    #[test]
    fn quantiles_are_within_one_per_cent_for_every_distribution_also_after_a_merge() {
        for (seed, shape) in (1..).zip([lognormal, uniform, bimodal]) {
            let rng = Rng::seeded(seed);
            let latencies: Vec<_> = (0..20_000).map(|_| Duration::from_secs_f64(shape(&rng))).collect();
            let (one, other) = latencies.split_at(10_000);
            for quantile in [0.5, 0.95, 0.99] {
                assert_within_the_error(&of(one), one, quantile);
                assert_within_the_error(&merged(&of(one), &of(other)), &latencies, quantile);
            }
        }
    }

    #[test]
    fn the_longest_latency_falls_into_the_last_used_bin_and_the_shortest_into_the_first() {
        let mapping = Mapping::new();
        assert_eq!(mapping.bin(Duration::ZERO), Some(0));
        assert_eq!(mapping.bin(Duration::from_micros(1)), Some(0));
        assert_eq!(mapping.bin(MAX_LATENCY), Some(1_100));
        assert_eq!(mapping.bin(MAX_LATENCY + Duration::from_nanos(1)), None);
        assert_eq!(mapping.bin(Duration::MAX), None);
    }

    #[test]
    fn a_number_that_is_not_a_quantile_returns_none() {
        let bins = of(&[Duration::from_millis(5); 1_000]);
        for quantile in [1.0, 1.5, -0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(bins.quantile(quantile), None);
        }
        assert_eq!(Bins::EMPTY.quantile(0.0), None);
    }

    fn any_bins() -> impl Strategy<Value = Bins> {
        let count = prop_oneof![4 => 0_u64..1_000, 1 => Just(u64::MAX), 1 => any::<u64>()];
        prop::collection::vec((0..BINS, count), 0..60).prop_map(|counts| {
            let mut bins = Bins::EMPTY;
            counts.into_iter().for_each(|(bin, count)| bins.0[bin] = count);
            bins
        })
    }

    fn merged(one: &Bins, other: &Bins) -> Bins {
        let mut sum = one.clone();
        sum.merge(other);
        sum
    }

    proptest! {
        #[test]
        fn merging_is_associative_and_commutative_and_empty_is_neutral(
            a in any_bins(), b in any_bins(), c in any_bins(),
        ) {
            prop_assert_eq!(merged(&a, &b), merged(&b, &a));
            prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
            prop_assert_eq!(merged(&a, &Bins::EMPTY), a.clone());
            prop_assert_eq!(merged(&Bins::EMPTY, &a), a);
        }

        #[test]
        fn any_counts_have_a_quantile_inside_the_range_or_none(a in any_bins(), q in any::<f64>(), r in 0.0..1.0) {
            prop_assert_eq!(a.quantile(r).is_some(), has_enough_samples(a.count(), r));
            for estimate in [a.quantile(q), a.quantile(r)].into_iter().flatten() {
                prop_assert!((Duration::from_micros(1)..Duration::from_secs(4_000)).contains(&estimate), "{estimate:?}");
            }
        }

        #[test]
        fn counts_of_any_length_are_added(counts in prop::collection::vec(any::<u32>(), 0..2 * BINS)) {
            let mut bins = Bins::EMPTY;
            counts.iter().enumerate().for_each(|(bin, count)| bins.count_in(bin, *count));
            prop_assert_eq!(bins.count(), counts.iter().take(BINS).copied().map(u64::from).sum::<u64>());
        }

        #[test]
        fn a_quantile_is_within_its_error_after_a_merge(
            one in prop::collection::vec(1_u64..3_600_000_000, 50..200),
            other in prop::collection::vec(1_u64..3_600_000_000, 50..200), q in 0.01_f64..0.98,
        ) {
            let (one, other): (Vec<_>, Vec<_>) =
                (one.into_iter().map(Duration::from_micros).collect(), other.into_iter().map(Duration::from_micros).collect());
            let both = merged(&of(&one), &of(&other));
            assert_within_the_error(&both, &[one, other].concat(), q);
        }
    }
}

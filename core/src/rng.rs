//! Chance as a value: a seeded, lock-free random source shared by the threads of a pipeline.
//!
//! SplitMix64 (Steele, Lea and Flood, 2014): the state is a counter, so drawing is one atomic add and a mix, and the
//! n-th draw of a seed is always the same. Good enough for jitter and shedding; not for secrets.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// 2^64 divided by the golden ratio: the step that makes the counter visit all values evenly.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A seedable random source.
#[derive(Debug)]
pub struct Rng(AtomicU64);

impl Rng {
    /// The same seed gives the same draws.
    pub const fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Seeded by the process' hash keys, which the operating system drew.
    pub fn from_entropy() -> Self {
        Self::seeded(RandomState::new().hash_one(0_u8))
    }

    /// A new source whose draws are independent of the ones still to come from this one.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::seeded(self.next())
    }

    /// The next 64 bits.
    pub fn next(&self) -> u64 {
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0.0..1.0`.
    pub fn unit(&self) -> f64 {
        // 53 bits are all that a double holds exactly.
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A duration between the two, `low` included.
    pub fn between(&self, low: Duration, high: Duration) -> Duration {
        low + high.saturating_sub(low).mul_f64(self.unit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_draws() {
        let (a, b) = (Rng::seeded(7), Rng::seeded(7));
        let draws = |rng: &Rng| (0..100).map(|_| rng.next()).collect::<Vec<_>>();
        assert_eq!(draws(&a), draws(&b));
        assert_ne!(draws(&Rng::seeded(8)), draws(&Rng::seeded(7)));
    }

    #[test]
    fn units_stay_in_range_and_spread_evenly() {
        let rng = Rng::seeded(1);
        let draws: Vec<f64> = (0..10_000).map(|_| rng.unit()).collect();
        assert!(draws.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = draws.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    #[test]
    fn a_duration_between_equal_bounds_is_that_bound() {
        let second = Duration::from_secs(1);
        assert_eq!(Rng::seeded(3).between(second, second), second);
    }
}

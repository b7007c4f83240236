//! A seedable, lock-free random number generator that threads share.
//!
//! SplitMix64 (Steele, Lea and Flood, 2014). Its state is a counter, so a number costs one atomic addition and a mix, and
//! the n-th number of a seed is always the same. It suits jitter and shedding, and nothing that must be unpredictable.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// 2^64 divided by the golden ratio, which spreads the counter evenly over all values.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// A seedable random number generator.
///
/// # Examples
/// ```
/// use phalanx::store::Rng;
///
/// let (one, other) = (Rng::seeded(7), Rng::seeded(7));
/// assert_eq!(one.next(), other.next());
/// assert!((0.0..1.0).contains(&one.unit()));
/// assert_ne!(one.fork().next(), one.next(), "a fork is independent");
/// ```
#[derive(Debug)]
pub struct Rng(AtomicU64);

impl Rng {
    /// Creates a generator. The same seed gives the same numbers.
    pub const fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Creates a generator with a random seed from the operating system.
    pub fn from_entropy() -> Self {
        Self::seeded(RandomState::new().hash_one(0_u8))
    }

    /// Creates a generator whose numbers are independent of the next ones of this generator.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::seeded(self.next())
    }

    /// Returns the next 64 bits.
    pub fn next(&self) -> u64 {
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number in `0.0..1.0`.
    pub fn unit(&self) -> f64 {
        // 53 bits are all that a double holds exactly.
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a duration between the two, `low` included.
    pub fn between(&self, low: Duration, high: Duration) -> Duration {
        low + high.saturating_sub(low).mul_f64(self.unit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
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

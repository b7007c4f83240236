//! Estimators of latencies and rates. Each file states its formula and its error.
//!
//! | estimator | estimates | error | memory |
//! |---|---|---|---|
//! | [`digest::Digest`] | any quantile over a sliding window, shared by threads and mergeable | 1 % | 1 to 28 kB |
//! | [`p2::P2`] | one quantile of a stream | a few per cent in random order | 100 bytes |
//! | [`p2_window::P2Window`] | one quantile over a sliding window | as P² | 200 bytes |
//! | [`ewma::Ewma`] | a moving average | variance σ²/w | 24 bytes |
//! | [`ring::Ring`] | counts over a sliding window | one tenth of the window | ten counters |

pub mod bins;
pub mod digest;
pub mod ewma;
pub mod p2;
pub mod p2_window;
pub mod ring;

/// Returns whether there are enough samples for a quantile: at least 1/(1−q), because fewer would only give the largest.
/// False for a number that is not a quantile (0.0 to 1.0, one excluded).
fn has_enough_samples(count: u64, quantile: f64) -> bool {
    // The tolerance is for rounding: 0.9 is not a binary fraction, and ten samples must be enough for it.
    (0.0..1.0).contains(&quantile) && count as f64 * (1.0 - quantile) >= 1.0 - 1e-9
}

//! Estimators: what is counted, over which window, and with what error. Each file names its formula and its bound.

pub mod bins;
pub mod digest;
pub mod ewma;
pub mod p2;
pub mod p2_window;
pub mod ring;

/// Whether so many samples give this quantile a meaning: at least 1/(1−q) of them, below which it would only be the
/// largest. What is no quantile (not in 0.0 to 1.0, one excluded) never has one.
fn is_meaningful(count: u64, quantile: f64) -> bool {
    // A hair less, because 0.9 and its like are no binary fractions: ten samples are enough for it.
    (0.0..1.0).contains(&quantile) && count as f64 * (1.0 - quantile) >= 1.0 - 1e-9
}

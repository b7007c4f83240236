//! How long answers took, exactly: every one is kept.

use std::time::Duration;

/// Latencies, to be asked for percentiles.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn add(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    /// The latency that this share of the answers did not exceed (nearest rank); zero if there are none.
    pub(crate) fn quantile(&mut self, share: f64) -> Duration {
        self.0.sort_unstable();
        let rank = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

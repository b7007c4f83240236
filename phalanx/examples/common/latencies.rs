//! Latencies, with exact quantiles: every sample is kept.

use std::time::Duration;

/// A list of latencies.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn add(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    /// The quantile by nearest rank, from 0.0 to 1.0; zero if there are no samples.
    pub(crate) fn quantile(&mut self, quantile: f64) -> Duration {
        self.0.sort_unstable();
        let rank = (self.0.len() as f64 * quantile).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

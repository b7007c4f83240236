//! The durations of one way to end on one policy and route: the one instrument that every call pays for.
//!
//! An SDK looks the attributes up with every `record`, which is most of what being metered costs. With the feature
//! `otel-bound` they are looked up once, by an instrument that OpenTelemetry still calls experimental.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;

#[derive(Debug)]
pub(super) struct Timed {
    attributes: [KeyValue; 3],
    #[cfg(feature = "otel-bound")]
    bound: std::sync::OnceLock<opentelemetry::metrics::BoundHistogram<f64>>,
}

impl Timed {
    pub(super) fn new(attributes: [KeyValue; 3]) -> Self {
        Self {
            attributes,
            #[cfg(feature = "otel-bound")]
            bound: std::sync::OnceLock::new(),
        }
    }

    #[inline]
    pub(super) fn record(&self, histogram: &Histogram<f64>, took: Duration) {
        #[cfg(feature = "otel-bound")] // bound when it is first used: an SDK would show one that never was
        self.bound.get_or_init(|| histogram.bind(&self.attributes)).record(took.as_secs_f64());
        #[cfg(not(feature = "otel-bound"))]
        histogram.record(took.as_secs_f64(), &self.attributes);
    }
}

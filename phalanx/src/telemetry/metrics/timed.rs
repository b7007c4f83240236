//! The duration histogram of one outcome on one policy and route, which every finished call records into.
//!
//! An SDK looks the attributes up with every `record`, which is most of the cost of metrics. With the feature `otel-bound`
//! they are looked up once, through bound instruments, which are experimental in OpenTelemetry.

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
        #[cfg(feature = "otel-bound")] // bound on first use: an SDK exports a bound instrument that recorded nothing
        self.bound.get_or_init(|| histogram.bind(&self.attributes)).record(took.as_secs_f64());
        #[cfg(not(feature = "otel-bound"))]
        histogram.record(took.as_secs_f64(), &self.attributes);
    }
}

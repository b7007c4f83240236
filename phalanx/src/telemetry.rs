//! What a service shows of itself: metrics through OpenTelemetry, and a page of them for Prometheus.
//!
//! All of it are observers of the module's events and readers of its state; a module without them pays nothing for them.

#[cfg(feature = "otel")]
pub mod metrics;
#[cfg(feature = "prometheus")]
pub mod prometheus;

#[cfg(feature = "otel")]
pub use self::metrics::Metrics;

//! Telemetry: spans and log lines through `tracing`, W3C trace context between services, metrics through OpenTelemetry, and
//! a page of metrics for Prometheus.
//!
//! All of it is opt-in: a module built without `ModuleBuilder::traced` and `ModuleBuilder::metered` emits nothing and pays
//! nothing. Spans are created in `phalanx_core::pipeline`, because operations run inside them. Everything else is here, as
//! observers of the module's events and readers of its state. `docs/telemetry.md` lists every span, event and metric.

#[cfg(feature = "tracing")]
mod log;
#[cfg(feature = "otel")]
#[cfg_attr(docsrs, doc(cfg(feature = "otel")))]
pub mod metrics;
#[cfg(feature = "prometheus")]
#[cfg_attr(docsrs, doc(cfg(feature = "prometheus")))]
pub mod prometheus;
#[cfg(feature = "trace-context")]
mod trace_context;

#[cfg(feature = "tracing")]
pub(crate) use self::log::Log;
#[cfg(feature = "otel")]
#[cfg_attr(docsrs, doc(cfg(feature = "otel")))]
pub use self::metrics::Metrics;
#[cfg(feature = "trace-context")]
#[cfg_attr(docsrs, doc(cfg(feature = "trace-context")))]
pub use self::trace_context::{adopt, extract, inject};

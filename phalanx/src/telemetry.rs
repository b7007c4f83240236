//! What a module says about itself to the tools people have: spans and log lines through `tracing`, the trace's context on
//! requests from one service to the next, metrics through OpenTelemetry, and a page of them for Prometheus.
//!
//! All of it is asked for: a module that is neither [`traced`](crate::ModuleBuilder::traced) nor `metered` says nothing and
//! pays nothing. The spans are made in `phalanx_core::pipeline`, because operations run inside them; the rest are observers of
//! the module's events and readers of its state, here.

#[cfg(feature = "tracing")]
mod log;
#[cfg(feature = "otel")]
pub mod metrics;
#[cfg(feature = "prometheus")]
pub mod prometheus;
#[cfg(feature = "trace-context")]
mod trace_context;

#[cfg(feature = "tracing")]
pub(crate) use self::log::Log;
#[cfg(feature = "otel")]
pub use self::metrics::Metrics;
#[cfg(feature = "trace-context")]
pub use self::trace_context::{adopt, extract, inject};

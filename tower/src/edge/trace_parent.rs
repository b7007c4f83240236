//! The trace parent of a request, taken from its headers.
//!
//! The edge makes no span of its own. The parent named by the headers becomes OpenTelemetry's current context, and the first
//! span inside (the handler's, or a policy's call) becomes its child. If a span is current already, the layer that made it
//! is responsible for the headers (`phalanx::telemetry::adopt`). Without the feature `trace-context` this does nothing.

use std::future::Future;

use http::HeaderMap;

/// The remote parent span, if the headers name one and no span is current.
pub(super) struct TraceParent {
    #[cfg(feature = "trace-context")]
    context: Option<opentelemetry::Context>,
}

#[cfg(feature = "trace-context")]
impl TraceParent {
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        use opentelemetry::Context;
        use opentelemetry::trace::TraceContextExt;

        let has_span = Context::map_current(|current| current.has_active_span());
        let context = (!has_span).then(|| phalanx::telemetry::extract(headers));
        Self { context: context.filter(|context| context.span().span_context().is_valid()) }
    }

    pub(super) async fn instrument<F: Future>(self, work: F) -> F::Output {
        use opentelemetry::context::FutureExt;

        match self.context {
            Some(context) => work.with_context(context).await,
            None => work.await,
        }
    }
}

#[cfg(not(feature = "trace-context"))]
impl TraceParent {
    pub(super) const fn from_headers(_: &HeaderMap) -> Self {
        Self {}
    }

    pub(super) const fn instrument<F: Future>(self, work: F) -> F {
        work
    }
}

//! The trace that a request belongs to: the parent of whatever its handler does.
//!
//! Not a span of the edge's own: the parent that the headers name becomes OpenTelemetry's current context, and the first span
//! inside (the handler's, or a policy's call) is its child. Where a span is current already, whoever made it has decided, and
//! the headers are left to him (`phalanx::telemetry::adopt`). Without the feature `trace-context` nothing is done.

use std::future::Future;

use http::HeaderMap;

/// The parent that a request's headers name, if it is to be followed.
pub(super) struct Parent {
    #[cfg(feature = "trace-context")]
    context: Option<opentelemetry::Context>,
}

#[cfg(feature = "trace-context")]
impl Parent {
    pub(super) fn named_by(headers: &HeaderMap) -> Self {
        use opentelemetry::Context;
        use opentelemetry::trace::TraceContextExt;

        let inside = Context::map_current(|current| current.has_active_span());
        let context = (!inside).then(|| phalanx::telemetry::extract(headers));
        Self { context: context.filter(|context| context.span().span_context().is_valid()) }
    }

    pub(super) async fn around<F: Future>(self, work: F) -> F::Output {
        use opentelemetry::context::FutureExt;

        match self.context {
            Some(context) => work.with_context(context).await,
            None => work.await,
        }
    }
}

#[cfg(not(feature = "trace-context"))]
impl Parent {
    pub(super) const fn named_by(_: &HeaderMap) -> Self {
        Self {}
    }

    pub(super) const fn around<F: Future>(self, work: F) -> F {
        work
    }
}

//! Trace context between services: W3C `traceparent` and `tracestate` in HTTP headers.
//!
//! ```text
//!   inbound headers ──extract──► parent ──► your span ─► phalanx.call ─► phalanx.attempt ──inject──► outbound headers
//! ```
//!
//! Headers are written and read by OpenTelemetry's global propagator. There is none until the service sets one in `main`:
//! `opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new())`. Without it, or without the layer of
//! `tracing_opentelemetry`, nothing is written and nothing is read.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::global::get_text_map_propagator;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Writes the context of the current span into the headers of an outbound request, replacing one that is there.
///
/// In an operation the current span is that of the attempt, so each retry and each hedge is a separate parent. Without a
/// span the headers stay as they are.
///
/// # Examples
///
/// ```
/// use phalanx::telemetry::inject;
///
/// let mut headers = http::HeaderMap::new();
/// inject(&mut headers);
/// assert!(headers.is_empty()); // there is no current span here
/// ```
pub fn inject(headers: &mut HeaderMap) {
    let of_span = Span::current().context();
    let context = if of_span.span().span_context().is_valid() { of_span } else { Context::current() };
    if context.span().span_context().is_valid() {
        get_text_map_propagator(|propagator| propagator.inject_context(&context, &mut Outbound(headers)));
    }
}

/// Returns the trace context of an inbound request, or the current one if the request has none.
///
/// The headers are untrusted input: they choose the trace that the work is recorded under and whether it is sampled. A
/// service at the edge of the trusted network may choose to ignore them.
///
/// # Examples
///
/// ```
/// use opentelemetry::trace::TraceContextExt;
/// use opentelemetry_sdk::propagation::TraceContextPropagator;
/// use phalanx::telemetry::extract;
///
/// opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new()); // once, in `main`
/// let mut headers = http::HeaderMap::new();
/// headers.insert("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?);
/// let context = extract(&headers);
/// assert_eq!(context.span().span_context().trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
pub fn extract(headers: &HeaderMap) -> Context {
    get_text_map_propagator(|propagator| propagator.extract(&Inbound::of(headers)))
}

/// Sets the parent of a span from an inbound request, for services that create the request's span themselves.
///
/// Returns false if the request names no parent, or if it is too late because the span was entered or has children.
pub fn adopt(span: &Span, headers: &HeaderMap) -> bool {
    let extract =
        |propagator: &dyn TextMapPropagator| propagator.extract_with_context(&Context::new(), &Inbound::of(headers));
    let parent = get_text_map_propagator(extract);
    parent.span().span_context().is_valid() && span.set_parent(parent).is_ok()
}

struct Outbound<'a>(&'a mut HeaderMap);

impl Injector for Outbound<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(key), HeaderValue::try_from(value)) {
            self.0.insert(name, value);
        }
    }
}

/// Headers as the propagator reads them. `tracestate` may be split over several headers but the propagator reads only one, so
/// they are joined. More than one `traceparent` counts as none.
struct Inbound<'a> {
    headers: &'a HeaderMap,
    joined: Option<String>,
}

impl<'a> Inbound<'a> {
    fn of(headers: &'a HeaderMap) -> Self {
        let parts: Vec<_> = headers.get_all("tracestate").iter().filter_map(|value| value.to_str().ok()).collect();
        Self { headers, joined: (parts.len() > 1).then(|| parts.join(",")) }
    }
}

impl Extractor for Inbound<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        if key.eq_ignore_ascii_case("tracestate") && self.joined.is_some() {
            return self.joined.as_deref();
        }
        let mut values = self.headers.get_all(key).iter();
        let first = values.next()?;
        let ambiguous = key.eq_ignore_ascii_case("traceparent") && values.next().is_some();
        first.to_str().ok().filter(|_| !ambiguous)
    }

    fn keys(&self) -> Vec<&str> {
        self.headers.keys().map(HeaderName::as_str).collect()
    }
}

//! The trace's context on its way between services: W3C `traceparent` and `tracestate`, over `http` headers.
//!
//! ```text
//!   inbound headers ──extract──► parent ──► your span ─► phalanx.call ─► phalanx.attempt ──inject──► outbound headers
//! ```
//!
//! The words are those of OpenTelemetry's global propagator. It is none until a service chooses one, once, in `main`:
//! `opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new())`. Without it, or without
//! `tracing_opentelemetry`'s layer, nothing is written and nothing is read.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::global::get_text_map_propagator;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Writes the context of the current span on an outbound request. Called by an operation, it is that attempt's: each
/// retry and each copy has a parent of its own. What is there already is replaced; without a span nothing is touched.
///
/// ```
/// let mut headers = http::HeaderMap::new();
/// phalanx::telemetry::inject(&mut headers);
/// ```
pub fn inject(headers: &mut HeaderMap) {
    let of_span = Span::current().context();
    let context = if of_span.span().span_context().is_valid() { of_span } else { Context::current() };
    if context.span().span_context().is_valid() {
        get_text_map_propagator(|propagator| propagator.inject_context(&context, &mut Outbound(headers)));
    }
}

/// The context that an inbound request names. Where it names none, the present one.
///
/// The word of a stranger: it decides under which trace the work is filed, and whether it is sampled. A service at the
/// edge of the trusted network that does not want that does not ask.
pub fn extract(headers: &HeaderMap) -> Context {
    get_text_map_propagator(|propagator| propagator.extract(&Inbound::of(headers)))
}

/// Puts a span under the parent that an inbound request names; false if it names none, or if it is too late: the span has
/// been entered or has children. For whoever makes the span of a request himself.
pub fn adopt(span: &Span, headers: &HeaderMap) -> bool {
    let named =
        |propagator: &dyn TextMapPropagator| propagator.extract_with_context(&Context::new(), &Inbound::of(headers));
    let parent = get_text_map_propagator(named);
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

/// Headers as the propagator reads them. `tracestate` is a list that may come in several headers, and the propagator looks at
/// one; more than one `traceparent` is none.
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
        let garbled = key.eq_ignore_ascii_case("traceparent") && values.next().is_some();
        first.to_str().ok().filter(|_| !garbled)
    }

    fn keys(&self) -> Vec<&str> {
        self.headers.keys().map(HeaderName::as_str).collect()
    }
}

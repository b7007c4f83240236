//! [`EdgeService`]: parses the headers of a request, binds its context, awaits the handler, completes the response.

use std::future::{Future, ready};
use std::mem::replace;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response};
use phalanx::{Context, Rejection, RejectionCode, scope};
use tokio::time::{Instant, timeout_at};
use tower_service::Service;

use super::layer::EdgeLayer;
use super::rejection_response::RejectionResponse;
use super::trace_parent::TraceParent;
use super::{CRITICALITY, DEADLINE_REMAINING, criticality, deadline};

/// A service with an [`EdgeLayer`] applied.
#[derive(Clone, Debug)]
pub struct EdgeService<S> {
    pub(crate) inner: S,
    pub(crate) edge: EdgeLayer,
}

/// What was parsed from the headers of a request.
struct RequestTerms {
    context: Context,
    deadline: Instant,
    /// Whether the response has `X-Deadline-Remaining`.
    report_remaining: bool,
    is_grpc: bool,
}

impl EdgeLayer {
    /// Parses the headers of a request. Returns none if its deadline has passed.
    fn parse(&self, parts: &mut Parts) -> Option<RequestTerms> {
        let (settings, counters) = (&self.settings, &self.counters);
        let requested = deadline::parse(&parts.headers, &*settings.wall_clock, settings.max_skew);
        counters.malformed.add(requested.malformed);
        counters.skewed.add(requested.skewed);
        let timeout = match requested.remaining {
            None => settings.max_deadline,
            Some(Duration::ZERO) => return None,
            Some(remaining) => {
                let timeout = remaining.max(settings.min_deadline).min(settings.max_deadline);
                counters.clamped.add(u64::from(timeout != remaining));
                timeout
            }
        };

        let is_trusted = || settings.trust.as_ref().is_some_and(|trust| trust(parts));
        let granted = criticality::grant(&parts.headers, settings.criticality, is_trusted);
        counters.malformed.add(granted.malformed);
        counters.upgrades_rejected.add(u64::from(granted.upgrade_rejected));
        if granted.upgrade_rejected {
            parts.headers.remove(CRITICALITY); // a handler may copy headers to outbound requests
        }

        let now = Instant::now();
        let context = Context::current().with_criticality(granted.criticality).with_timeout(timeout);
        Some(RequestTerms {
            context,
            // A deadline beyond the range of `Instant` is replaced by one in a year.
            deadline: context.deadline().unwrap_or(now + Duration::from_secs(31_536_000)),
            report_remaining: settings.report_remaining || parts.headers.contains_key(DEADLINE_REMAINING),
            is_grpc: is_grpc(&parts.headers),
        })
    }

    /// Awaits the handler until the deadline plus grace. Returns none if it does not finish.
    async fn await_handler<F: Future>(&self, deadline: Instant, handler: F) -> Option<F::Output> {
        match self.settings.grace.and_then(|grace| deadline.checked_add(grace)) {
            Some(end) => timeout_at(end, handler).await.ok(),
            None => Some(handler.await),
        }
    }

    /// Returns the response to a request whose deadline has passed.
    fn deadline_exceeded<B: From<Bytes>>(&self, is_grpc: bool) -> Response<B> {
        if is_grpc {
            return grpc_deadline_exceeded();
        }
        let rejection = Rejection::new(RejectionCode::DeadlineExceeded);
        let response = match &self.settings.module {
            Some(module) => RejectionResponse::for_module(module, rejection),
            None => RejectionResponse::new(rejection),
        };
        response.into_http_response()
    }

    /// Gives a rejection returned by the handler the status configured in the module.
    fn apply_module_status<B: From<Bytes>>(&self, response: Response<B>) -> Response<B> {
        let Some(module) = &self.settings.module else { return response };
        let rejected = response.extensions().get::<RejectionResponse>();
        // A layer inside may have changed the status on purpose; such a response stays as it is.
        let unchanged = rejected.filter(|rejected| rejected.status() == response.status().as_u16());
        let Some(rejected) = unchanged.and_then(|rejected| rejected.with_status_of(module)) else { return response };
        let mut replaced = rejected.into_http_response();
        for (name, value) in response.headers() {
            if name != CONTENT_LENGTH && !replaced.headers().contains_key(name) {
                replaced.headers_mut().append(name, value.clone());
            }
        }
        replaced
    }
}

impl<S, B, R> Service<Request<B>> for EdgeService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
    R: From<Bytes> + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let Some(terms) = self.edge.parse(&mut parts) else {
            self.edge.counters.expired.add(1);
            return Box::pin(ready(Ok(self.edge.deadline_exceeded(is_grpc(&parts.headers)))));
        };
        // Calls the service that was polled ready, and leaves a clone in its place.
        let clone = self.inner.clone();
        let (mut inner, edge) = (replace(&mut self.inner, clone), self.edge.clone());
        Box::pin(async move {
            // `call` runs inside the scope, for layers that read the context when they are called.
            let parent = TraceParent::from_headers(&parts.headers);
            let handler = scope(terms.context, async move { inner.call(Request::from_parts(parts, body)).await });
            let handler = parent.instrument(handler);
            let mut response = match edge.await_handler(terms.deadline, handler).await {
                Some(response) => edge.apply_module_status(response?),
                None => {
                    edge.counters.timed_out.add(1);
                    edge.deadline_exceeded(terms.is_grpc)
                }
            };
            if terms.report_remaining {
                let left = terms.deadline.saturating_duration_since(Instant::now());
                let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                response.headers_mut().insert(DEADLINE_REMAINING, HeaderValue::from(millis));
            }
            Ok(response)
        })
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Returns gRPC's form of a deadline exceeded: status 200 with the gRPC status in a header (a trailers-only response).
fn grpc_deadline_exceeded<B: From<Bytes>>() -> Response<B> {
    let mut response = Response::new(B::from(Bytes::new()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static("4"));
    headers.insert("grpc-message", HeaderValue::from_static("DEPENDENCY.timeout"));
    response
}

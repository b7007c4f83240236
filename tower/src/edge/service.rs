//! One request through the edge: read, bind, wait, mark.

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
use super::parent::Parent;
use super::rejection_response::RejectionResponse;
use super::{CRITICALITY, DEADLINE_REMAINING, budget, importance};

/// A service behind an [`EdgeLayer`].
#[derive(Clone, Debug)]
pub struct EdgeService<S> {
    pub(crate) inner: S,
    pub(crate) edge: EdgeLayer,
}

/// What was read from a request.
struct Bound {
    context: Context,
    deadline: Instant,
    /// Whether the client wants to know what was left.
    curious: bool,
    /// Whether a rejection has to be gRPC's.
    grpc: bool,
}

impl EdgeLayer {
    /// Reads the headers; nothing if the client's time is up.
    fn read(&self, parts: &mut Parts) -> Option<Bound> {
        let (terms, counters) = (&self.terms, &self.counters);
        let asked = budget::read(&parts.headers, &*terms.wall, terms.max_skew);
        counters.garbled.add(asked.garbled);
        counters.skewed.add(asked.skewed);
        let budget = match asked.budget {
            None => terms.max,
            Some(Duration::ZERO) => return None,
            Some(asked) => {
                let budget = asked.max(terms.min).min(terms.max);
                counters.clamped.add(u64::from(budget != asked));
                budget
            }
        };

        let trusted = || terms.trust.as_ref().is_some_and(|trusts| trusts(parts));
        let claimed = importance::read(&parts.headers, terms.criticality, trusted);
        counters.garbled.add(claimed.garbled);
        counters.upgrades_rejected.add(u64::from(claimed.rejected));
        if claimed.rejected {
            parts.headers.remove(CRITICALITY); // so that a handler that passes headers on does not pass this one
        }

        let now = Instant::now();
        let context = Context::current().with_criticality(claimed.criticality).with_timeout(budget);
        Some(Bound {
            context,
            // Further away than the clock can count is as good as in a year.
            deadline: context.deadline().unwrap_or(now + Duration::from_secs(31_536_000)),
            curious: terms.tell_remaining || parts.headers.contains_key(DEADLINE_REMAINING),
            grpc: is_grpc(&parts.headers),
        })
    }

    /// Waits for the handler, but not much longer than its client does.
    async fn within<F: Future>(&self, deadline: Instant, work: F) -> Option<F::Output> {
        match self.terms.grace.and_then(|grace| deadline.checked_add(grace)) {
            Some(end) => timeout_at(end, work).await.ok(),
            None => Some(work.await),
        }
    }

    /// Who has no time left.
    fn too_late<B: From<Bytes>>(&self, grpc: bool) -> Response<B> {
        let rejection = Rejection::new(RejectionCode::DeadlineExceeded);
        let rejected = match &self.terms.module {
            Some(module) => RejectionResponse::by(module, rejection),
            None => RejectionResponse::new(rejection),
        };
        if grpc { deadline_exceeded() } else { rejected.into_response_with() }
    }

    /// Gives a rejection from inside the status that the service has chosen.
    fn restate<B: From<Bytes>>(&self, response: Response<B>) -> Response<B> {
        let Some(module) = &self.terms.module else { return response };
        let rejected = response.extensions().get::<RejectionResponse>();
        // Whoever changed the status on the way meant it.
        let untouched = rejected.filter(|rejected| rejected.status() == response.status().as_u16());
        let Some(restated) = untouched.and_then(|rejected| rejected.restated(module)) else { return response };
        let mut again = restated.into_response_with();
        for (name, value) in response.headers() {
            if name != CONTENT_LENGTH && !again.headers().contains_key(name) {
                again.headers_mut().append(name, value.clone());
            }
        }
        again
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
        let Some(bound) = self.edge.read(&mut parts) else {
            self.edge.counters.expired.add(1);
            return Box::pin(ready(Ok(self.edge.too_late(is_grpc(&parts.headers)))));
        };
        // The one that is ready is the one to call; what takes its place gets ready by itself.
        let clone = self.inner.clone();
        let (mut inner, edge) = (replace(&mut self.inner, clone), self.edge.clone());
        Box::pin(async move {
            // Called inside, so that layers that look at the context when they are called see it too.
            let parent = Parent::named_by(&parts.headers);
            let work = scope(bound.context, async move { inner.call(Request::from_parts(parts, body)).await });
            let work = parent.around(work);
            let mut response = match edge.within(bound.deadline, work).await {
                Some(answer) => edge.restate(answer?),
                None => {
                    edge.counters.cut_off.add(1);
                    edge.too_late(bound.grpc)
                }
            };
            if bound.curious {
                let left = bound.deadline.saturating_duration_since(Instant::now());
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

/// gRPC says it in a header, under a 200 (a response of trailers only).
fn deadline_exceeded<B: From<Bytes>>() -> Response<B> {
    let mut response = Response::new(B::from(Bytes::new()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static("4"));
    headers.insert("grpc-message", HeaderValue::from_static("DEPENDENCY.timeout"));
    response
}

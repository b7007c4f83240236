//! The layer: a policy, and how requests are repeated, results classified and rejections returned.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use phalanx::internal::core::classify::{ByAnswer, ByError};
use phalanx::{Class, Kind, Pipeline, Rejection, ResilienceModule, Route};
use tower_layer::Layer;

#[cfg(feature = "tonic")]
use crate::classify::ByGrpcStatus;
use crate::classify::{ByClosure, ErrorsAs};
use crate::reject::{AsBoxError, AsError, AsResponse, MapRejection};
use crate::repeat::{BufferBody, CloneRequest, FromBytes, RebuildBody, SendOnce};
use crate::select::{ByRequest, ByRoute, Fixed};
use crate::service::Resilience;

/// Applies a policy to any `tower::Service`.
///
/// [`new`](Self::new) makes a layer for HTTP: responses are classified by their status (a 503 is a failure, and its
/// `Retry-After` is honoured), errors by `Classify`, and bodies are repeated as [`BufferBody`] describes.
/// [`any_service`](Self::any_service) is for other services. A rejection is an error by default:
///
/// | | a rejection becomes | the error of the service is |
/// |---|---|---|
/// | | `Err(Error::Rejected(…))` | `phalanx::Error<S::Error>` |
/// | [`boxed_errors`](Self::boxed_errors) | a boxed `Rejection` | `BoxError` |
/// | [`answer_rejections`](Self::answer_rejections) | a response: status, `Retry-After` | `S::Error` |
/// | [`map_rejection`](Self::map_rejection) | a response made by a closure | `S::Error` |
///
/// # Behaviour
/// - State belongs to the module: clones of the layer and of the service, and all other layers on the same policy and
///   route, share breaker, limits and bulkhead slots.
/// - The service is always ready. Each attempt waits for the readiness of its own clone of the inner service, inside the
///   policy: an open breaker rejects at once even if the inner service is not ready, and the wait for readiness counts
///   towards timeout and deadline.
/// - Without retry and hedge in the policy, the request is moved, never copied, and its body is never buffered.
/// - Dropping the response future at any time releases everything the call holds.
/// - A call allocates once, for its future.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use phalanx::{BreakerSpec, Policy, ResilienceModule};
/// use phalanx_tower::ResilienceLayer;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let prices = Policy::named("prices").breaker(BreakerSpec::failure_ratio(0.5)).timeout(Duration::from_secs(1));
/// let module = ResilienceModule::in_memory().policy(prices).build()?;
///
/// let layer = ResilienceLayer::new(&module, "prices")?.route("eu")?.answer_rejections();
/// let app: axum::Router = axum::Router::new().route("/", axum::routing::get(async || "42")).layer(layer);
/// # use tower::ServiceExt;
/// let response = app.oneshot(http::Request::new(axum::body::Body::empty())).await?;
/// assert_eq!(response.status(), 200);
///
/// assert!(ResilienceLayer::new(&module, "prizes").is_err()); // a misspelt name is found here
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct ResilienceLayer<W = Fixed, Q = BufferBody, C = ByAnswer, A = AsError> {
    parts: Parts<W, Q, C, A>,
}

/// The configuration that all clones of a service share.
#[derive(Clone, Debug)]
pub(crate) struct Parts<W, Q, C, A> {
    pub(crate) module: ResilienceModule,
    /// Which pipeline a request goes through.
    pub(crate) select: W,
    /// How a request is sent again.
    pub(crate) repeat: Q,
    /// How a result is classified.
    pub(crate) classifier: C,
    /// What a rejection becomes.
    pub(crate) reject: A,
}

impl ResilienceLayer {
    /// Creates a layer that applies this policy to all requests, without a route. The pipeline is resolved here.
    ///
    /// # Errors
    /// `unknown_policy` if the module has no policy of this name.
    pub fn new(module: &ResilienceModule, policy: &str) -> Result<Self, Rejection> {
        Ok(Self::with_defaults(module, Fixed(module.pipeline(policy, ())?)))
    }
}

impl<F> ResilienceLayer<ByRequest<F>> {
    /// Creates a layer that selects policy and route for each request. The function looks up the pipeline in the module,
    /// or returns one it holds. A request for an unknown policy is rejected with `unknown_policy`.
    pub fn by_request<R>(module: &ResilienceModule, select: F) -> Self
    where
        F: Fn(&ResilienceModule, &R) -> Result<Pipeline, Rejection> + Send + Sync + 'static,
    {
        Self::with_defaults(module, ByRequest(select))
    }
}

impl<W> ResilienceLayer<W> {
    fn with_defaults(module: &ResilienceModule, select: W) -> Self {
        let repeat = BufferBody { limit: crate::repeat::DEFAULT_BODY_LIMIT, rebuild: FromBytes };
        Self { parts: Parts { module: module.clone(), select, repeat, classifier: ByAnswer, reject: AsError } }
    }
}

impl<Q, C, A> ResilienceLayer<Fixed, Q, C, A> {
    /// Sets the route of all requests.
    ///
    /// # Errors
    /// `route_too_long` if the route exceeds the limit of the module.
    pub fn route<'a>(self, route: impl Into<Route<'a>>) -> Result<Self, Rejection> {
        let policy = self.parts.select.0.key().policy();
        let pipeline = self.parts.module.pipeline(policy, route)?;
        Ok(self.with_select(Fixed(pipeline)))
    }

    /// Computes the route from each request. Keep the number of distinct routes small: each has its own breaker and
    /// bucket, and a module keeps at most `max_routes` of them.
    pub fn route_by<R, F>(self, route: F) -> ResilienceLayer<ByRoute<F>, Q, C, A>
    where
        F: Fn(&R) -> Cow<'_, str> + Send + Sync + 'static,
    {
        let policy = self.parts.select.0.key().policy().to_owned();
        self.with_select(ByRoute { policy, route })
    }
}

impl<W, F, C, A> ResilienceLayer<W, BufferBody<F>, C, A> {
    /// Sets the largest body, in bytes, that is buffered for a retry or a hedge. Default 64 KiB; 0 buffers none.
    pub fn body_limit(mut self, bytes: u64) -> Self {
        self.parts.repeat.limit = bytes;
        self
    }

    /// Sets the function that makes a body from buffered bytes, for bodies that do not implement `From<Bytes>`.
    pub fn rebuild_body<B, N>(self, rebuild: N) -> ResilienceLayer<W, BufferBody<N>, C, A>
    where
        N: Fn(Bytes) -> B + Send + Sync + 'static,
        N: RebuildBody<B>,
    {
        let limit = self.parts.repeat.limit;
        self.repeat_with(BufferBody { limit, rebuild })
    }
}

impl<W, Q, C, A> ResilienceLayer<W, Q, C, A> {
    /// For services other than HTTP: requests are cloned if the policy retries or hedges, every `Ok` is a success, and
    /// errors are classified by `Classify`.
    pub fn any_service(self) -> ResilienceLayer<W, CloneRequest, ByError, A> {
        self.repeat_with(CloneRequest).classify_with(ByError)
    }

    /// For gRPC: responses are classified by their `grpc-status`, every error of the service as a failed connection.
    /// Requests are sent once, because a gRPC request is a stream; retry around the client's method instead.
    #[cfg(feature = "tonic")]
    pub fn grpc(self) -> ResilienceLayer<W, SendOnce, ByGrpcStatus, A> {
        self.send_once().classify_with(ByGrpcStatus)
    }

    /// Sends every request once, even if the policy retries or hedges, for requests that cannot be copied.
    pub fn send_once(self) -> ResilienceLayer<W, SendOnce, C, A> {
        self.repeat_with(SendOnce)
    }

    /// Sets how requests are sent again; see [`Repeat`](crate::repeat::Repeat).
    pub fn repeat_with<N>(self, repeat: N) -> ResilienceLayer<W, N, C, A> {
        let Parts { module, select, classifier, reject, .. } = self.parts;
        ResilienceLayer { parts: Parts { module, select, repeat, classifier, reject } }
    }

    /// Classifies results with a closure.
    pub fn classify<T, E, F>(self, classifier: F) -> ResilienceLayer<W, Q, ByClosure<F>, A>
    where
        F: Fn(&Result<T, E>) -> Class + Send + Sync + 'static,
    {
        self.classify_with(ByClosure(classifier))
    }

    /// Classifies every error of the service as this kind, for errors that do not implement `Classify`, such as those of
    /// hyper's client (`Kind::Infrastructure`). Responses are still classified by their status.
    pub fn errors_as(self, kind: Kind) -> ResilienceLayer<W, Q, ErrorsAs, A> {
        self.classify_with(ErrorsAs(kind))
    }

    /// Returns rejections and the service's errors as a [`BoxError`](crate::BoxError).
    pub fn boxed_errors(self) -> ResilienceLayer<W, Q, C, AsBoxError> {
        self.with_reject(AsBoxError)
    }

    /// Returns rejections as responses made by a closure, for services that cannot fail, such as axum's.
    pub fn map_rejection<T, F>(self, response: F) -> ResilienceLayer<W, Q, C, MapRejection<F>>
    where
        F: Fn(&Rejection) -> T + Send + Sync + 'static,
    {
        self.with_reject(MapRejection(response))
    }

    /// Returns rejections as HTTP responses: the module's status for the code, `Retry-After`, no body.
    pub fn answer_rejections(self) -> ResilienceLayer<W, Q, C, AsResponse> {
        self.with_reject(AsResponse)
    }

    fn with_select<N>(self, select: N) -> ResilienceLayer<N, Q, C, A> {
        let Parts { module, repeat, classifier, reject, .. } = self.parts;
        ResilienceLayer { parts: Parts { module, select, repeat, classifier, reject } }
    }

    fn classify_with<N>(self, classifier: N) -> ResilienceLayer<W, Q, N, A> {
        let Parts { module, select, repeat, reject, .. } = self.parts;
        ResilienceLayer { parts: Parts { module, select, repeat, classifier, reject } }
    }

    fn with_reject<N>(self, reject: N) -> ResilienceLayer<W, Q, C, N> {
        let Parts { module, select, repeat, classifier, .. } = self.parts;
        ResilienceLayer { parts: Parts { module, select, repeat, classifier, reject } }
    }
}

impl<S, W: Clone, Q: Clone, C: Clone, A: Clone> Layer<S> for ResilienceLayer<W, Q, C, A> {
    type Service = Resilience<S, W, Q, C, A>;

    fn layer(&self, inner: S) -> Self::Service {
        Resilience { inner, parts: Arc::new(self.parts.clone()) }
    }
}

//! The layer: a policy, and how it reads, repeats and answers.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use phalanx::internal::core::classify::{ByAnswer, ByError};
use phalanx::{Class, Kind, Pipeline, Rejection, ResilienceModule, Route};
use tower_layer::Layer;

use crate::choose::{ByRequest, ByRoute, Fixed};
#[cfg(feature = "tonic")]
use crate::read::ByGrpcStatus;
use crate::read::{ErrorsAs, Reading};
use crate::reject::{AsBoxed, AsError, AsResponse, Mapped};
use crate::repeat::{Buffered, Cloned, FromBytes, Once, RebuildBody};
use crate::service::Resilience;

/// Puts a policy around any `tower::Service`.
///
/// Made by [`new`](Self::new) it is for HTTP: answers are read by their status (a 503 is a failure, its `Retry-After` is
/// honoured), errors by `Classify`, and bodies are repeated by the rule of [`Buffered`](crate::repeat::Buffered).
/// [`any_service`](Self::any_service) is for everything else. A rejection is an error unless told otherwise:
///
/// | | a rejection becomes | the error of the service is |
/// |---|---|---|
/// | | `Err(Error::Rejected(…))` | `phalanx::Error<S::Error>` |
/// | [`boxed_errors`](Self::boxed_errors) | a boxed `Rejection` | `BoxError` |
/// | [`answer_rejections`](Self::answer_rejections) | a response: status, `Retry-After` | `S::Error` |
/// | [`map_rejection`](Self::map_rejection) | a response of your own | `S::Error` |
///
/// # Behaviour
/// - Clones of the layer, of the service, and services that other layers of the same module made for the same policy and
///   route share circuit, limits and slots: the state is the module's.
/// - The service is always ready. Each attempt waits for the inner service's readiness on a clone of its own, inside the
///   policy: an open circuit rejects at once although the inner service is not ready, and the wait for readiness counts
///   for timeout and deadline.
/// - Without retry and hedge in the policy the request is moved, never copied, and a body never buffered.
/// - Dropping the response future at any time gives back whatever the call held.
/// - A call allocates once, for its future.
///
/// ```
/// use std::time::Duration;
/// use phalanx::{BreakerSpec, Policy, ResilienceModule};
/// use phalanx_tower::ResilienceLayer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let prices = Policy::named("prices").breaker(BreakerSpec::failure_ratio(0.5)).timeout(Duration::from_secs(1));
/// let module = ResilienceModule::in_memory().policy(prices).build()?;
///
/// let layer = ResilienceLayer::new(&module, "prices")?.route("eu")?.answer_rejections();
/// let app: axum::Router = axum::Router::new().route("/", axum::routing::get(async || "42")).layer(layer);
/// # let _ = app;
/// assert!(ResilienceLayer::new(&module, "prizes").is_err()); // a misspelt name is found here
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is put around a service"]
pub struct ResilienceLayer<W = Fixed, Q = Buffered, C = ByAnswer, A = AsError> {
    parts: Parts<W, Q, C, A>,
}

/// What all clones of a service share.
#[derive(Clone, Debug)]
pub(crate) struct Parts<W, Q, C, A> {
    pub(crate) module: ResilienceModule,
    /// Which pipeline.
    pub(crate) choose: W,
    /// How a request is sent again.
    pub(crate) repeat: Q,
    /// What a result means.
    pub(crate) classifier: C,
    /// What becomes of a rejection.
    pub(crate) reject: A,
}

impl ResilienceLayer {
    /// This policy for all requests, on no route in particular. It is resolved here and kept.
    ///
    /// # Errors
    /// `unknown_policy`: the name is misspelt.
    pub fn new(module: &ResilienceModule, policy: &str) -> Result<Self, Rejection> {
        Ok(Self::over(module, Fixed(module.pipeline(policy, ())?)))
    }
}

impl<F> ResilienceLayer<ByRequest<F>> {
    /// Policy and route by a function of the request, which finds the pipeline in the module or returns one that it
    /// keeps. A name that is misspelt there is found at run time: the request is rejected with `unknown_policy`.
    pub fn by<R>(module: &ResilienceModule, choose: F) -> Self
    where
        F: Fn(&ResilienceModule, &R) -> Result<Pipeline, Rejection> + Send + Sync + 'static,
    {
        Self::over(module, ByRequest(choose))
    }
}

impl<W> ResilienceLayer<W> {
    fn over(module: &ResilienceModule, choose: W) -> Self {
        let repeat = Buffered { limit: crate::repeat::BODY_LIMIT, rebuild: FromBytes };
        Self { parts: Parts { module: module.clone(), choose, repeat, classifier: ByAnswer, reject: AsError } }
    }
}

impl<Q, C, A> ResilienceLayer<Fixed, Q, C, A> {
    /// This route for all requests.
    ///
    /// # Errors
    /// `route_too_long`.
    pub fn route<'a>(self, route: impl Into<Route<'a>>) -> Result<Self, Rejection> {
        let policy = self.parts.choose.0.key().policy();
        let pipeline = self.parts.module.pipeline(policy, route)?;
        Ok(self.choosing(Fixed(pipeline)))
    }

    /// The route by a function of the request. Mind what it is made of: each distinct route has a circuit and a bucket of
    /// its own, and a module keeps at most `max_routes` of them.
    pub fn route_by<R, F>(self, route: F) -> ResilienceLayer<ByRoute<F>, Q, C, A>
    where
        F: Fn(&R) -> Cow<'_, str> + Send + Sync + 'static,
    {
        let policy = self.parts.choose.0.key().policy().to_owned();
        self.choosing(ByRoute { policy, route })
    }
}

impl<W, F, C, A> ResilienceLayer<W, Buffered<F>, C, A> {
    /// How large a body may be, in bytes, to be kept for a retry or a copy. Default 64 KiB; 0: only requests without one.
    pub fn body_limit(mut self, bytes: u64) -> Self {
        self.parts.repeat.limit = bytes;
        self
    }

    /// Makes bodies by a function, for those that are not `From<Bytes>`.
    pub fn rebuild_body<B, N>(self, rebuild: N) -> ResilienceLayer<W, Buffered<N>, C, A>
    where
        N: Fn(Bytes) -> B + Send + Sync + 'static,
        N: RebuildBody<B>,
    {
        let limit = self.parts.repeat.limit;
        self.repeat_by(Buffered { limit, rebuild })
    }
}

impl<W, Q, C, A> ResilienceLayer<W, Q, C, A> {
    /// For services that do not speak HTTP: requests are cloned if the policy retries or hedges, any `Ok` is a success,
    /// errors are what they say they are.
    pub fn any_service(self) -> ResilienceLayer<W, Cloned, ByError, A> {
        self.repeat_by(Cloned).read_by(ByError)
    }

    /// For gRPC: answers are read by their `grpc-status`, any error of the service is a broken connection, and nothing is
    /// repeated here, because a gRPC request is a stream. Retry around the client's method instead.
    #[cfg(feature = "tonic")]
    pub fn grpc(self) -> ResilienceLayer<W, Once, ByGrpcStatus, A> {
        self.once().read_by(ByGrpcStatus)
    }

    /// Nothing is sent twice, whatever the policy says: for requests that cannot be copied.
    pub fn once(self) -> ResilienceLayer<W, Once, C, A> {
        self.repeat_by(Once)
    }

    /// Repeats requests in a way of your own: see [`Repeat`](crate::repeat::Repeat).
    pub fn repeat_by<N>(self, repeat: N) -> ResilienceLayer<W, N, C, A> {
        let Parts { module, choose, classifier, reject, .. } = self.parts;
        ResilienceLayer { parts: Parts { module, choose, repeat, classifier, reject } }
    }

    /// Reads results with a closure.
    pub fn classify<T, E, F>(self, classifier: F) -> ResilienceLayer<W, Q, Reading<F>, A>
    where
        F: Fn(&Result<T, E>) -> Class + Send + Sync + 'static,
    {
        self.read_by(Reading(classifier))
    }

    /// Takes any error of the service for one of this kind: for errors that do not implement `Classify`, such as those of
    /// hyper's client (`Kind::Infrastructure`). Answers still say what they are.
    pub fn errors_as(self, kind: Kind) -> ResilienceLayer<W, Q, ErrorsAs, A> {
        self.read_by(ErrorsAs(kind))
    }

    /// Errors, the service's and the policy's, as a [`BoxError`](crate::BoxError).
    pub fn boxed_errors(self) -> ResilienceLayer<W, Q, C, AsBoxed> {
        self.reject_by(AsBoxed)
    }

    /// Rejections as answers, made by a function: for services that cannot fail, such as axum's.
    pub fn map_rejection<T, F>(self, answer: F) -> ResilienceLayer<W, Q, C, Mapped<F>>
    where
        F: Fn(&Rejection) -> T + Send + Sync + 'static,
    {
        self.reject_by(Mapped(answer))
    }

    /// Rejections as HTTP responses: the module's status for the code, `Retry-After`, no body.
    pub fn answer_rejections(self) -> ResilienceLayer<W, Q, C, AsResponse> {
        self.reject_by(AsResponse)
    }

    fn choosing<N>(self, choose: N) -> ResilienceLayer<N, Q, C, A> {
        let Parts { module, repeat, classifier, reject, .. } = self.parts;
        ResilienceLayer { parts: Parts { module, choose, repeat, classifier, reject } }
    }

    fn read_by<N>(self, classifier: N) -> ResilienceLayer<W, Q, N, A> {
        let Parts { module, choose, repeat, reject, .. } = self.parts;
        ResilienceLayer { parts: Parts { module, choose, repeat, classifier, reject } }
    }

    fn reject_by<N>(self, reject: N) -> ResilienceLayer<W, Q, C, N> {
        let Parts { module, choose, repeat, classifier, .. } = self.parts;
        ResilienceLayer { parts: Parts { module, choose, repeat, classifier, reject } }
    }
}

impl<S, W: Clone, Q: Clone, C: Clone, A: Clone> Layer<S> for ResilienceLayer<W, Q, C, A> {
    type Service = Resilience<S, W, Q, C, A>;

    fn layer(&self, inner: S) -> Self::Service {
        Resilience { inner, parts: Arc::new(self.parts.clone()) }
    }
}

//! [`EdgeLayer`] and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::request::Parts;
use phalanx::{Criticality, ResilienceModule};
use tower_layer::Layer;

use super::counts::{Counters, EdgeCounts};
use super::service::EdgeService;

/// Parses deadline and criticality from request headers and binds them as the [`Context`](phalanx::Context) of the handler.
///
/// With the feature `trace-context` the first span inside becomes a child of the span named by `traceparent`.
///
/// Make it the outermost layer. Clones share the counters.
///
/// # Examples
///
/// ```
/// use http::{Request, Response};
/// use phalanx::Context;
/// use phalanx_tower::edge::EdgeLayer;
/// use std::convert::Infallible;
/// use std::time::Duration;
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let handler = service_fn(async |_: Request<()>| {
///     let remaining = Context::current().remaining().unwrap();
///     Ok::<_, Infallible>(Response::new(bytes::Bytes::from(format!("{}", remaining <= Duration::from_millis(800)))))
/// });
/// let service = EdgeLayer::new().max_deadline(Duration::from_secs(5)).layer(handler);
///
/// let request = Request::get("/").header("x-request-timeout", "800").body(())?;
/// assert_eq!(service.clone().oneshot(request).await?.body(), "true");
///
/// let expired = Request::get("/").header("x-request-timeout", "0").body(())?;
/// assert_eq!(service.oneshot(expired).await?.status(), 504); // without calling the handler
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct EdgeLayer {
    pub(crate) settings: Arc<EdgeSettings>,
    pub(crate) counters: Arc<Counters>,
}

type TrustFn = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
type WallClockFn = Arc<dyn Fn() -> SystemTime + Send + Sync>;

#[derive(Clone)]
pub(crate) struct EdgeSettings {
    pub(crate) max_deadline: Duration,
    pub(crate) min_deadline: Duration,
    pub(crate) max_skew: Duration,
    pub(crate) grace: Option<Duration>,
    pub(crate) report_remaining: bool,
    pub(crate) criticality: Criticality,
    pub(crate) trust: Option<TrustFn>,
    pub(crate) wall_clock: WallClockFn,
    pub(crate) module: Option<ResilienceModule>,
}

impl Default for EdgeLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl EdgeLayer {
    /// Creates a layer with the default settings, which each method documents.
    pub fn new() -> Self {
        let settings = EdgeSettings {
            max_deadline: Duration::from_secs(30),
            min_deadline: Duration::from_millis(1),
            max_skew: Duration::from_secs(60),
            grace: Some(Duration::from_millis(25)),
            report_remaining: false,
            criticality: Criticality::Normal,
            trust: None,
            wall_clock: Arc::new(system_time),
            module: None,
        };
        Self { settings: Arc::new(settings), counters: Arc::default() }
    }

    fn with(mut self, change: impl FnOnce(&mut EdgeSettings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// Sets the longest time a request may take, and the time of a request without a deadline. Default 30 s.
    pub fn max_deadline(self, max: Duration) -> Self {
        self.with(|settings| settings.max_deadline = max)
    }

    /// Sets the shortest deadline. A request that asks for less, but more than zero, gets this. Default 1 ms.
    pub fn min_deadline(self, min: Duration) -> Self {
        self.with(|settings| settings.min_deadline = min)
    }

    /// Sets how far a client's clock may differ before its `X-Request-Deadline` is ignored. Default 60 s.
    pub fn max_skew(self, skew: Duration) -> Self {
        self.with(|settings| settings.max_skew = skew)
    }

    /// Sets how long after its deadline a handler is cancelled and its request answered 504. The grace lets the handler
    /// answer by itself, with a fallback or a more precise error. `None` never cancels. Only the head of a response is
    /// awaited; its body may stream on. Default 25 ms.
    pub fn grace(self, grace: impl Into<Option<Duration>>) -> Self {
        let grace = grace.into();
        self.with(|settings| settings.grace = grace)
    }

    /// Sets whether every response has `X-Deadline-Remaining`, not only if the request has that header. Default false.
    pub fn report_remaining(self, always: bool) -> Self {
        self.with(|settings| settings.report_remaining = always)
    }

    /// Sets the criticality of requests without the header, which is also the maximum for untrusted peers. Default
    /// `Normal`.
    pub fn criticality(self, criticality: Criticality) -> Self {
        self.with(|settings| settings.criticality = criticality)
    }

    /// Sets which peers may raise the criticality. Decide by the peer's authenticated identity (an extension set by the
    /// TLS or authentication layer), not by a header that every client can send. Default: no peer.
    ///
    /// # Examples
    ///
    /// ```
    /// use http::{Request, Response};
    /// use phalanx::{Context, Criticality};
    /// use phalanx_tower::edge::EdgeLayer;
    /// use std::convert::Infallible;
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// #[derive(Clone, PartialEq)]
    /// struct Peer(&'static str); // set by the authentication layer
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let handler = service_fn(async |_: Request<()>| {
    ///     let critical = Context::current().criticality() == Criticality::Critical;
    ///     Ok::<_, Infallible>(Response::new(bytes::Bytes::from(critical.to_string())))
    /// });
    /// let edge = EdgeLayer::new().trust(|parts| parts.extensions.get() == Some(&Peer("checkout"))).layer(handler);
    /// for (peer, critical) in [("checkout", "true"), ("unknown", "false")] {
    ///     let request = Request::get("/").header("x-criticality", "critical").extension(Peer(peer)).body(())?;
    ///     assert_eq!(edge.clone().oneshot(request).await?.body(), critical);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn trust(self, trusted: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.trust = Some(Arc::new(trusted)))
    }

    /// Answers rejections with the statuses configured in this module. Default: the status of the rejection code.
    pub fn module(self, module: &ResilienceModule) -> Self {
        let module = module.clone();
        self.with(|settings| settings.module = Some(module))
    }

    /// Sets the wall clock that `X-Request-Deadline` is compared with. Default: the system clock.
    pub fn wall_clock(self, wall_clock: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.wall_clock = Arc::new(wall_clock))
    }

    /// Returns the counters.
    pub fn counts(&self) -> EdgeCounts {
        self.counters.read()
    }
}

/// An RFC 3339 deadline can only be compared with the wall clock; nothing else reads it.
#[allow(clippy::disallowed_methods)]
fn system_time() -> SystemTime {
    SystemTime::now()
}

impl<S> Layer<S> for EdgeLayer {
    type Service = EdgeService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        EdgeService { inner, edge: self.clone() }
    }
}

impl fmt::Debug for EdgeLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.settings;
        f.debug_struct("EdgeLayer")
            .field("max_deadline", &settings.max_deadline)
            .field("min_deadline", &settings.min_deadline)
            .field("max_skew", &settings.max_skew)
            .field("grace", &settings.grace)
            .field("criticality", &settings.criticality)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

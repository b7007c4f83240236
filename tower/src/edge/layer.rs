//! The edge as a layer: what a service decides once.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::request::Parts;
use phalanx::{Criticality, ResilienceModule};
use tower_layer::Layer;

use super::counts::{Counters, EdgeCounts};
use super::service::EdgeService;

/// Reads deadline and criticality from a request's headers and binds them for everything inside.
///
/// With the feature `trace-context` the first span inside is a child of the one that the request's `traceparent` names.
///
/// Put it outermost. Clones share the counters.
#[derive(Clone)]
#[must_use = "a layer does nothing until something is put under it"]
pub struct EdgeLayer {
    pub(crate) terms: Arc<Terms>,
    pub(crate) counters: Arc<Counters>,
}

type Trust = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
type Wall = Arc<dyn Fn() -> SystemTime + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) max: Duration,
    pub(crate) min: Duration,
    pub(crate) max_skew: Duration,
    pub(crate) grace: Option<Duration>,
    pub(crate) tell_remaining: bool,
    pub(crate) criticality: Criticality,
    pub(crate) trust: Option<Trust>,
    pub(crate) wall: Wall,
    pub(crate) module: Option<ResilienceModule>,
}

impl Default for EdgeLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl EdgeLayer {
    /// With the defaults that each method names.
    pub fn new() -> Self {
        let terms = Terms {
            max: Duration::from_secs(30),
            min: Duration::from_millis(1),
            max_skew: Duration::from_secs(60),
            grace: Some(Duration::from_millis(25)),
            tell_remaining: false,
            criticality: Criticality::Normal,
            trust: None,
            wall: Arc::new(time_of_day),
            module: None,
        };
        Self { terms: Arc::new(terms), counters: Arc::default() }
    }

    fn with(mut self, change: impl FnOnce(&mut Terms)) -> Self {
        change(Arc::make_mut(&mut self.terms));
        self
    }

    /// The longest any request may take, whatever it asks for; also what one gets that does not ask. Default 30 s.
    pub fn max_deadline(self, longest: Duration) -> Self {
        self.with(|terms| terms.max = longest)
    }

    /// The shortest deadline that is bound; what asks for less (and more than nothing) gets this. Default 1 ms.
    pub fn min_deadline(self, shortest: Duration) -> Self {
        self.with(|terms| terms.min = shortest)
    }

    /// How far a client's clock may be from ours before its `X-Request-Deadline` is ignored. Default 60 s.
    pub fn max_skew(self, skew: Duration) -> Self {
        self.with(|terms| terms.max_skew = skew)
    }

    /// How long after its deadline a request is cut off with a 504 if the handler has not answered by itself. The
    /// time is for the handler's own word: a fallback, or which dependency it was. `None` never cuts off. Only the
    /// head of a response is waited for; a body may stream on. Default 25 ms.
    pub fn grace(self, grace: impl Into<Option<Duration>>) -> Self {
        let grace = grace.into();
        self.with(|terms| terms.grace = grace)
    }

    /// Puts `X-Deadline-Remaining` on every response, not only where the request has such a header. Default no.
    pub fn tell_remaining(self, always: bool) -> Self {
        self.with(|terms| terms.tell_remaining = always)
    }

    /// What a request is that does not say, and the most that one can be whose peer is not trusted. Default `Normal`.
    pub fn criticality(self, criticality: Criticality) -> Self {
        self.with(|terms| terms.criticality = criticality)
    }

    /// Whose word on a higher criticality counts: decide by the peer's authenticated identity (an extension that your
    /// TLS or authentication layer has set), not by a header that anybody can send. Default nobody.
    pub fn trust(self, trusted: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|terms| terms.trust = Some(Arc::new(trusted)))
    }

    /// Gives rejections the statuses that this module's service has chosen. Default: those of the table.
    pub fn module(self, module: &ResilienceModule) -> Self {
        let module = module.clone();
        self.with(|terms| terms.module = Some(module))
    }

    /// The time of day that `X-Request-Deadline` is compared with. Default the system's.
    pub fn wall_clock(self, wall: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.with(|terms| terms.wall = Arc::new(wall))
    }

    /// What was ignored, changed or cut off so far.
    pub fn counts(&self) -> EdgeCounts {
        self.counters.read()
    }
}

/// A client's moment can only be compared with the time of day; nothing else here reads it.
#[allow(clippy::disallowed_methods)]
fn time_of_day() -> SystemTime {
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
        let terms = &self.terms;
        f.debug_struct("EdgeLayer")
            .field("max_deadline", &terms.max)
            .field("min_deadline", &terms.min)
            .field("max_skew", &terms.max_skew)
            .field("grace", &terms.grace)
            .field("criticality", &terms.criticality)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

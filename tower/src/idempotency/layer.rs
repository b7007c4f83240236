//! [`IdempotencyLayer`] and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, COOKIE};
use http::request::Parts;
use tokio::sync::Semaphore;
use tower_layer::Layer;

use super::counts::{Counters, IdempotencyCounts};
use super::service::IdempotencyService;
use super::store::IdempotencyStore;
use super::unstored::UnstoredAnswers;

/// How to treat a request with a key while the store is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// Rejects it with 503 `store_unavailable`.
    #[default]
    Reject,
    /// Runs it as if it had no key. Its effect may happen twice.
    Pass,
}

/// Makes a write with an `Idempotency-Key` happen once. See the [module](super) for the guarantees.
///
/// Clones share store, counters and limits. Apply it inside an [`EdgeLayer`](crate::edge::EdgeLayer).
///
/// # Examples
///
#[cfg_attr(feature = "axum", doc = "```")]
#[cfg_attr(not(feature = "axum"), doc = "```ignore")]
/// use axum::{Router, body::Body, http::Request, routing::post};
/// use phalanx_tower::idempotency::{IdempotencyLayer, MemoryIdempotency};
/// use tower::ServiceExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let idempotency = IdempotencyLayer::new(MemoryIdempotency::new());
/// let app = Router::new().route("/pay", post(async || "paid")).layer(idempotency.clone());
///
/// let pay = || Request::post("/pay").header("idempotency-key", "k-17").body(Body::empty());
/// app.clone().oneshot(pay()?).await?;
/// let retry = app.oneshot(pay()?).await?;
/// assert_eq!(retry.headers()["idempotency-replayed"], "true");
/// assert_eq!(idempotency.counts().run, 1); // the handler ran once
/// # Ok(())
/// # }
/// ```
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct IdempotencyLayer<T> {
    pub(crate) store: Arc<T>,
    pub(crate) settings: Arc<IdempotencySettings>,
    pub(crate) counters: Arc<Counters>,
    /// Limits the duplicates that wait for an answer.
    pub(crate) waiting_permits: Arc<Semaphore>,
    /// Limits the running handlers. They outlive their clients, so nothing else bounds them.
    pub(crate) running_permits: Arc<Semaphore>,
    /// Limits the releases that are repeated in the background.
    pub(crate) releasing_permits: Arc<Semaphore>,
    pub(crate) unstored: UnstoredAnswers,
}

type ScopeFn = Arc<dyn Fn(&Parts) -> Vec<u8> + Send + Sync>;

/// The headers that identify a caller, each with its length, so that different headers never give the same bytes.
fn credentials(parts: &Parts) -> Vec<u8> {
    let mut scope = Vec::new();
    for name in [AUTHORIZATION, COOKIE] {
        let values: Vec<&[u8]> = parts.headers.get_all(name).iter().map(|value| value.as_bytes()).collect();
        let value = values.join(&b"; "[..]); // HTTP/2 may split a Cookie header
        scope.extend_from_slice(&(value.len() as u64).to_le_bytes());
        scope.extend_from_slice(&value);
    }
    scope
}

/// How often a claim is renewed at least, so that nearly the whole lease is left when the store goes away.
const MAX_RENEWAL_INTERVAL: Duration = Duration::from_secs(10);

const DEFAULT_MAX_WAITING: usize = 1_024;
const DEFAULT_MAX_RUNNING: usize = 1_024;
const MAX_RELEASING: usize = 1_024;

#[derive(Clone)]
pub(crate) struct IdempotencySettings {
    pub(crate) required: bool,
    pub(crate) scope: ScopeFn,
    pub(crate) max_key: usize,
    pub(crate) max_request_body: usize,
    pub(crate) max_answer_body: usize,
    pub(crate) ttl: Duration,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    pub(crate) finish_within: Duration,
    pub(crate) on_unavailable: OnUnavailable,
    pub(crate) store_cookies: bool,
}

impl IdempotencySettings {
    pub(crate) fn renewal_interval(&self) -> Duration {
        (self.lease / 3).min(MAX_RENEWAL_INTERVAL)
    }
}

impl<T: IdempotencyStore> IdempotencyLayer<T> {
    /// Creates a layer over a store, with the default settings, which each method documents.
    pub fn new(store: T) -> Self {
        let settings = IdempotencySettings {
            required: false,
            scope: Arc::new(credentials),
            max_key: 255,
            max_request_body: 1 << 20,
            max_answer_body: 64 << 10,
            ttl: Duration::from_secs(86_400),
            lease: Duration::from_secs(150),
            wait: Duration::from_secs(5),
            finish_within: Duration::from_secs(60),
            on_unavailable: OnUnavailable::Reject,
            store_cookies: false,
        };
        Self {
            store: Arc::new(store),
            settings: Arc::new(settings),
            counters: Arc::default(),
            waiting_permits: Arc::new(Semaphore::new(DEFAULT_MAX_WAITING)),
            running_permits: Arc::new(Semaphore::new(DEFAULT_MAX_RUNNING)),
            releasing_permits: Arc::new(Semaphore::new(MAX_RELEASING)),
            unstored: UnstoredAnswers::default(),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut IdempotencySettings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// Sets whether POST, PUT, PATCH and DELETE requests without a key are rejected (400). Default false: they pass,
    /// without any guarantee.
    pub fn required(self, required: bool) -> Self {
        self.with(|settings| settings.required = required)
    }

    /// Sets to which scope a key belongs. Equal keys of different scopes are different. Default: the `Authorization` and
    /// `Cookie` headers. A service whose cookies or tokens change between a request and its retry names a scope that does
    /// not, such as the user's id; with another scope the retry is a new request.
    pub fn scope<S: Into<Vec<u8>>>(self, scope: impl Fn(&Parts) -> S + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.scope = Arc::new(move |parts| scope(parts).into()))
    }

    /// Sets the longest key, in bytes. Default 255.
    pub fn max_key(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_key = bytes)
    }

    /// Sets the largest request body, in bytes. A body is buffered to be compared; a larger one is rejected (413).
    /// Default 1 MiB.
    pub fn max_request_body(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_request_body = bytes)
    }

    /// Sets the largest answer that is stored, in bytes of its body. Default 64 KiB.
    pub fn max_answer_body(self, bytes: usize) -> Self {
        self.with(|settings| settings.max_answer_body = bytes)
    }

    /// Sets how long an answer is stored. A store may have a maximum (Redis: 30 days). Default 24 h.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|settings| settings.ttl = ttl)
    }

    /// Sets the lease of a claim: how long it outlives a crashed replica, and also how long the store may be away when a
    /// handler ends without a retry running it again. Renewed every 10 s while the handler runs, and every third of it if
    /// that is less. Default 150 s: an outage of two minutes, and the time to recover from it.
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|settings| settings.lease = lease.max(Duration::from_millis(3)))
    }

    /// Sets how long a duplicate waits for the answer, within its own deadline, before it gets a 409. Zero: at once.
    /// Default 5 s.
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|settings| settings.wait = wait)
    }

    /// Sets how many duplicates may wait at a time. Further ones get a 409 at once. Default 1,024.
    pub fn max_waiting(mut self, duplicates: usize) -> Self {
        self.waiting_permits = Arc::new(Semaphore::new(duplicates.min(Semaphore::MAX_PERMITS)));
        self
    }

    /// Sets how many handlers may run at a time, with or without a waiting client. Further requests are rejected (503,
    /// `bulkhead_full`) and release their keys. Default 1,024.
    pub fn max_running(mut self, requests: usize) -> Self {
        self.running_permits = Arc::new(Semaphore::new(requests.min(Semaphore::MAX_PERMITS)));
        self
    }

    /// Sets the deadline of the handler, which replaces the client's. Default 60 s.
    pub fn finish_within(self, timeout: Duration) -> Self {
        self.with(|settings| settings.finish_within = timeout)
    }

    /// Sets how requests with a key are treated while the store is unavailable. Default: rejected.
    pub fn on_unavailable(self, choice: OnUnavailable) -> Self {
        self.with(|settings| settings.on_unavailable = choice)
    }

    /// Sets whether `Set-Cookie` headers are stored and replayed. Default false: a replay sets no cookies. With true they
    /// lie in the store in plain text.
    pub fn store_cookies(self, store: bool) -> Self {
        self.with(|settings| settings.store_cookies = store)
    }

    /// Returns the counters.
    pub fn counts(&self) -> IdempotencyCounts {
        self.counters.read()
    }
}

impl<T> Clone for IdempotencyLayer<T> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            settings: self.settings.clone(),
            counters: self.counters.clone(),
            waiting_permits: self.waiting_permits.clone(),
            running_permits: self.running_permits.clone(),
            releasing_permits: self.releasing_permits.clone(),
            unstored: self.unstored.clone(),
        }
    }
}

impl<T, S> Layer<S> for IdempotencyLayer<T> {
    type Service = IdempotencyService<T, S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService { inner, layer: self.clone() }
    }
}

impl<T> fmt::Debug for IdempotencyLayer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.settings;
        f.debug_struct("IdempotencyLayer")
            .field("ttl", &settings.ttl)
            .field("lease", &settings.lease)
            .field("wait", &settings.wait)
            .field("finish_within", &settings.finish_within)
            .field("on_unavailable", &settings.on_unavailable)
            .field("counts", &self.counters.read())
            .finish_non_exhaustive()
    }
}

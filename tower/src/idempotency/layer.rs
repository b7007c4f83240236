//! The layer: what a service decides once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::request::Parts;
use tokio::sync::Semaphore;
use tower_layer::Layer;

use super::counts::{Counters, IdempotencyCounts};
use super::service::IdempotencyService;
use super::store::IdempotencyStore;

/// What happens to a request with a key while the store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// It is rejected: 503, `store_unavailable`. What might happen twice does not happen.
    #[default]
    Reject,
    /// It runs as if it had no key: what might happen twice may.
    Pass,
}

/// Makes writes with an `Idempotency-Key` happen once. See the [module](super) for what that means.
///
/// Clones share store, counters and bounds. Put it inside an [`EdgeLayer`](crate::edge::EdgeLayer).
#[must_use = "a layer does nothing until something is put under it"]
pub struct IdempotencyLayer<T> {
    pub(crate) store: Arc<T>,
    pub(crate) terms: Arc<Terms>,
    pub(crate) counters: Arc<Counters>,
    /// Places for those who wait for somebody else's answer.
    pub(crate) places: Arc<Semaphore>,
    /// Slots for work: it outlives its clients, so nothing else bounds it.
    pub(crate) slots: Arc<Semaphore>,
}

type Scope = Arc<dyn Fn(&Parts) -> Vec<u8> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) required: bool,
    pub(crate) scope: Scope,
    pub(crate) max_key: usize,
    pub(crate) max_request: usize,
    pub(crate) max_answer: usize,
    pub(crate) ttl: Duration,
    pub(crate) lease: Duration,
    pub(crate) wait: Duration,
    pub(crate) finish_within: Duration,
    pub(crate) on_unavailable: OnUnavailable,
}

impl<T: IdempotencyStore> IdempotencyLayer<T> {
    /// Over a store, with the defaults that each method names.
    pub fn new(store: T) -> Self {
        let credentials =
            |parts: &Parts| parts.headers.get(AUTHORIZATION).map_or_else(Vec::new, |v| v.as_bytes().to_vec());
        let terms = Terms {
            required: false,
            scope: Arc::new(credentials),
            max_key: 255,
            max_request: 1 << 20,
            max_answer: 64 << 10,
            ttl: Duration::from_secs(86_400),
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(5),
            finish_within: Duration::from_secs(60),
            on_unavailable: OnUnavailable::Reject,
        };
        let [places, slots] = [1_024, 1_024].map(|n| Arc::new(Semaphore::new(n)));
        Self { store: Arc::new(store), terms: Arc::new(terms), counters: Arc::default(), places, slots }
    }

    fn with(mut self, change: impl FnOnce(&mut Terms)) -> Self {
        change(Arc::make_mut(&mut self.terms));
        self
    }

    /// Rejects unsafe requests without a key (400). Default no: they pass, and nothing is promised.
    pub fn required(self, required: bool) -> Self {
        self.with(|terms| terms.required = required)
    }

    /// Whom a key belongs to: callers of another scope never meet. Default: the `Authorization` header, to the letter.
    pub fn scope<S: Into<Vec<u8>>>(self, scope: impl Fn(&Parts) -> S + Send + Sync + 'static) -> Self {
        self.with(|terms| terms.scope = Arc::new(move |parts| scope(parts).into()))
    }

    /// The longest key, in bytes. Default 255.
    pub fn max_key(self, bytes: usize) -> Self {
        self.with(|terms| terms.max_key = bytes)
    }

    /// The largest request body that is read to be compared, in bytes; a larger one is rejected (413). Default 1 MiB.
    pub fn max_request_body(self, bytes: usize) -> Self {
        self.with(|terms| terms.max_request = bytes)
    }

    /// The largest answer that is kept, in bytes of its body. Default 64 KiB.
    pub fn max_answer_body(self, bytes: usize) -> Self {
        self.with(|terms| terms.max_answer = bytes)
    }

    /// How long an answer is kept; a store may have a longest of its own (Redis: 30 days). Default 24 h.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|terms| terms.ttl = ttl)
    }

    /// How long a claim outlives its replica; renewed three times as often while the work runs. Default 30 s.
    pub fn lease(self, lease: Duration) -> Self {
        self.with(|terms| terms.lease = lease.max(Duration::from_millis(3)))
    }

    /// How long a duplicate waits for the first one's answer, within its own deadline, before it gets 409. Zero: it gets
    /// it at once. Default 5 s.
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|terms| terms.wait = wait)
    }

    /// How many duplicates wait at a time; more get 409 at once. Default 1,024.
    pub fn max_waiting(mut self, duplicates: usize) -> Self {
        self.places = Arc::new(Semaphore::new(duplicates.min(Semaphore::MAX_PERMITS)));
        self
    }

    /// How much work runs at a time, with or without a client that waits for it; more is rejected (503,
    /// `bulkhead_full`) and gives its key back. Default 1,024.
    pub fn max_running(mut self, requests: usize) -> Self {
        self.slots = Arc::new(Semaphore::new(requests.min(Semaphore::MAX_PERMITS)));
        self
    }

    /// How long the handler's work may go on after its client has given up: its own deadline, in place of the
    /// client's. Default 60 s.
    pub fn finish_within(self, longest: Duration) -> Self {
        self.with(|terms| terms.finish_within = longest)
    }

    /// What happens while the store is away. Default: requests with a key are rejected.
    pub fn on_unavailable(self, choice: OnUnavailable) -> Self {
        self.with(|terms| terms.on_unavailable = choice)
    }

    /// What became of requests so far.
    pub fn counts(&self) -> IdempotencyCounts {
        self.counters.read()
    }
}

impl<T> Clone for IdempotencyLayer<T> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            terms: self.terms.clone(),
            counters: self.counters.clone(),
            places: self.places.clone(),
            slots: self.slots.clone(),
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
        let terms = &self.terms;
        f.debug_struct("IdempotencyLayer")
            .field("ttl", &terms.ttl)
            .field("lease", &terms.lease)
            .field("wait", &terms.wait)
            .field("finish_within", &terms.finish_within)
            .field("on_unavailable", &terms.on_unavailable)
            .field("counts", &self.counters.read())
            .finish_non_exhaustive()
    }
}

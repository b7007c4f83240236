//! One request with a key: find what became of it, and do it if nothing did.

use std::error::Error;
use std::future::Future;
use std::mem::replace;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use phalanx::{Context, Rejection, RejectionCode};
use tokio::time::{Instant, sleep};
use tower_service::Service;

use super::body::ReplayBody;
use super::kept::Kept;
use super::layer::{IdempotencyLayer, OnUnavailable};
use super::problems::Trouble;
use super::store::{Claim, IdempotencyStore, Ticket};
use super::{IDEMPOTENCY_KEY, REPLAYED};
use crate::edge::RejectionResponse;

/// A service behind an [`IdempotencyLayer`].
pub struct IdempotencyService<T, S> {
    pub(crate) inner: S,
    pub(crate) layer: IdempotencyLayer<T>,
}

/// How often who waits asks again: soon at first, then less and less.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

type Answer<R> = Response<ReplayBody<R>>;
type BoxError = Box<dyn Error + Send + Sync>;

/// What is to be done about a request.
enum Next {
    Work,
    Replay(Kept),
    Reject(Trouble),
    Unavailable,
}

impl<T: IdempotencyStore> IdempotencyLayer<T> {
    /// The key of a request; none if it passes as it is.
    fn key_of<B>(&self, request: &Request<B>) -> Result<Option<Bytes>, Trouble> {
        if request.method().is_safe() {
            return Ok(None);
        }
        let mut values = request.headers().get_all(IDEMPOTENCY_KEY).iter();
        match (values.next(), values.next()) {
            (None, _) if self.terms.required => Err(Trouble::KeyMissing),
            (None, _) => Ok(None),
            (Some(key), None) => {
                let key = key.as_bytes();
                let plain = key.iter().all(|byte| (b' '..=b'~').contains(byte));
                let fits = (1..=self.terms.max_key).contains(&key.len());
                if plain && fits { Ok(Some(Bytes::copy_from_slice(key))) } else { Err(Trouble::KeyInvalid) }
            }
            _ => Err(Trouble::KeyInvalid),
        }
    }

    fn ticket(&self, key: &[u8], parts: &Parts, body: &[u8]) -> Ticket {
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        Ticket::new(&(self.terms.scope)(parts), key, [parts.method.as_str().as_bytes(), path.as_bytes(), body])
    }

    /// Claims the request, or waits for what becomes of it.
    async fn find(&self, ticket: &Ticket) -> Next {
        let until = Instant::now() + self.terms.wait.min(Duration::from_secs(86_400));
        let until = Context::current().deadline().map_or(until, |deadline| deadline.min(until));
        let (mut pause, mut place) = (FIRST_PAUSE, None);
        loop {
            let asked = Asked { layer: self, ticket, answered: false };
            match asked.claim().await {
                Ok(Claim::Claimed) => return Next::Work,
                Ok(Claim::Answered(kept)) => return Next::Replay(kept),
                Ok(Claim::Mismatch) => return Next::Reject(Trouble::Mismatch),
                Err(_) => return Next::Unavailable,
                Ok(Claim::Running) => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if place.is_none() {
                place = self.places.try_acquire().ok();
            }
            if left.is_zero() || place.is_none() {
                return Next::Reject(Trouble::InProgress);
            }
            sleep(pause.min(left)).await;
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        }
    }

    async fn serve<S, B, R>(&self, mut inner: S, request: Request<B>) -> Result<Answer<R>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: Body + From<Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        R: Body<Data = Bytes> + Send + 'static,
        R::Error: Send,
    {
        let key = match self.key_of(&request) {
            Ok(Some(key)) => key,
            Ok(None) => return inner.call(request).await.map(|response| response.map(ReplayBody::passing)),
            Err(trouble) => return Ok(trouble.into_response()),
        };
        let (parts, body) = request.into_parts();
        let body = match Limited::new(body, self.terms.max_request).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Ok(Trouble::BodyTooLarge.into_response()),
            Err(_) => return Ok(Trouble::BodyUnreadable.into_response()),
        };
        let ticket = self.ticket(&key, &parts, &body);
        let request = Request::from_parts(parts, B::from(body));
        match self.find(&ticket).await {
            Next::Work => match Arc::clone(&self.slots).try_acquire_owned() {
                Ok(slot) => self.work(inner, request, ticket, slot).await,
                Err(_) => {
                    let _ = self.store.release(&ticket).await; // else it runs out
                    Ok(rejection(RejectionCode::BulkheadFull))
                }
            },
            Next::Replay(kept) => {
                self.counters.replayed.add_one();
                Ok(replay(kept))
            }
            Next::Reject(trouble) => {
                match trouble {
                    Trouble::Mismatch => self.counters.mismatched.add_one(),
                    _ => self.counters.in_progress.add_one(),
                }
                Ok(trouble.into_response())
            }
            Next::Unavailable => {
                self.counters.unavailable.add_one();
                match self.terms.on_unavailable {
                    OnUnavailable::Pass => inner.call(request).await.map(|response| response.map(ReplayBody::passing)),
                    OnUnavailable::Reject => Ok(rejection(RejectionCode::StoreUnavailable)),
                }
            }
        }
    }
}

pub(crate) fn rejection<R: Body>(code: RejectionCode) -> Answer<R> {
    RejectionResponse::new(Rejection::new(code)).into_response_with()
}

fn replay<R: Body>(kept: Kept) -> Answer<R> {
    let Some(body) = kept.body else {
        return Trouble::AnswerNotKept.into_response();
    };
    let mut response = Response::new(body.into());
    *response.status_mut() = kept.status;
    *response.headers_mut() = kept.headers;
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// A question about a claim. Who goes away before it is answered, or is not answered, may have been given the claim all
/// the same: it is given back, or nobody could try again until it runs out.
struct Asked<'a, T: IdempotencyStore> {
    layer: &'a IdempotencyLayer<T>,
    ticket: &'a Ticket,
    answered: bool,
}

impl<T: IdempotencyStore> Asked<'_, T> {
    async fn claim(mut self) -> Result<Claim, super::Unavailable> {
        let claim = self.layer.store.claim(self.ticket, self.layer.terms.lease).await;
        self.answered = claim.is_ok();
        claim
    }
}

impl<T: IdempotencyStore> Drop for Asked<'_, T> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let (store, ticket) = (Arc::clone(&self.layer.store), self.ticket.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { store.release(&ticket).await });
        }
    }
}

impl<T, S: Clone> Clone for IdempotencyService<T, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<T, S: std::fmt::Debug> std::fmt::Debug for IdempotencyService<T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdempotencyService").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}

impl<T, S, B, R> Service<Request<B>> for IdempotencyService<T, S>
where
    T: IdempotencyStore,
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    type Response = Answer<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Answer<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready is the one to call; what takes its place gets ready by itself.
        let clone = self.inner.clone();
        let (inner, layer) = (replace(&mut self.inner, clone), self.layer.clone());
        Box::pin(async move { layer.serve(inner, request).await })
    }
}

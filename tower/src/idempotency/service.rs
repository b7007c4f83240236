//! [`IdempotencyService`]: claims the key of a request, then runs the handler, replays the answer or rejects.

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
use tokio::time::{Instant, sleep, timeout};
use tower_service::Service;

use super::layer::{IdempotencyLayer, OnUnavailable};
use super::problem::IdempotencyProblem;
use super::replay_body::ReplayBody;
use super::store::{Claim, ClaimReply, IdempotencyStore};
use super::stored_answer::StoredAnswer;
use super::unstored::Found;
use super::{IDEMPOTENCY_KEY, REPLAYED};
use crate::BoxError;
use crate::edge::RejectionResponse;

/// A service with an [`IdempotencyLayer`] applied.
pub struct IdempotencyService<T, S> {
    pub(crate) inner: S,
    pub(crate) layer: IdempotencyLayer<T>,
}

/// The pause between two polls of a waiting duplicate without notifications, which grows by half each time.
const MIN_POLL_PAUSE: Duration = Duration::from_millis(10);
const MAX_POLL_PAUSE: Duration = Duration::from_millis(250);
/// The pause between two polls with notifications, in case one was lost.
const SAFETY_POLL_PAUSE: Duration = Duration::from_secs(1);

/// The pause after the store was unavailable for a release or an answer, which doubles up to the second.
pub(crate) const FIRST_STORE_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const MAX_STORE_PAUSE: Duration = Duration::from_secs(1);

pub(crate) type ReplayResponse<R> = Response<ReplayBody<R>>;

/// How to continue with a request.
enum Action {
    Run,
    Replay(StoredAnswer),
    Reject(IdempotencyProblem),
    StoreUnavailable,
}

impl<T: IdempotencyStore> IdempotencyLayer<T> {
    /// Returns the key of a request; none if the layer does not apply to it.
    fn key_of<B>(&self, request: &Request<B>) -> Result<Option<Bytes>, IdempotencyProblem> {
        if request.method().is_safe() {
            return Ok(None);
        }
        let mut values = request.headers().get_all(IDEMPOTENCY_KEY).iter();
        match (values.next(), values.next()) {
            (None, _) if self.settings.required => Err(IdempotencyProblem::KeyMissing),
            (None, _) => Ok(None),
            (Some(key), None) => {
                let key = key.as_bytes();
                let visible = key.iter().all(|byte| (b' '..=b'~').contains(byte));
                let fits = (1..=self.settings.max_key).contains(&key.len());
                if visible && fits {
                    Ok(Some(Bytes::copy_from_slice(key)))
                } else {
                    Err(IdempotencyProblem::KeyInvalid)
                }
            }
            _ => Err(IdempotencyProblem::KeyInvalid),
        }
    }

    fn new_claim(&self, key: &[u8], parts: &Parts, body: &[u8]) -> Claim {
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        Claim::new(&(self.settings.scope)(parts), key, [parts.method.as_str().as_bytes(), path.as_bytes(), body])
    }

    /// Claims the key, or waits for the answer of the request that holds it.
    async fn claim_or_wait(&self, claim: &Claim) -> Action {
        let until = Instant::now() + self.settings.wait.min(Duration::from_secs(86_400));
        let until = Context::current().deadline().map_or(until, |deadline| deadline.min(until));
        let (mut pause, mut waiting) = (MIN_POLL_PAUSE, None);
        loop {
            if let Some(action) = self.unstored_answer(claim) {
                return action;
            }
            let request = PendingClaim { layer: self, claim, replied: false };
            match request.send(waiting.is_some()).await {
                Ok(ClaimReply::Claimed) => return Action::Run,
                Ok(ClaimReply::Answered(answer)) => return Action::Replay(answer),
                Ok(ClaimReply::Mismatch) => return Action::Reject(IdempotencyProblem::Mismatch),
                // The handler may have ended here while the store was away.
                Err(_) => return self.unstored_answer(claim).unwrap_or(Action::StoreUnavailable),
                Ok(ClaimReply::Running) => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Action::Reject(IdempotencyProblem::InProgress);
            }
            match &mut waiting {
                None => {
                    let Ok(permit) = self.waiting_permits.try_acquire() else {
                        return Action::Reject(IdempotencyProblem::InProgress);
                    };
                    let watch = self.store.watch(claim);
                    let notified = !watch.is_silent();
                    waiting = Some((watch, permit));
                    if notified {
                        continue; // asks once more, so that an end before the watch is not missed
                    }
                    sleep(pause.min(left)).await;
                }
                Some((watch, _)) if watch.is_silent() => sleep(pause.min(left)).await,
                Some((watch, _)) => {
                    let _ = timeout(SAFETY_POLL_PAUSE.min(left), watch.changed()).await;
                }
            }
            pause = (pause * 3 / 2).min(MAX_POLL_PAUSE);
        }
    }

    /// Returns how to continue with a request whose answer this replica has, although the store may not have it yet.
    fn unstored_answer(&self, claim: &Claim) -> Option<Action> {
        Some(match self.unstored.find(claim)? {
            Found::Answer(answer) => Action::Replay(answer),
            Found::Mismatch => Action::Reject(IdempotencyProblem::Mismatch),
        })
    }

    /// Releases a claim, at most for its lease: until the store has replied, or the claim has expired.
    pub(crate) async fn release_until_replied(&self, claim: &Claim) {
        let until = Instant::now() + self.settings.lease;
        let mut pause = FIRST_STORE_PAUSE;
        while self.store.release(claim).await.is_err() && Instant::now() + pause < until {
            sleep(pause).await;
            pause = (2 * pause).min(MAX_STORE_PAUSE);
        }
    }

    /// Releases a claim that the store may have granted. In an outage every request leaves one, so their number is limited;
    /// the first are those that were sent before the outage was noticed.
    fn release_in_background(&self, claim: Claim) {
        let (layer, permit) = (self.clone(), Arc::clone(&self.releasing_permits).try_acquire_owned());
        let release = async move {
            match permit {
                Ok(_permit) => layer.release_until_replied(&claim).await,
                Err(_) => drop(layer.store.release(&claim).await),
            }
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(release);
        }
    }

    async fn serve<S, B, R>(&self, mut inner: S, request: Request<B>) -> Result<ReplayResponse<R>, S::Error>
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
            Ok(None) => return inner.call(request).await.map(|response| response.map(ReplayBody::streaming)),
            Err(problem) => return Ok(problem.into_response()),
        };
        let (parts, body) = request.into_parts();
        let body = match Limited::new(body, self.settings.max_request_body).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Ok(IdempotencyProblem::BodyTooLarge.into_response()),
            Err(_) => return Ok(IdempotencyProblem::BodyUnreadable.into_response()),
        };
        let claim = self.new_claim(&key, &parts, &body);
        let request = Request::from_parts(parts, B::from(body));
        match self.claim_or_wait(&claim).await {
            Action::Run => match Arc::clone(&self.running_permits).try_acquire_owned() {
                Ok(permit) => self.run_detached(inner, request, claim, permit).await,
                Err(_) => {
                    self.release_in_background(claim);
                    Ok(rejection(RejectionCode::BulkheadFull))
                }
            },
            Action::Replay(answer) => {
                self.counters.replayed.add_one();
                Ok(replay(answer))
            }
            Action::Reject(problem) => {
                match problem {
                    IdempotencyProblem::Mismatch => self.counters.mismatched.add_one(),
                    _ => self.counters.in_progress.add_one(),
                }
                Ok(problem.into_response())
            }
            Action::StoreUnavailable => {
                self.counters.unavailable.add_one();
                match self.settings.on_unavailable {
                    OnUnavailable::Pass => {
                        inner.call(request).await.map(|response| response.map(ReplayBody::streaming))
                    }
                    OnUnavailable::Reject => Ok(rejection(RejectionCode::StoreUnavailable)),
                }
            }
        }
    }
}

pub(crate) fn rejection<R: Body>(code: RejectionCode) -> ReplayResponse<R> {
    RejectionResponse::new(Rejection::new(code)).into_http_response()
}

fn replay<R: Body>(answer: StoredAnswer) -> ReplayResponse<R> {
    let Some(body) = answer.body else {
        return IdempotencyProblem::AnswerNotStored.into_response();
    };
    let mut response = Response::new(body.into());
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// A claim request to the store. If it is cancelled or fails, the store may have granted the claim nevertheless, so it is
/// released. Otherwise retries would have to wait for the lease to end.
struct PendingClaim<'a, T: IdempotencyStore> {
    layer: &'a IdempotencyLayer<T>,
    claim: &'a Claim,
    replied: bool,
}

impl<T: IdempotencyStore> PendingClaim<'_, T> {
    async fn send(mut self, waiting: bool) -> Result<ClaimReply, super::Unavailable> {
        let (store, lease) = (&self.layer.store, self.layer.settings.lease);
        let reply = match waiting {
            false => store.claim(self.claim, lease).await,
            true => store.claim_waiting(self.claim, lease).await,
        };
        self.replied = reply.is_ok();
        reply
    }
}

impl<T: IdempotencyStore> Drop for PendingClaim<'_, T> {
    fn drop(&mut self) {
        if !self.replied {
            self.layer.release_in_background(self.claim.clone());
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
    type Response = ReplayResponse<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<ReplayResponse<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Calls the service that was polled ready, and leaves a clone in its place.
        let clone = self.inner.clone();
        let (inner, layer) = (replace(&mut self.inner, clone), self.layer.clone());
        Box::pin(async move { layer.serve(inner, request).await })
    }
}

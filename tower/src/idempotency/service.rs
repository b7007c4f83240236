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
use tokio::time::{Instant, sleep};
use tower_service::Service;

use super::layer::{IdempotencyLayer, OnUnavailable};
use super::problem::IdempotencyProblem;
use super::replay_body::ReplayBody;
use super::store::{Claim, ClaimReply, IdempotencyStore};
use super::stored_answer::StoredAnswer;
use super::{IDEMPOTENCY_KEY, REPLAYED};
use crate::BoxError;
use crate::edge::RejectionResponse;

/// A service with an [`IdempotencyLayer`] applied.
pub struct IdempotencyService<T, S> {
    pub(crate) inner: S,
    pub(crate) layer: IdempotencyLayer<T>,
}

/// The pause between two polls of a waiting duplicate, which grows by half each time.
const MIN_POLL_PAUSE: Duration = Duration::from_millis(10);
const MAX_POLL_PAUSE: Duration = Duration::from_millis(250);

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
        let (mut pause, mut permit) = (MIN_POLL_PAUSE, None);
        loop {
            let request = PendingClaim { layer: self, claim, replied: false };
            match request.send().await {
                Ok(ClaimReply::Claimed) => return Action::Run,
                Ok(ClaimReply::Answered(answer)) => return Action::Replay(answer),
                Ok(ClaimReply::Mismatch) => return Action::Reject(IdempotencyProblem::Mismatch),
                Err(_) => return Action::StoreUnavailable,
                Ok(ClaimReply::Running) => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if permit.is_none() {
                permit = self.waiting_permits.try_acquire().ok();
            }
            if left.is_zero() || permit.is_none() {
                return Action::Reject(IdempotencyProblem::InProgress);
            }
            sleep(pause.min(left)).await;
            pause = (pause * 3 / 2).min(MAX_POLL_PAUSE);
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
                    let _ = self.store.release(&claim).await; // if this fails, the claim expires
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
    async fn send(mut self) -> Result<ClaimReply, super::Unavailable> {
        let reply = self.layer.store.claim(self.claim, self.layer.settings.lease).await;
        self.replied = reply.is_ok();
        reply
    }
}

impl<T: IdempotencyStore> Drop for PendingClaim<'_, T> {
    fn drop(&mut self) {
        if self.replied {
            return;
        }
        let (store, claim) = (Arc::clone(&self.layer.store), self.claim.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { store.release(&claim).await });
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

//! Runs the handler in its own task, so that it finishes even if its client disconnects.

use std::any::Any;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use phalanx::{Classify, Context, Kind, RejectionCode, scope};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tower_service::Service;

use super::STORED;
use super::layer::IdempotencyLayer;
use super::problem::IdempotencyProblem;
use super::replay_body::ReplayBody;
use super::service::{FIRST_STORE_PAUSE, MAX_STORE_PAUSE, ReplayResponse, rejection};
use super::store::{Claim, ClaimReply, IdempotencyStore};
use super::stored_answer::StoredAnswer;
use crate::edge::RejectionResponse;

/// How long an answer is offered to an unavailable store at least: longer than a failover takes.
const MIN_OFFER: Duration = Duration::from_secs(120);
/// The pause after the store was unavailable for a renewal.
const RENEWAL_RETRY: Duration = Duration::from_secs(1);

/// The outcome of a handler: its response, its error, or its panic.
type Outcome<T, E> = Result<Result<T, E>, Box<dyn Any + Send>>;

impl<T: IdempotencyStore> IdempotencyLayer<T> {
    /// Runs the handler in its own task, and awaits it until the client's deadline.
    pub(crate) async fn run_detached<S, B, R>(
        &self,
        inner: S,
        request: Request<B>,
        claim: Claim,
        permit: OwnedSemaphorePermit,
    ) -> Result<ReplayResponse<R>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: Send + 'static,
        R: Body<Data = Bytes> + Send + 'static,
        R::Error: Send,
    {
        self.counters.run.add_one();
        let client = Context::current();
        let (sender, receiver) = oneshot::channel();
        let handler = self.clone().handle_and_store(inner, request, claim, client, sender);
        tokio::spawn(async move {
            handler.await;
            drop(permit);
        });
        let received = match client.deadline() {
            Some(deadline) => timeout_at(deadline, receiver).await,
            None => Ok(receiver.await),
        };
        match received {
            Ok(Ok(Ok(response))) => response,
            Ok(Ok(Err(panic))) => resume_unwind(panic), // as it would be without the layer
            // The deadline of the client or of the handler has passed.
            Ok(Err(_)) | Err(_) => Ok(rejection(RejectionCode::DeadlineExceeded)),
        }
    }

    async fn handle_and_store<S, B, R>(
        self,
        mut inner: S,
        request: Request<B>,
        claim: Claim,
        client: Context,
        sender: oneshot::Sender<Outcome<ReplayResponse<R>, S::Error>>,
    ) where
        S: Service<Request<B>, Response = Response<R>>,
        R: Body<Data = Bytes>,
    {
        let limit = self.settings.finish_within;
        let context = Context::EMPTY.with_criticality(client.criticality()).with_timeout(limit);
        let handler = async {
            let response = inner.call(request).await?;
            Ok::<_, S::Error>(self.buffer(response).await)
        };
        let handler = AssertUnwindSafe(scope(context, handler)).catch_unwind();
        let finished = timeout(limit, async {
            tokio::select! {
                outcome = handler => Some(outcome),
                () = self.renew_until_lost(&claim) => None,
            }
        });
        let outcome = match finished.await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => {
                self.counters.lost_claim.add_one();
                let _ = sender.send(Ok(Ok(IdempotencyProblem::InProgress.into_response())));
                return;
            }
            Err(_) => {
                self.counters.unfinished.add_one();
                return; // the effect is unknown, so the claim stays until its lease ends
            }
        };
        let (outcome, answer) = match outcome {
            Ok(Ok((response, answer))) => (Ok(Ok(response)), answer),
            Ok(Err(error)) => (Ok(Err(error)), None),
            Err(panic) => (Err(panic), None),
        };
        match answer {
            Some(answer) => self.store_and_send(&claim, &answer, outcome, sender).await,
            None => {
                self.counters.released.add_one();
                let released = self.store.release(&claim).await;
                let _ = sender.send(outcome); // fails if the client has disconnected
                if released.is_err() {
                    self.release_until_replied(&claim).await;
                }
            }
        }
    }

    /// Renews the claim until another request holds its key. A claim that the store has lost is taken again if it is free.
    async fn renew_until_lost(&self, claim: &Claim) {
        let (interval, lease) = (self.settings.renewal_interval(), self.settings.lease);
        let mut pause = interval;
        loop {
            sleep(pause).await;
            pause = match self.store.renew(claim, lease).await {
                Ok(true) => interval,
                Ok(false) => match self.store.claim(claim, lease).await {
                    Ok(ClaimReply::Claimed) => interval,
                    Ok(_) => return,
                    Err(_) => interval.min(RENEWAL_RETRY),
                },
                Err(_) => interval.min(RENEWAL_RETRY),
            };
        }
    }

    /// Buffers a response up to the size limit. Returns the answer to store; none if the key is to be released.
    async fn buffer<R: Body<Data = Bytes>>(&self, response: Response<R>) -> (ReplayResponse<R>, Option<StoredAnswer>) {
        let (mut parts, body) = response.into_parts();
        if parts.extensions.get::<RejectionResponse>().is_some() || !is_final(parts.status) {
            return (Response::from_parts(parts, ReplayBody::streaming(body)), None);
        }
        let (body, whole) = ReplayBody::read(body, self.settings.max_answer_body).await;
        let mut answer = StoredAnswer::new(parts.status, &parts.headers, whole);
        if !self.settings.store_cookies {
            answer = answer.without_cookies();
        }
        if answer.body.is_none() {
            self.counters.not_stored.add_one();
            parts.headers.insert(STORED, HeaderValue::from_static("false"));
        }
        (Response::from_parts(parts, body), Some(answer))
    }

    /// Stores the answer, then sends it to the client, so that a retry gets whatever the client has seen.
    async fn store_and_send<R: Body, E>(
        &self,
        claim: &Claim,
        answer: &StoredAnswer,
        mut outcome: Outcome<ReplayResponse<R>, E>,
        sender: oneshot::Sender<Outcome<ReplayResponse<R>, E>>,
    ) {
        let stored = self.store.complete(claim, answer, self.settings.ttl).await;
        if stored == Ok(false) {
            self.counters.overtaken.add_one();
        }
        if stored.is_err()
            && let Ok(Ok(response)) = &mut outcome
        {
            response.headers_mut().insert(STORED, HeaderValue::from_static("false"));
        }
        // Kept before the client is answered, so that its next request finds the answer.
        let kept = stored.is_err().then(|| self.unstored.keep(claim, answer));
        let _ = sender.send(outcome); // fails if the client has disconnected
        if kept.is_some() && !self.offer(claim, answer).await {
            self.counters.not_stored.add_one();
        }
    }

    /// Offers an answer to the store until it has replied, for as long as the claim's lease and at least [`MIN_OFFER`], and
    /// renews the claim meanwhile. Returns whether the store has replied.
    async fn offer(&self, claim: &Claim, answer: &StoredAnswer) -> bool {
        let start = Instant::now();
        let (mut pause, mut renewed) = (FIRST_STORE_PAUSE, start);
        while start.elapsed() < self.settings.lease.max(MIN_OFFER) {
            sleep(pause).await;
            // An attempt that timed out may have stored the answer, so a reply of false does not mean that it was overtaken.
            if self.store.complete(claim, answer, self.settings.ttl).await.is_ok() {
                return true;
            }
            if renewed.elapsed() >= self.settings.renewal_interval() {
                let _ = self.store.renew(claim, self.settings.lease).await; // the next renewal may succeed
                renewed = Instant::now();
            }
            pause = (2 * pause).min(MAX_STORE_PAUSE);
        }
        false
    }
}

/// Whether a retry would get the same answer. False for server errors and for the temporary statuses 401, 407, 408, 423,
/// 425 and 429.
fn is_final(status: StatusCode) -> bool {
    let kind = status.classify().kind;
    !status.is_server_error() && !kind.is_some_and(|kind| kind.retryable() || kind == Kind::Authentication)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_errors_and_temporary_statuses_are_not_final() {
        let temporary: Vec<u16> =
            (200..600).filter(|status| !is_final(StatusCode::from_u16(*status).unwrap())).collect();
        let expected: Vec<u16> = [401, 407, 408, 423, 425, 429].into_iter().chain(500..600).collect();
        assert_eq!(temporary, expected);
    }
}

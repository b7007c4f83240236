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
use tokio::time::{sleep, timeout, timeout_at};
use tower_service::Service;

use super::STORED;
use super::layer::IdempotencyLayer;
use super::replay_body::ReplayBody;
use super::service::{ReplayResponse, rejection};
use super::store::{Claim, IdempotencyStore};
use super::stored_answer::StoredAnswer;
use crate::edge::RejectionResponse;

/// How often an answer is offered to an unavailable store. The pause between two attempts doubles.
const STORE_ATTEMPTS: u32 = 6;
const FIRST_STORE_PAUSE: Duration = Duration::from_millis(100);

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
        let renewal = async {
            loop {
                sleep(self.settings.lease / 3).await;
                let _ = self.store.renew(&claim, self.settings.lease).await; // the next renewal may succeed
            }
        };
        let finished = timeout(limit, async {
            tokio::select! {
                outcome = handler => outcome,
                never = renewal => never,
            }
        });
        let Ok(outcome) = finished.await else {
            self.counters.unfinished.add_one();
            return; // the effect is unknown, so the claim stays until its lease ends
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
                let _ = self.store.release(&claim).await; // if this fails, the claim expires
                let _ = sender.send(outcome); // fails if the client has disconnected
            }
        }
    }

    /// Buffers a response up to the size limit. Returns the answer to store; none if the key is to be released.
    async fn buffer<R: Body<Data = Bytes>>(&self, response: Response<R>) -> (ReplayResponse<R>, Option<StoredAnswer>) {
        let (mut parts, body) = response.into_parts();
        if parts.extensions.get::<RejectionResponse>().is_some() || !is_final(parts.status) {
            return (Response::from_parts(parts, ReplayBody::streaming(body)), None);
        }
        let (body, whole) = ReplayBody::read(body, self.settings.max_answer_body).await;
        let answer = StoredAnswer::new(parts.status, &parts.headers, whole);
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
        let mut stored = self.store.complete(claim, answer, self.settings.ttl).await;
        if stored == Ok(false) {
            self.counters.overtaken.add_one();
        }
        if stored.is_err()
            && let Ok(Ok(response)) = &mut outcome
        {
            response.headers_mut().insert(STORED, HeaderValue::from_static("false"));
        }
        let _ = sender.send(outcome); // fails if the client has disconnected
        let mut pause = FIRST_STORE_PAUSE;
        for _ in 1..STORE_ATTEMPTS {
            if stored.is_ok() {
                return;
            }
            sleep(pause).await;
            // An attempt that timed out may have stored the answer, so `Ok(false)` is not counted as overtaken here.
            stored = self.store.complete(claim, answer, self.settings.ttl).await;
            pause *= 2;
        }
        if stored.is_err() {
            self.counters.not_stored.add_one();
        }
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

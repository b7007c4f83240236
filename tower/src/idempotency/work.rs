//! The work itself: a task of its own, so that it ends whether or not its client waits for it.

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
use super::body::ReplayBody;
use super::kept::Kept;
use super::layer::IdempotencyLayer;
use super::service::rejection;
use super::store::{IdempotencyStore, Ticket};
use crate::edge::RejectionResponse;

/// How often, and from what pause on, an answer is offered again to a store that was away.
const OFFERS: u32 = 6;
const FIRST_OFFER: Duration = Duration::from_millis(100);

type Answer<R> = Response<ReplayBody<R>>;

/// What a handler came to: its answer, its error, or its panic.
type Ended<T, E> = Result<Result<T, E>, Box<dyn Any + Send>>;

impl<T: IdempotencyStore> IdempotencyLayer<T> {
    /// Has the work done, and waits for it as long as the client does.
    pub(crate) async fn work<S, B, R>(
        &self,
        inner: S,
        request: Request<B>,
        ticket: Ticket,
        slot: OwnedSemaphorePermit,
    ) -> Result<Answer<R>, S::Error>
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
        let work = self.clone().finish(inner, request, ticket, client, sender);
        tokio::spawn(async move {
            work.await;
            drop(slot);
        });
        let waited = match client.deadline() {
            Some(deadline) => timeout_at(deadline, receiver).await,
            None => Ok(receiver.await),
        };
        match waited {
            Ok(Ok(Ok(answer))) => answer,
            Ok(Ok(Err(panic))) => resume_unwind(panic), // the client's, as it would be without the layer
            // The client's time is up, or the work's.
            Ok(Err(_)) | Err(_) => Ok(rejection(RejectionCode::DeadlineExceeded)),
        }
    }

    async fn finish<S, B, R>(
        self,
        mut inner: S,
        request: Request<B>,
        ticket: Ticket,
        client: Context,
        sender: oneshot::Sender<Ended<Answer<R>, S::Error>>,
    ) where
        S: Service<Request<B>, Response = Response<R>>,
        R: Body<Data = Bytes>,
    {
        let longest = self.terms.finish_within;
        let context = Context::EMPTY.with_criticality(client.criticality()).with_timeout(longest);
        let handled = async {
            let response = inner.call(request).await?;
            Ok::<_, S::Error>(self.look_at(response).await)
        };
        let handled = AssertUnwindSafe(scope(context, handled)).catch_unwind();
        let renewed = async {
            loop {
                sleep(self.terms.lease / 3).await;
                let _ = self.store.renew(&ticket, self.terms.lease).await; // the next one may succeed
            }
        };
        let ended = timeout(longest, async {
            tokio::select! {
                outcome = handled => outcome,
                never = renewed => never,
            }
        });
        let Ok(outcome) = ended.await else {
            self.counters.unfinished.add_one();
            return; // nobody knows what it did: the claim runs out by itself
        };
        let (answer, kept) = match outcome {
            Ok(Ok((answer, kept))) => (Ok(Ok(answer)), kept),
            Ok(Err(error)) => (Ok(Err(error)), None),
            Err(panic) => (Err(panic), None),
        };
        match kept {
            Some(kept) => self.keep(&ticket, &kept, answer, sender).await,
            None => {
                self.counters.released.add_one();
                let _ = self.store.release(&ticket).await; // else it runs out
                let _ = sender.send(answer); // nobody may be there any more
            }
        }
    }

    /// Reads an answer as far as it may be kept, and decides whether it is.
    async fn look_at<R: Body<Data = Bytes>>(&self, response: Response<R>) -> (Answer<R>, Option<Kept>) {
        let (mut parts, body) = response.into_parts();
        if parts.extensions.get::<RejectionResponse>().is_some() || !is_final(parts.status) {
            return (Response::from_parts(parts, ReplayBody::passing(body)), None);
        }
        let (body, whole) = ReplayBody::read(body, self.terms.max_answer).await;
        let kept = Kept::new(parts.status, &parts.headers, whole);
        if kept.body.is_none() {
            self.counters.not_kept.add_one();
            parts.headers.insert(STORED, HeaderValue::from_static("false"));
        }
        (Response::from_parts(parts, body), Some(kept))
    }

    /// Keeps the answer before the client has it: what a client has seen, its retry sees too.
    async fn keep<R: Body, E>(
        &self,
        ticket: &Ticket,
        kept: &Kept,
        mut answer: Ended<Answer<R>, E>,
        sender: oneshot::Sender<Ended<Answer<R>, E>>,
    ) {
        let mut offered = self.store.complete(ticket, kept, self.terms.ttl).await;
        if offered == Ok(false) {
            self.counters.overtaken.add_one();
        }
        if offered.is_err()
            && let Ok(Ok(answer)) = &mut answer
        {
            answer.headers_mut().insert(STORED, HeaderValue::from_static("false"));
        }
        let _ = sender.send(answer); // nobody may be there any more
        let mut pause = FIRST_OFFER;
        for _ in 1..OFFERS {
            if offered.is_ok() {
                return;
            }
            sleep(pause).await;
            // One that timed out may have been kept after all, so that a "no" says nothing here.
            offered = self.store.complete(ticket, kept, self.terms.ttl).await;
            pause *= 2;
        }
        if offered.is_err() {
            self.counters.not_kept.add_one();
        }
    }
}

/// Whether an answer would be the same if it was asked for again. Not what a later try may find otherwise: failures of
/// the server, and "not now" (401, 407, 408, 423, 425, 429).
fn is_final(status: StatusCode) -> bool {
    let kind = status.classify().kind;
    !status.is_server_error() && !kind.is_some_and(|kind| kind.retryable() || kind == Kind::Authentication)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_not_now_are_not_final_everything_else_is() {
        let passing: Vec<u16> = (200..600).filter(|status| !is_final(StatusCode::from_u16(*status).unwrap())).collect();
        let expected: Vec<u16> = [401, 407, 408, 423, 425, 429].into_iter().chain(500..600).collect();
        assert_eq!(passing, expected);
    }
}

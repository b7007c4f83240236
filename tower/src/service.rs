//! The service that a [`ResilienceLayer`](crate::ResilienceLayer) makes.

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use phalanx::internal::core::classify::Classifier;
use tower_service::Service;

use crate::choose::Choose;
use crate::layer::Parts;
use crate::reject::Reject;
use crate::repeat::{Held, Repeat};

/// A service under a policy. Clones share all state.
pub struct Resilience<S, W, Q, C, A> {
    pub(crate) inner: S,
    pub(crate) parts: Arc<Parts<W, Q, C, A>>,
}

impl<S, R, W, Q, C, A> Service<R> for Resilience<S, W, Q, C, A>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    R: Send + 'static,
    W: Choose<R>,
    Q: Repeat<R>,
    C: Classifier<S::Response, S::Error> + Send + Sync + 'static,
    A: Reject<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = A::Error;
    type Future = ResponseFuture<S::Response, A::Error>;

    /// Always ready: each attempt waits for the inner service on a clone of its own, inside the policy.
    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), A::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (parts, service) = (self.parts.clone(), self.inner.clone());
        ResponseFuture(Box::pin(async move {
            let Parts { module, choose, repeat, classifier, reject } = &*parts;
            let pipeline = match choose.choose(module, &request) {
                Ok(pipeline) => pipeline,
                Err(rejection) => return reject.answer(module, Err(rejection.into())),
            };
            let held = match pipeline.repeats() {
                false => Held::Once((service, request)),
                true => match repeat.keep(request).await {
                    Ok(Held::Once(request)) => Held::Once((service, request)),
                    Ok(Held::Often(kept)) => Held::Often((service, kept)),
                    Err(rejection) => return reject.answer(module, Err(rejection.into())),
                },
            };
            let repeatable = matches!(held, Held::Often(_));
            // For `Fn` and `Sync`, which the pipeline asks of an operation; nobody ever waits for it.
            let held = Mutex::new(Some(held));
            let operation = || attempt(next(&held, repeat));
            reject.answer(module, pipeline.run_classified(classifier, repeatable, operation).await)
        }))
    }
}

/// Service and request before their first attempt, then what copies are made of.
type Waiting<S, R, K> = Mutex<Option<Held<(S, R), (S, K)>>>;

/// The service and the request of the next attempt: copies, unless there can be one attempt only.
fn next<S: Clone, R, Q: Repeat<R>>(held: &Waiting<S, R, Q::Kept>, repeat: &Q) -> Option<(S, R)> {
    let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Held::Often((service, kept))) = &*held {
        return Some((service.clone(), repeat.copy(kept)));
    }
    match held.take() {
        Some(Held::Once(pair)) => Some(pair),
        _ => None,
    }
}

/// One attempt: ready first, then called, and both on the same clone.
async fn attempt<S: Service<R>, R>(next: Option<(S, R)>) -> Result<S::Response, S::Error> {
    // The pipeline was told that there is no second one.
    let Some((mut service, request)) = next else { return pending().await };
    poll_fn(|cx| service.poll_ready(cx)).await?;
    let answer = service.call(request);
    drop(service); // what it reserved is in the answer now; the rest is for others
    answer.await
}

impl<S: Clone, W, Q, C, A> Clone for Resilience<S, W, Q, C, A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), parts: self.parts.clone() }
    }
}

impl<S: fmt::Debug, W: fmt::Debug, Q, C, A> fmt::Debug for Resilience<S, W, Q, C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resilience").field("inner", &self.inner).field("choose", &self.parts.choose).finish()
    }
}

/// The answer to come. Dropping it gives back whatever the call holds.
#[must_use = "a request is not sent before its future is polled"]
pub struct ResponseFuture<T, E>(Pin<Box<dyn Future<Output = Result<T, E>> + Send>>);

impl<T, E> Future for ResponseFuture<T, E> {
    type Output = Result<T, E>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<T, E> fmt::Debug for ResponseFuture<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

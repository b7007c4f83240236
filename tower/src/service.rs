//! The service that a [`ResilienceLayer`](crate::ResilienceLayer) makes.

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use phalanx::internal::core::classify::Classifier;
use tower_service::Service;

use crate::layer::Parts;
use crate::reject::Reject;
use crate::repeat::{Prepared, Repeat};
use crate::select::SelectPipeline;

/// A service under a policy, made by a [`ResilienceLayer`](crate::ResilienceLayer). Clones share all state.
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
    W: SelectPipeline<R>,
    Q: Repeat<R>,
    C: Classifier<S::Response, S::Error> + Send + Sync + 'static,
    A: Reject<S::Response, S::Error>,
{
    type Response = S::Response;
    type Error = A::Error;
    type Future = ResponseFuture<S::Response, A::Error>;

    /// Always ready: each attempt waits for the readiness of its own clone of the inner service, inside the policy.
    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), A::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (parts, service) = (self.parts.clone(), self.inner.clone());
        ResponseFuture(Box::pin(async move {
            let Parts { module, select, repeat, classifier, reject } = &*parts;
            let pipeline = match select.select(module, &request) {
                Ok(pipeline) => pipeline,
                Err(rejection) => return reject.finish(module, Err(rejection.into())),
            };
            let prepared = match pipeline.repeats() {
                false => Prepared::Once((service, request)),
                true => match repeat.prepare(request).await {
                    Ok(Prepared::Once(request)) => Prepared::Once((service, request)),
                    Ok(Prepared::Repeatable(template)) => Prepared::Repeatable((service, template)),
                    Err(rejection) => return reject.finish(module, Err(rejection.into())),
                },
            };
            let repeatable = matches!(prepared, Prepared::Repeatable(_));
            // The pipeline requires operations to be `Fn` and `Sync`. The mutex is never contended.
            let source = Mutex::new(Some(prepared));
            let operation = || attempt(next_request(&source, repeat));
            reject.finish(module, pipeline.run_classified(classifier, repeatable, operation).await)
        }))
    }
}

/// The service and either its only request or the template of its requests.
type AttemptSource<S, R, T> = Mutex<Option<Prepared<(S, R), (S, T)>>>;

/// Returns service and request of the next attempt; none if the only request has been sent.
fn next_request<S: Clone, R, Q: Repeat<R>>(source: &AttemptSource<S, R, Q::Template>, repeat: &Q) -> Option<(S, R)> {
    let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Prepared::Repeatable((service, template))) = &*source {
        return Some((service.clone(), repeat.instantiate(template)));
    }
    match source.take() {
        Some(Prepared::Once(pair)) => Some(pair),
        _ => None,
    }
}

/// Waits for the readiness of a service and calls that same service.
async fn attempt<S: Service<R>, R>(next: Option<(S, R)>) -> Result<S::Response, S::Error> {
    // Unreachable: the pipeline makes one attempt if the request is not repeatable.
    let Some((mut service, request)) = next else { return pending().await };
    poll_fn(|cx| service.poll_ready(cx)).await?;
    let response = service.call(request);
    drop(service); // the response future owns what `poll_ready` reserved
    response.await
}

impl<S: Clone, W, Q, C, A> Clone for Resilience<S, W, Q, C, A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), parts: self.parts.clone() }
    }
}

impl<S: fmt::Debug, W: fmt::Debug, Q, C, A> fmt::Debug for Resilience<S, W, Q, C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resilience").field("inner", &self.inner).field("select", &self.parts.select).finish()
    }
}

/// The future of a response. Dropping it releases everything the call holds.
#[must_use = "futures do nothing unless polled"]
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

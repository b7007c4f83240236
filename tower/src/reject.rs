//! What a rejection becomes for the caller of the service: a `phalanx::Error`, a boxed error, or a response.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};
use phalanx::{Error, Rejection, ResilienceModule};

/// Any error, boxed. The same type as `tower::BoxError`.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Turns the result of a call into the service's response or error.
pub trait Reject<T, E>: Send + Sync + 'static {
    /// The error type of the service.
    type Error;

    /// Converts the result of a call.
    ///
    /// # Errors
    /// Returns the service's own error, or the rejection as an error.
    fn finish(&self, module: &ResilienceModule, result: Result<T, Error<E>>) -> Result<T, Self::Error>;
}

/// Returns a rejection as a `phalanx::Error`, which also wraps the service's own errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsError;

impl<T, E> Reject<T, E> for AsError {
    type Error = Error<E>;

    #[inline]
    fn finish(&self, _: &ResilienceModule, result: Result<T, Error<E>>) -> Result<T, Error<E>> {
        result
    }
}

/// Returns a rejection as a boxed [`Rejection`], and boxes the service's own errors. Both can be downcast.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsBoxError;

impl<T, E: Into<BoxError>> Reject<T, E> for AsBoxError {
    type Error = BoxError;

    fn finish(&self, _: &ResilienceModule, result: Result<T, Error<E>>) -> Result<T, BoxError> {
        result.map_err(|error| match error {
            Error::Rejected(rejection) => rejection.into(),
            Error::Inner(error) => error.into(),
        })
    }
}

/// Returns a rejection as a response made by a closure; errors are the service's own.
#[derive(Clone, Copy, Debug)]
pub struct MapRejection<F>(pub(crate) F);

impl<T, E, F: Fn(&Rejection) -> T + Send + Sync + 'static> Reject<T, E> for MapRejection<F> {
    type Error = E;

    fn finish(&self, _: &ResilienceModule, result: Result<T, Error<E>>) -> Result<T, E> {
        result.or_else(|error| match error {
            Error::Rejected(rejection) => Ok((self.0)(&rejection)),
            Error::Inner(error) => Err(error),
        })
    }
}

/// Returns a rejection as an HTTP response; see [`response`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AsResponse;

impl<B: Default, E> Reject<Response<B>, E> for AsResponse {
    type Error = E;

    fn finish(&self, module: &ResilienceModule, result: Result<Response<B>, Error<E>>) -> Result<Response<B>, E> {
        result.or_else(|error| match error {
            Error::Rejected(rejection) => Ok(response(module, &rejection)),
            Error::Inner(error) => Err(error),
        })
    }
}

/// The `Retry-After` of a 429 or 503 whose rejection has none.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Returns a rejection as a response without a body: the module's status, and `Retry-After` in seconds, rounded up.
///
/// A 429 or 503 always has a `Retry-After`, of one second if the rejection has none, because clients without one tend to
/// retry at once.
///
/// # Examples
///
/// ```
/// use phalanx::{Rejection, RejectionCode, ResilienceModule};
/// use phalanx_tower::reject::response;
///
/// let module = ResilienceModule::in_memory().build().unwrap();
/// let full: http::Response<String> = response(&module, &Rejection::new(RejectionCode::BulkheadFull));
/// assert_eq!((full.status().as_u16(), &full.headers()["retry-after"]), (503, &"1".parse().unwrap()));
/// ```
pub fn response<B: Default>(module: &ResilienceModule, rejection: &Rejection) -> Response<B> {
    let mut response = Response::new(B::default());
    // A module accepts error statuses only, so the fallback is never used.
    let status = StatusCode::from_u16(module.status(rejection)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.status_mut() = status;
    let for_load = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    if let Some(after) = rejection.retry_after().or(for_load.then_some(DEFAULT_RETRY_AFTER)) {
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx::RejectionCode;

    #[test]
    fn a_rejection_for_load_has_a_retry_after_rounded_up() {
        let module = ResilienceModule::in_memory().build().unwrap();
        let sent = |rejection: Rejection| {
            let response: Response<()> = response(&module, &rejection);
            let after = response.headers().get(RETRY_AFTER).map(|after| after.to_str().unwrap().to_owned());
            (response.status().as_u16(), after)
        };
        let after = |seconds: &str| Some(seconds.to_owned());
        assert_eq!(sent(Rejection::new(RejectionCode::BulkheadFull)), (503, after("1")));
        assert_eq!(sent(Rejection::new(RejectionCode::DeadlineExceeded)), (504, None));
        assert_eq!(
            sent(Rejection::new(RejectionCode::CircuitOpen).retry_in(Duration::from_millis(1_001))),
            (503, after("2"))
        );
        assert_eq!(sent(Rejection::new(RejectionCode::RateLimited).retry_in(Duration::ZERO)), (429, after("1")));
    }
}

//! What a caller of the service gets for the policy's "no": an error beside the service's own, a boxed error, or an
//! answer like any other.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};
use phalanx::{Error, Rejection, ResilienceModule};

/// Any error, as stacks of mixed layers use it; the same type as `tower::BoxError`.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Turns the end of a call into the service's answer or error.
pub trait Reject<T, E>: Send + Sync + 'static {
    /// The error of the service.
    type Error;

    /// The end of a call.
    ///
    /// # Errors
    /// The service's own error, or the rejection as one.
    fn answer(&self, module: &ResilienceModule, result: Result<T, Error<E>>) -> Result<T, Self::Error>;
}

/// A rejection is an error: `phalanx::Error`, with the service's own inside.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsError;

impl<T, E> Reject<T, E> for AsError {
    type Error = Error<E>;

    #[inline]
    fn answer(&self, _: &ResilienceModule, result: Result<T, Error<E>>) -> Result<T, Error<E>> {
        result
    }
}

/// A rejection is a boxed [`Rejection`], the service's own error is boxed as it is: both can be downcast to.
#[derive(Clone, Copy, Debug, Default)]
pub struct AsBoxed;

impl<T, E: Into<BoxError>> Reject<T, E> for AsBoxed {
    type Error = BoxError;

    fn answer(&self, _: &ResilienceModule, result: Result<T, Error<E>>) -> Result<T, BoxError> {
        result.map_err(|error| match error {
            Error::Rejected(rejection) => rejection.into(),
            Error::Inner(error) => error.into(),
        })
    }
}

/// A rejection is an answer that a function makes; errors are the service's own.
#[derive(Clone, Copy, Debug)]
pub struct Mapped<F>(pub(crate) F);

impl<T, E, F: Fn(&Rejection) -> T + Send + Sync + 'static> Reject<T, E> for Mapped<F> {
    type Error = E;

    fn answer(&self, _: &ResilienceModule, result: Result<T, Error<E>>) -> Result<T, E> {
        result.or_else(|error| match error {
            Error::Rejected(rejection) => Ok((self.0)(&rejection)),
            Error::Inner(error) => Err(error),
        })
    }
}

/// A rejection is an HTTP response: see [`response`].
#[derive(Clone, Copy, Debug, Default)]
pub struct AsResponse;

impl<B: Default, E> Reject<Response<B>, E> for AsResponse {
    type Error = E;

    fn answer(&self, module: &ResilienceModule, result: Result<Response<B>, Error<E>>) -> Result<Response<B>, E> {
        result.or_else(|error| match error {
            Error::Rejected(rejection) => Ok(response(module, &rejection)),
            Error::Inner(error) => Err(error),
        })
    }
}

/// What is said in `Retry-After` where it cannot be known.
const SOON: Duration = Duration::from_secs(1);

/// A rejection as a response without a body: the module's status for it and `Retry-After` in seconds, rounded up. A 429
/// or a 503 always has one, of one second where it cannot be known: whoever is told nothing comes back at once.
pub fn response<B: Default>(module: &ResilienceModule, rejection: &Rejection) -> Response<B> {
    let mut response = Response::new(B::default());
    // The module was checked to have error statuses only; anything else is told as what it would be, a fault of ours.
    let status = StatusCode::from_u16(module.status(rejection)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.status_mut() = status;
    let for_load = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    if let Some(after) = rejection.retry_after().or(for_load.then_some(SOON)) {
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
    fn a_rejection_for_load_says_when_to_come_back_and_rounds_up() {
        let module = ResilienceModule::in_memory().build().unwrap();
        let told = |rejection: Rejection| {
            let response: Response<()> = response(&module, &rejection);
            let after = response.headers().get(RETRY_AFTER).map(|after| after.to_str().unwrap().to_owned());
            (response.status().as_u16(), after)
        };
        let after = |seconds: &str| Some(seconds.to_owned());
        assert_eq!(told(Rejection::new(RejectionCode::BulkheadFull)), (503, after("1")));
        assert_eq!(told(Rejection::new(RejectionCode::DeadlineExceeded)), (504, None));
        assert_eq!(
            told(Rejection::new(RejectionCode::CircuitOpen).retry_in(Duration::from_millis(1_001))),
            (503, after("2"))
        );
        assert_eq!(told(Rejection::new(RejectionCode::RateLimited).retry_in(Duration::ZERO)), (429, after("1")));
    }
}

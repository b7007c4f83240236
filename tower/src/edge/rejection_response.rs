//! A policy's "no" as an HTTP response.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use phalanx::{Decision, Error, Kind, RateLimitSpec, Rejection, RejectionCode, ResilienceModule};

use super::answer::rate_limit_headers;
use super::problem::Problem;

/// A rejection, ready to be answered with.
///
/// * Status: the table's, or the module's own ([`RejectionResponse::by`], or an [`EdgeLayer`](super::EdgeLayer) that knows the
///   module).
/// * Body: a problem document with `code` and `message_id`: `DEPENDENCY.timeout` for `deadline_exceeded` and
///   `attempt_timeout`, else `THROTTLE.…`, `DEPENDENCY.…` or `CONFIGURATION.…` with the code.
/// * `Retry-After`: whole seconds, rounded up, at least 1. Where the time cannot be known (a full bulkhead, a shed
///   waiter), a 429 or 503 says 1 second.
/// * `RateLimit` and `RateLimit-Policy` where a rate limit rejected, as far as the record and the limit are given.
///
/// With the feature `axum` it is an `IntoResponse`; [`RejectionResponse::into_response_with`] makes a response of any body.
#[derive(Clone)]
pub struct RejectionResponse {
    rejection: Rejection,
    status: u16,
    remaining: Option<u64>,
    limit: Option<(u64, u64)>,
}

impl RejectionResponse {
    /// With the status of the table.
    pub const fn new(rejection: Rejection) -> Self {
        Self { rejection, status: rejection.status(), remaining: None, limit: None }
    }

    /// With the status that this module's service has chosen.
    pub fn by(module: &ResilienceModule, rejection: Rejection) -> Self {
        Self { status: module.status(&rejection), ..Self::new(rejection) }
    }

    /// Takes what is left of the rate limit from the call's record.
    #[must_use]
    pub const fn recorded(mut self, decision: &Decision) -> Self {
        self.remaining = decision.remaining;
        self
    }

    /// Says what the rate limit is (`RateLimit-Policy`).
    #[must_use]
    pub fn limit(mut self, limit: &RateLimitSpec) -> Self {
        self.limit = Some(super::answer::quota(limit));
        self
    }

    /// The rejection.
    pub const fn rejection(&self) -> &Rejection {
        &self.rejection
    }

    /// The status it is answered with.
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The same with the status that this module's service has chosen; none if that is the one it has.
    pub(crate) fn restated(&self, module: &ResilienceModule) -> Option<Self> {
        let status = module.status(&self.rejection);
        (status != self.status).then(|| Self { status, ..self.clone() })
    }

    /// The response, for any body that can be made of bytes. It carries the rejection in its extensions.
    pub fn into_response_with<B: From<Bytes>>(self) -> Response<B> {
        let code = self.rejection.code();
        let mut response = self.problem().into_response();
        if code == RejectionCode::RateLimited {
            let (name, wait) = (self.rejection.policy().unwrap_or("default"), self.rejection.retry_after());
            rate_limit_headers(response.headers_mut(), name, self.remaining.or(Some(0)), wait, self.limit);
        }
        response.extensions_mut().insert(self);
        response
    }

    fn problem(&self) -> Problem {
        let code = self.rejection.code();
        Problem {
            explained_at: format!("https://docs.rs/phalanx/latest/phalanx/enum.Code.html#variant.{code:?}"),
            title: code.meaning(),
            status: self.status,
            code: code.name(),
            message_id: message_id(code),
            retry_after: self.retry_after(),
        }
    }

    fn retry_after(&self) -> Option<u64> {
        let asks_back = matches!(self.status, 429 | 503).then_some(1);
        self.rejection.retry_after().map(whole_seconds).or(asks_back)
    }
}

/// Rounded up, at least one: a client that comes back within the second it was sent away for is rejected again.
pub(crate) const fn whole_seconds(wait: Duration) -> u64 {
    let seconds = wait.as_secs().saturating_add(if wait.subsec_nanos() > 0 { 1 } else { 0 });
    if seconds == 0 { 1 } else { seconds }
}

fn message_id(code: RejectionCode) -> String {
    match (code, code.kind()) {
        (RejectionCode::DeadlineExceeded | RejectionCode::AttemptTimeout, _) => "DEPENDENCY.timeout".to_owned(),
        (_, Kind::Throttled) => format!("THROTTLE.{code}"),
        (_, Kind::Configuration) => format!("CONFIGURATION.{code}"),
        _ => format!("DEPENDENCY.{code}"),
    }
}

impl From<Rejection> for RejectionResponse {
    fn from(rejection: Rejection) -> Self {
        Self::new(rejection)
    }
}

impl fmt::Debug for RejectionResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected")
            .field("rejection", &self.rejection)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// The error of a guarded call as a handler returns it: `?` turns a [`phalanx::Error`] into one.
#[derive(Clone, Debug)]
pub enum HandlerError<E> {
    /// The policy said no.
    RejectionResponse(RejectionResponse),
    /// The operation's own error.
    Inner(E),
}

impl<E> HandlerError<E> {
    /// Translates the operation's own error on the way.
    pub fn map<F>(error: Error<F>, translate: impl FnOnce(F) -> E) -> Self {
        match error {
            Error::Rejected(rejection) => Self::RejectionResponse(rejection.into()),
            Error::Inner(inner) => Self::Inner(translate(inner)),
        }
    }
}

impl<E> From<Error<E>> for HandlerError<E> {
    fn from(error: Error<E>) -> Self {
        Self::map(error, |inner| inner)
    }
}

#[cfg(feature = "axum")]
impl axum_core::response::IntoResponse for RejectionResponse {
    fn into_response(self) -> axum_core::response::Response {
        self.into_response_with()
    }
}

#[cfg(feature = "axum")]
impl<E: axum_core::response::IntoResponse> axum_core::response::IntoResponse for HandlerError<E> {
    fn into_response(self) -> axum_core::response::Response {
        match self {
            Self::RejectionResponse(rejected) => rejected.into_response(),
            Self::Inner(error) => error.into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::{RATE_LIMIT, RATE_LIMIT_POLICY};
    use http::header::{CONTENT_TYPE, RETRY_AFTER};

    fn response(rejected: RejectionResponse) -> Response<Bytes> {
        rejected.into_response_with()
    }

    fn json(response: &Response<Bytes>) -> serde_json::Value {
        serde_json::from_slice(response.body()).unwrap()
    }

    #[test]
    fn every_code_is_a_problem_with_its_status_and_message_id() {
        for code in RejectionCode::ALL {
            let response = response(RejectionResponse::new(Rejection::new(code)));
            let json = json(&response);
            assert_eq!(response.status().as_u16(), code.status());
            assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
            assert_eq!(
                (json["status"].as_u64(), json["code"].as_str()),
                (Some(code.status().into()), Some(code.name()))
            );
            assert!(json["message_id"].as_str().is_some_and(|id| id.split_once('.').is_some()), "{json}");
            let comes_back = matches!(code.status(), 429 | 503);
            assert_eq!(response.headers().contains_key(RETRY_AFTER), comes_back, "{code}");
        }
    }

    #[test]
    fn a_deadline_says_dependency_timeout() {
        let rejected = response(RejectionResponse::new(Rejection::new(RejectionCode::DeadlineExceeded)));
        assert_eq!(json(&rejected)["message_id"], "DEPENDENCY.timeout");
    }

    #[test]
    fn when_to_come_back_is_rounded_up_and_never_at_once() {
        for (wait, header) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (29_999, "30")] {
            let rejection = Rejection::new(RejectionCode::CircuitOpen).retry_in(Duration::from_millis(wait));
            assert_eq!(response(rejection.into()).headers()[RETRY_AFTER], header, "{wait} ms");
        }
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }

    #[test]
    fn the_service_chooses_the_status_and_the_body_says_the_same() {
        let module = ResilienceModule::in_memory().status(RejectionCode::BulkheadFull, 429).build().unwrap();
        let response = response(RejectionResponse::by(&module, Rejection::new(RejectionCode::BulkheadFull)));
        assert_eq!((response.status().as_u16(), json(&response)["status"].as_u64()), (429, Some(429)));
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }

    #[test]
    fn a_rate_limit_says_what_it_is_and_what_is_left() {
        let rejection = Rejection::new(RejectionCode::RateLimited).retry_in(Duration::from_millis(2_300));
        let decision = Decision { remaining: Some(0), ..Decision::default() };
        let rejected = RejectionResponse::new(rejection).recorded(&decision).limit(&RateLimitSpec::per_minute(100));
        let headers = response(rejected).headers().clone();
        assert_eq!(headers[RATE_LIMIT], "\"default\";r=0;t=3");
        assert_eq!(headers[RATE_LIMIT_POLICY], "\"default\";q=100;w=60");
    }
}

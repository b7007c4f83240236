//! [`RejectionResponse`] and [`HandlerError`]: rejections as HTTP responses.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use phalanx::{Decision, Error, Kind, Policy, RateLimitSpec, Rejection, RejectionCode, ResilienceModule};

use super::degradable::{Quotas, insert_rate_limit};
use super::problem::Problem;

/// A rejection as an HTTP response.
///
/// * Status: that of the rejection code, or the module's own ([`RejectionResponse::for_module`], or
///   [`EdgeLayer::module`](super::EdgeLayer::module)).
/// * Body: a problem document with `code` and `message_id`: `DEPENDENCY.timeout` for `deadline_exceeded` and
///   `attempt_timeout`, else `THROTTLE.…`, `DEPENDENCY.…` or `CONFIGURATION.…` with the code.
/// * `Retry-After`: whole seconds, rounded up, at least 1. A 429 or 503 whose wait is unknown (a full bulkhead, a shed
///   waiter) has 1.
/// * `RateLimit` and `RateLimit-Policy` if a rate limit rejected the call, with what [`with_decision`](Self::with_decision)
///   and [`with_rate_limit`](Self::with_rate_limit) or [`with_policy`](Self::with_policy) provide. Of several limits `RateLimit`
///   names the one that rejected the call, and `RateLimit-Policy` lists all.
///
/// With the feature `axum` it implements `IntoResponse`. [`into_http_response`](Self::into_http_response) supports any body.
///
/// # Examples
///
/// ```
/// use bytes::Bytes;
/// use http::Response;
/// use phalanx::{Rejection, RejectionCode};
/// use phalanx_tower::edge::RejectionResponse;
/// use std::time::Duration;
///
/// let rejection = Rejection::new(RejectionCode::CircuitOpen).retry_in(Duration::from_millis(1_200));
/// let response: Response<Bytes> = RejectionResponse::new(rejection).into_http_response();
/// assert_eq!(response.status(), 503);
/// assert_eq!(response.headers()["retry-after"], "2");
/// assert_eq!(response.headers()["content-type"], "application/problem+json");
/// ```
#[derive(Clone)]
pub struct RejectionResponse {
    rejection: Rejection,
    status: u16,
    remaining: Option<u64>,
    /// The quotas to send.
    quotas: Quotas,
}

impl RejectionResponse {
    /// Creates a response with the status of the rejection code.
    pub const fn new(rejection: Rejection) -> Self {
        Self { rejection, status: rejection.status(), remaining: None, quotas: Quotas::NONE }
    }

    /// Creates a response with the status configured in this module.
    pub fn for_module(module: &ResilienceModule, rejection: Rejection) -> Self {
        Self { status: module.status(&rejection), ..Self::new(rejection) }
    }

    /// Takes the remaining permits of the rate limit from the decision record of the call.
    #[must_use]
    pub const fn with_decision(mut self, decision: &Decision) -> Self {
        self.remaining = decision.remaining;
        self
    }

    /// Adds the quota of the rate limit (`RateLimit-Policy`).
    #[must_use]
    pub fn with_rate_limit(mut self, limit: &RateLimitSpec) -> Self {
        self.quotas = Quotas::of_one(limit);
        self
    }

    /// Adds the quotas of all rate limits of this policy (`RateLimit-Policy`), each under its name.
    #[must_use]
    pub fn with_policy(mut self, policy: &Policy) -> Self {
        self.quotas = Quotas::of_policy(policy);
        self
    }

    /// Returns the rejection.
    pub const fn rejection(&self) -> &Rejection {
        &self.rejection
    }

    /// Returns the HTTP status.
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// Returns a copy with the status configured in this module; none if the status is the same.
    pub(crate) fn with_status_of(&self, module: &ResilienceModule) -> Option<Self> {
        let status = module.status(&self.rejection);
        (status != self.status).then(|| Self { status, ..self.clone() })
    }

    /// Returns a response of any body that implements `From<Bytes>`. Its extensions carry this value.
    pub fn into_http_response<B: From<Bytes>>(self) -> Response<B> {
        let code = self.rejection.code();
        let mut response = self.problem().into_response();
        if code == RejectionCode::RateLimited {
            let policy = self.rejection.policy().unwrap_or("default");
            let (limit, wait) = (self.rejection.limit().unwrap_or(policy), self.rejection.retry_after());
            let headers = response.headers_mut();
            insert_rate_limit(headers, limit, self.remaining.or(Some(0)), wait);
            self.quotas.insert(headers, policy);
        }
        response.extensions_mut().insert(self);
        response
    }

    fn problem(&self) -> Problem {
        let code = self.rejection.code();
        Problem {
            type_uri: format!("https://docs.rs/phalanx/latest/phalanx/enum.RejectionCode.html#variant.{code:?}"),
            title: code.meaning(),
            status: self.status,
            code: code.name(),
            message_id: message_id(code),
            retry_after: self.retry_after(),
        }
    }

    fn retry_after(&self) -> Option<u64> {
        let default = matches!(self.status, 429 | 503).then_some(1);
        self.rejection.retry_after().map(whole_seconds).or(default)
    }
}

/// Rounds up to at least one second: a client that retries earlier is rejected again.
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
        f.debug_struct("RejectionResponse")
            .field("rejection", &self.rejection)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// The error of a guarded call, as a handler returns it. `?` converts a [`phalanx::Error`] into it.
///
/// # Examples
///
/// ```
/// use phalanx::{Error, Rejection, RejectionCode};
/// use phalanx_tower::edge::HandlerError;
///
/// fn handler() -> Result<(), HandlerError<String>> {
///     let call: Result<(), Error<String>> = Err(Rejection::new(RejectionCode::BulkheadFull).into());
///     Ok(call?)
/// }
/// assert!(matches!(handler(), Err(HandlerError::Rejected(response)) if response.status() == 503));
/// ```
#[derive(Clone, Debug)]
pub enum HandlerError<E> {
    /// The policy rejected the call.
    Rejected(RejectionResponse),
    /// The operation's own error.
    Inner(E),
}

impl<E> HandlerError<E> {
    /// Converts an error of a call, mapping the operation's own error with `f`.
    pub fn map<F>(error: Error<F>, f: impl FnOnce(F) -> E) -> Self {
        match error {
            Error::Rejected(rejection) => Self::Rejected(rejection.into()),
            Error::Inner(inner) => Self::Inner(f(inner)),
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
        self.into_http_response()
    }
}

#[cfg(feature = "axum")]
impl<E: axum_core::response::IntoResponse> axum_core::response::IntoResponse for HandlerError<E> {
    fn into_response(self) -> axum_core::response::Response {
        match self {
            Self::Rejected(rejected) => rejected.into_response(),
            Self::Inner(error) => error.into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::{RATE_LIMIT, RATE_LIMIT_POLICY};
    use http::header::{CONTENT_TYPE, RETRY_AFTER};
    use phalanx::policy::{LimitKey, LimitSpec};

    fn response(rejected: RejectionResponse) -> Response<Bytes> {
        rejected.into_http_response()
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
            let has_retry_after = matches!(code.status(), 429 | 503);
            assert_eq!(response.headers().contains_key(RETRY_AFTER), has_retry_after, "{code}");
        }
    }

    #[test]
    fn a_deadline_has_the_message_id_of_a_dependency_timeout() {
        let rejected = response(RejectionResponse::new(Rejection::new(RejectionCode::DeadlineExceeded)));
        assert_eq!(json(&rejected)["message_id"], "DEPENDENCY.timeout");
    }

    #[test]
    fn retry_after_is_rounded_up_to_at_least_one_second() {
        for (wait, header) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (29_999, "30")] {
            let rejection = Rejection::new(RejectionCode::CircuitOpen).retry_in(Duration::from_millis(wait));
            assert_eq!(response(rejection.into()).headers()[RETRY_AFTER], header, "{wait} ms");
        }
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }

    #[test]
    fn the_status_configured_in_the_module_is_also_in_the_body() {
        let module = ResilienceModule::in_memory().status(RejectionCode::BulkheadFull, 429).build().unwrap();
        let response = response(RejectionResponse::for_module(&module, Rejection::new(RejectionCode::BulkheadFull)));
        assert_eq!((response.status().as_u16(), json(&response)["status"].as_u64()), (429, Some(429)));
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }

    #[test]
    fn a_rate_limit_sends_quota_and_remaining_permits() {
        let rejection = Rejection::new(RejectionCode::RateLimited).retry_in(Duration::from_millis(2_300));
        let decision = Decision { remaining: Some(0), ..Decision::default() };
        let rejected =
            RejectionResponse::new(rejection).with_decision(&decision).with_rate_limit(&RateLimitSpec::per_minute(100));
        let headers = response(rejected).headers().clone();
        assert_eq!(headers[RATE_LIMIT], "\"default\";r=0;t=3");
        assert_eq!(headers[RATE_LIMIT_POLICY], "\"default\";q=100;w=60");
    }

    #[tokio::test(start_paused = true)]
    async fn of_several_limits_the_one_that_rejected_is_named_and_all_quotas_are_sent() {
        let policy = Policy::named("api")
            .rate_limit(RateLimitSpec::per_second(50))
            .limit("all", LimitSpec::per_second(100).key(LimitKey::Policy))
            .limit("tenant", LimitSpec::per_minute(1).key(LimitKey::tag("tenant")));
        let module = ResilienceModule::in_memory().policy(policy.clone()).build().unwrap();
        let call = || module.call("api", ()).tag("tenant", "acme").run_recorded(async || Ok::<_, std::io::Error>(()));
        assert!(call().await.0.is_ok());
        let (result, decision) = call().await;
        let rejection = *result.unwrap_err().rejection().unwrap();
        let rejected = RejectionResponse::new(rejection).with_decision(&decision).with_policy(&policy);
        let headers = response(rejected).headers().clone();
        assert_eq!(headers[RATE_LIMIT], "\"tenant\";r=0;t=60");
        let quotas = "\"rate_limit\";q=50;w=1, \"all\";q=100;w=1, \"tenant\";q=1;w=60";
        assert_eq!(headers[RATE_LIMIT_POLICY], quotas);
    }
}

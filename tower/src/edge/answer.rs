//! An answer that says what it is: from a fallback or not, and what is left of the rate limit it was given under.

use std::fmt::Write;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use phalanx::fallback::Degraded;
use phalanx::{Decision, RateLimitSpec, Served};

use super::rejection_response::whole_seconds;
use super::{DEGRADED, RATE_LIMIT, RATE_LIMIT_POLICY};

/// An answer with its marks, as a handler returns it (feature `axum`): made from a [`Served`], or from a value and the
/// record of the call that gave it.
///
/// * `X-Degraded: fallback; age=12` with the data's age in whole seconds, rounded down, or `fallback; approximate`,
///   where a fallback answered.
/// * `RateLimit: "<policy>";r=<permits left>` and `RateLimit-Policy`, where [`Degradable::limited`] was told of the limit.
#[derive(Clone, Debug)]
pub struct Degradable<T> {
    /// The answer.
    pub value: T,
    /// Set when a fallback gave it.
    pub degraded: Option<Degraded>,
    marks: HeaderMap,
}

impl<T> Degradable<T> {
    /// The answer to a call, with the call's record.
    pub fn recorded(value: T, decision: &Decision) -> Self {
        Self { value, degraded: decision.degraded, marks: HeaderMap::new() }
    }

    /// Says what is left of this limit, which the policy of this name has.
    #[must_use]
    pub fn limited(mut self, policy: &str, limit: &RateLimitSpec, decision: &Decision) -> Self {
        mark_rate_limit(&mut self.marks, policy, limit, decision);
        self
    }

    /// The headers that mark it.
    pub fn marks(&self) -> HeaderMap {
        let mut headers = self.marks.clone();
        if let Some(degraded) = &self.degraded {
            mark_degraded(&mut headers, degraded);
        }
        headers
    }
}

impl<T> From<Served<T>> for Degradable<T> {
    fn from(served: Served<T>) -> Self {
        Self { value: served.value, degraded: served.degraded, marks: HeaderMap::new() }
    }
}

#[cfg(feature = "axum")]
impl<T: axum_core::response::IntoResponse> axum_core::response::IntoResponse for Degradable<T> {
    fn into_response(self) -> axum_core::response::Response {
        let marks = self.marks();
        let mut response = self.value.into_response();
        response.headers_mut().extend(marks);
        response
    }
}

/// Marks an answer that a fallback gave: `X-Degraded: fallback; age=12; approximate`.
pub fn mark_degraded(headers: &mut HeaderMap, degraded: &Degraded) {
    let mut text = "fallback".to_owned();
    if let Some(age) = degraded.data_age {
        let _ = write!(text, "; age={}", age.as_secs());
    }
    if degraded.approximate {
        text.push_str("; approximate");
    }
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(DEGRADED, value);
    }
}

/// Says what a rate limit is and what is left of it, by the record of a call.
pub fn mark_rate_limit(headers: &mut HeaderMap, policy: &str, limit: &RateLimitSpec, decision: &Decision) {
    let wait = decision.retry_after.filter(|_| decision.remaining == Some(0));
    rate_limit_headers(headers, policy, decision.remaining, wait, Some(quota(limit)));
}

/// Permits and whole seconds. A limit over less than a second, or no whole number of them, is told over the next longer
/// time that is, rounded down.
pub(crate) fn quota(limit: &RateLimitSpec) -> (u64, u64) {
    let window = whole_seconds(limit.per);
    let (per, window_nanos) = (limit.per.as_nanos().max(1), u128::from(window) * 1_000_000_000);
    let permits = u128::from(limit.permits).saturating_mul(window_nanos) / per;
    (u64::try_from(permits).unwrap_or(u64::MAX), window)
}

/// The two headers of draft-ietf-httpapi-ratelimit-headers-10, as structured fields (RFC 9651).
pub(crate) fn rate_limit_headers(
    headers: &mut HeaderMap,
    policy: &str,
    remaining: Option<u64>,
    wait: Option<Duration>,
    quota: Option<(u64, u64)>,
) {
    let name = quoted(policy);
    if let Some(remaining) = remaining {
        let until = wait.map(|wait| format!(";t={}", capped(whole_seconds(wait)))).unwrap_or_default();
        if let Ok(value) = HeaderValue::try_from(format!("{name};r={}{until}", capped(remaining))) {
            headers.insert(RATE_LIMIT, value);
        }
    }
    if let Some((permits, window)) = quota
        && let Ok(value) = HeaderValue::try_from(format!("{name};q={};w={}", capped(permits), capped(window)))
    {
        headers.insert(RATE_LIMIT_POLICY, value);
    }
}

/// A structured field's integer has fifteen digits at most.
fn capped(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}

/// A structured field's string: printable ASCII, quotes and backslashes escaped, everything else replaced.
fn quoted(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    text.push('"');
    for character in name.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            ' '..='~' => text.push(character),
            _ => text.push('?'),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_answer_of_a_fallback_says_so_and_how_old_it_is() {
        let mark = |served: Served<()>| Degradable::from(served).marks().get(DEGRADED).cloned();
        assert_eq!(mark(Served::fresh(())), None);
        assert_eq!(mark(Served::approximate(())).unwrap(), "fallback; approximate");
        assert_eq!(mark(Served::stale((), Duration::from_millis(12_900))).unwrap(), "fallback; age=12");
    }

    #[test]
    fn what_is_left_of_a_limit_is_told_with_the_answer() {
        let decision = Decision { remaining: Some(41), ..Decision::default() };
        let answer = Degradable::recorded((), &decision).limited("api", &RateLimitSpec::per_second(50), &decision);
        assert_eq!(answer.marks()[RATE_LIMIT], "\"api\";r=41");
        assert_eq!(answer.marks()[RATE_LIMIT_POLICY], "\"api\";q=50;w=1");
    }

    #[test]
    fn a_limit_over_no_whole_seconds_is_told_over_the_next_longer_time() {
        assert_eq!(quota(&RateLimitSpec::new(5, Duration::from_millis(100))), (50, 1));
        assert_eq!(quota(&RateLimitSpec::new(3, Duration::from_millis(1_500))), (4, 2));
        assert_eq!(quota(&RateLimitSpec::per_minute(100)), (100, 60));
    }

    proptest! {
        #[test]
        fn whatever_a_policy_is_called_the_headers_are_well_formed(name in ".{0,40}", permits: u64) {
            let mut headers = HeaderMap::new();
            let limit = RateLimitSpec::new(permits, Duration::from_millis(700));
            let decision = Decision { remaining: Some(permits), ..Decision::default() };
            mark_rate_limit(&mut headers, &name, &limit, &decision);
            prop_assert_eq!(headers.len(), 2);
        }
    }
}

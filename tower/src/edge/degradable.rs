//! [`Degradable`]: a handler's answer with response headers for a fallback and for a rate limit.

use std::fmt::Write;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use phalanx::fallback::Degraded;
use phalanx::{Decision, Policy, RateLimitSpec, Served};

use super::rejection_response::whole_seconds;
use super::{DEGRADED, RATE_LIMIT, RATE_LIMIT_POLICY};

/// An answer that may come from a fallback, as a handler returns it (with the feature `axum`).
///
/// Made from a [`Served`], or from a value and the [`Decision`] of its call. It adds these response headers:
///
/// * `X-Degraded: fallback; age=12`, with the age of the data in whole seconds, rounded down, or `fallback; approximate`,
///   if a fallback answered.
/// * `RateLimit: "<policy>";r=<permits left>` and `RateLimit-Policy`, after [`Degradable::with_rate_limit`]; of several limits
///   the name of the one that has the fewest left, and the quotas of all, after [`Degradable::with_policy`].
///
/// # Examples
///
/// ```
/// use phalanx::Served;
/// use phalanx_tower::edge::Degradable;
/// use std::time::Duration;
///
/// let stale = Degradable::from(Served::stale("7.99", Duration::from_millis(12_900)));
/// assert_eq!(stale.headers()["x-degraded"], "fallback; age=12");
///
/// let fresh = Degradable::from(Served::fresh("7.99"));
/// assert!(fresh.headers().is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct Degradable<T> {
    /// The answer.
    pub value: T,
    /// Set if a fallback answered.
    pub degraded: Option<Degraded>,
    rate_limit_headers: HeaderMap,
}

impl<T> Degradable<T> {
    /// Creates an answer from a value and the decision record of its call.
    pub fn from_decision(value: T, decision: &Decision) -> Self {
        Self { value, degraded: decision.degraded, rate_limit_headers: HeaderMap::new() }
    }

    /// Adds the headers of this rate limit, which belongs to the policy of this name.
    #[must_use]
    pub fn with_rate_limit(mut self, policy: &str, limit: &RateLimitSpec, decision: &Decision) -> Self {
        set_rate_limit_headers(&mut self.rate_limit_headers, policy, limit, decision);
        self
    }

    /// Adds the headers of the rate limits of this policy.
    #[must_use]
    pub fn with_policy(mut self, policy: &Policy, decision: &Decision) -> Self {
        let limit = decision.limit.unwrap_or(&policy.name);
        insert_rate_limit(&mut self.rate_limit_headers, limit, decision.remaining, exhausted_for(decision));
        Quotas::of_policy(policy).insert(&mut self.rate_limit_headers, &policy.name);
        self
    }

    /// Returns the response headers that the answer adds.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = self.rate_limit_headers.clone();
        if let Some(degraded) = &self.degraded {
            set_degraded_header(&mut headers, degraded);
        }
        headers
    }
}

impl<T> From<Served<T>> for Degradable<T> {
    fn from(served: Served<T>) -> Self {
        Self { value: served.value, degraded: served.degraded, rate_limit_headers: HeaderMap::new() }
    }
}

#[cfg(feature = "axum")]
impl<T: axum_core::response::IntoResponse> axum_core::response::IntoResponse for Degradable<T> {
    fn into_response(self) -> axum_core::response::Response {
        let headers = self.headers();
        let mut response = self.value.into_response();
        response.headers_mut().extend(headers);
        response
    }
}

/// Sets the header of an answer from a fallback: `X-Degraded: fallback; age=12; approximate`.
pub fn set_degraded_header(headers: &mut HeaderMap, degraded: &Degraded) {
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

/// Sets `RateLimit` and `RateLimit-Policy` from a rate limit and the decision record of a call.
pub fn set_rate_limit_headers(headers: &mut HeaderMap, policy: &str, limit: &RateLimitSpec, decision: &Decision) {
    insert_rate_limit(headers, policy, decision.remaining, exhausted_for(decision));
    Quotas::of_one(limit).insert(headers, policy);
}

fn exhausted_for(decision: &Decision) -> Option<Duration> {
    decision.retry_after.filter(|_| decision.remaining == Some(0))
}

/// The quotas of rate limits: each with its name, or without one for the only limit of a policy.
#[derive(Clone, Debug)]
pub(crate) struct Quotas(Vec<(Option<String>, (u64, u64))>);

impl Quotas {
    pub(crate) const NONE: Self = Self(Vec::new());

    pub(crate) fn of_one(limit: &RateLimitSpec) -> Self {
        Self(vec![(None, quota(limit))])
    }

    /// The limits of a policy. The only limit has the policy's name; beside others it is named as in a file.
    pub(crate) fn of_policy(policy: &Policy) -> Self {
        let several = !policy.limits.is_empty();
        let short = policy.rate_limit.iter().map(|limit| (several.then(|| "rate_limit".to_owned()), quota(limit)));
        let named = policy.limits.iter().map(|(name, limit)| (Some(name.to_owned()), quota(&limit.rate(None))));
        Self(short.chain(named).collect())
    }

    /// Inserts `RateLimit-Policy`, if there is a quota.
    pub(crate) fn insert(&self, headers: &mut HeaderMap, policy: &str) {
        let item = |(name, (permits, window)): &(Option<String>, (u64, u64))| {
            let name = quoted(name.as_deref().unwrap_or(policy));
            format!("{name};q={};w={}", capped(*permits), capped(*window))
        };
        let items: Vec<_> = self.0.iter().map(item).collect();
        if let (false, Ok(value)) = (items.is_empty(), HeaderValue::try_from(items.join(", "))) {
            headers.insert(RATE_LIMIT_POLICY, value);
        }
    }
}

/// Returns the permits and the window in whole seconds, as the header needs it. A window with a fraction of a second is
/// rounded up, and its permits are scaled and rounded down.
fn quota(limit: &RateLimitSpec) -> (u64, u64) {
    let window = whole_seconds(limit.per);
    let (per, window_nanos) = (limit.per.as_nanos().max(1), u128::from(window) * 1_000_000_000);
    let permits = u128::from(limit.permits).saturating_mul(window_nanos) / per;
    (u64::try_from(permits).unwrap_or(u64::MAX), window)
}

/// Inserts `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10, a structured field (RFC 9651).
pub(crate) fn insert_rate_limit(headers: &mut HeaderMap, limit: &str, remaining: Option<u64>, wait: Option<Duration>) {
    let name = quoted(limit);
    if let Some(remaining) = remaining {
        let reset = wait.map(|wait| format!(";t={}", capped(whole_seconds(wait)))).unwrap_or_default();
        if let Ok(value) = HeaderValue::try_from(format!("{name};r={}{reset}", capped(remaining))) {
            headers.insert(RATE_LIMIT, value);
        }
    }
}

/// Caps a number at the fifteen digits that an integer of a structured field may have.
fn capped(number: u64) -> u64 {
    number.min(999_999_999_999_999)
}

/// Returns a name as a string of a structured field: quotes and backslashes escaped, everything but printable ASCII
/// replaced.
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
    fn an_answer_of_a_fallback_is_marked_with_the_age_of_its_data() {
        let header = |served: Served<()>| Degradable::from(served).headers().get(DEGRADED).cloned();
        assert_eq!(header(Served::fresh(())), None);
        assert_eq!(header(Served::approximate(())).unwrap(), "fallback; approximate");
        assert_eq!(header(Served::stale((), Duration::from_millis(12_900))).unwrap(), "fallback; age=12");
    }

    #[test]
    fn an_answer_carries_quota_and_remaining_permits_of_its_rate_limit() {
        let decision = Decision { remaining: Some(41), ..Decision::default() };
        let answer =
            Degradable::from_decision((), &decision).with_rate_limit("api", &RateLimitSpec::per_second(50), &decision);
        assert_eq!(answer.headers()[RATE_LIMIT], "\"api\";r=41");
        assert_eq!(answer.headers()[RATE_LIMIT_POLICY], "\"api\";q=50;w=1");
    }

    #[test]
    fn a_window_with_a_fraction_of_a_second_is_rounded_up() {
        assert_eq!(quota(&RateLimitSpec::new(5, Duration::from_millis(100))), (50, 1));
        assert_eq!(quota(&RateLimitSpec::new(3, Duration::from_millis(1_500))), (4, 2));
        assert_eq!(quota(&RateLimitSpec::per_minute(100)), (100, 60));
    }

    proptest! {
        #[test]
        fn rate_limit_headers_are_well_formed_for_any_policy_name(name in ".{0,40}", permits: u64) {
            let mut headers = HeaderMap::new();
            let limit = RateLimitSpec::new(permits, Duration::from_millis(700));
            let decision = Decision { remaining: Some(permits), ..Decision::default() };
            set_rate_limit_headers(&mut headers, &name, &limit, &decision);
            prop_assert_eq!(headers.len(), 2);
        }
    }
}

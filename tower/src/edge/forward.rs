//! The task's context on the way out: what is left of the budget goes with every outbound request, and never more.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use phalanx::Context;

use super::{CRITICALITY, GRPC_TIMEOUT, REQUEST_TIMEOUT, budget, importance};

/// Puts the remaining budget (`X-Request-Timeout`) and the criticality (`X-Criticality`) of the running task on an
/// outbound request.
///
/// It never raises what is there: a shorter timeout or a lower criticality that the caller has set stays. What cannot
/// be read is replaced. Milliseconds are rounded down, so that a hop promises the next no more than it has; nothing left
/// is `0`, which the next hop rejects at once. A task without a context leaves the headers alone.
///
/// With the feature `trace-context` it writes the trace's context too (`phalanx::telemetry::inject`): in an operation, that of the attempt.
///
/// ```
/// use http::HeaderMap;
/// use phalanx::{Context, scope};
/// use phalanx_tower::edge::forward;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// scope(Context::EMPTY.with_timeout(Duration::from_secs(2)), async {
///     let mut headers = HeaderMap::new();
///     headers.insert("x-request-timeout", "30000".parse().unwrap());
///     forward(&mut headers);
///     let left: u64 = headers["x-request-timeout"].to_str().unwrap().parse().unwrap();
///     assert!(left <= 2_000);
/// })
/// .await;
/// # }
/// ```
pub fn forward(headers: &mut HeaderMap) {
    forward_as(headers, &REQUEST_TIMEOUT, budget::millis, |left| left.as_millis().to_string());
}

/// The same for gRPC: the budget goes as `grpc-timeout`.
pub fn forward_grpc(headers: &mut HeaderMap) {
    forward_as(headers, &GRPC_TIMEOUT, budget::grpc, |left| match left.as_millis() {
        millis @ ..=99_999_999 => format!("{millis}m"),
        _ => format!("{}S", left.as_secs().min(99_999_999)),
    });
}

fn forward_as(
    headers: &mut HeaderMap,
    name: &HeaderName,
    read: impl Fn(&[u8]) -> Option<Duration>,
    write: impl Fn(Duration) -> String,
) {
    #[cfg(feature = "trace-context")]
    phalanx::telemetry::inject(headers);
    let context = Context::current();
    if let Some(left) = context.remaining() {
        let there = headers.get_all(name).iter().filter_map(|value| read(value.as_bytes())).min();
        // What is there stays as it is written, unless it is one of several.
        if there.is_none_or(|there| left < there) || headers.get_all(name).iter().count() > 1 {
            let least = there.map_or(left, |there| there.min(left));
            if let Ok(value) = HeaderValue::from_str(&write(least)) {
                headers.insert(name, value);
            }
        }
    }
    if context != Context::EMPTY {
        let own = context.criticality();
        let there = headers.get_all(CRITICALITY).iter().filter_map(|value| importance::parse(value.as_bytes())).min();
        let least = there.map_or(own, |there| there.min(own));
        if there != Some(least) && (least != phalanx::Criticality::Normal || headers.contains_key(CRITICALITY)) {
            headers.insert(CRITICALITY, importance::name(least));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx::{Criticality, scope};
    use proptest::prelude::*;

    async fn forwarded(context: Context, pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        scope(context, async { forward(&mut headers) }).await;
        headers
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_goes_on_and_what_is_shorter_already_stays() {
        let two = Context::EMPTY.with_timeout(Duration::from_micros(1_999_999));
        assert_eq!(forwarded(two, &[]).await[REQUEST_TIMEOUT], "1999", "rounded down");
        for (there, sent) in [("5000", "1999"), ("0900", "0900"), ("soon", "1999"), ("99999999999", "1999")] {
            assert_eq!(forwarded(two, &[("x-request-timeout", there)]).await[REQUEST_TIMEOUT], sent);
        }
        let several = forwarded(two, &[("x-request-timeout", "700"), ("x-request-timeout", "900")]).await;
        assert_eq!(several.get_all(REQUEST_TIMEOUT).iter().collect::<Vec<_>>(), ["700"]);
        let none = Context::EMPTY.with_timeout(Duration::ZERO);
        assert_eq!(forwarded(none, &[]).await[REQUEST_TIMEOUT], "0");
        assert!(forwarded(Context::EMPTY, &[]).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn grpc_has_its_own_form_in_at_most_eight_digits() {
        for (budget, form) in [(1_500, "1500m"), (99_999_999, "99999999m"), (100_000_500, "100000S")] {
            let mut headers = HeaderMap::new();
            let context = Context::EMPTY.with_timeout(Duration::from_millis(budget));
            scope(context, async { forward_grpc(&mut headers) }).await;
            assert_eq!(headers[GRPC_TIMEOUT], form);
        }
    }

    #[tokio::test]
    async fn criticality_goes_on_and_is_only_lowered() {
        let low = Context::EMPTY.with_criticality(Criticality::Degraded);
        assert_eq!(forwarded(low, &[]).await[CRITICALITY], "degraded");
        assert_eq!(forwarded(low, &[("x-criticality", "critical")]).await[CRITICALITY], "degraded");
        assert_eq!(forwarded(low, &[("x-criticality", "best_effort")]).await[CRITICALITY], "best_effort");
        let ordinary = Context::EMPTY.with_criticality(Criticality::Normal);
        assert!(forwarded(ordinary, &[]).await.is_empty(), "what everybody assumes is not said");
        assert_eq!(forwarded(ordinary, &[("x-criticality", "critical")]).await[CRITICALITY], "normal");
    }

    proptest! {
        #[test]
        fn whatever_is_there_the_next_hop_is_never_promised_more_than_is_left(
            there in "[0-9]{0,12}|[ -~]{0,20}", left in 0_u64..10_000_000_000,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let context = Context::EMPTY.with_timeout(Duration::from_micros(left));
                let headers = forwarded(context, &[("x-request-timeout", &there)]).await;
                let sent = budget::millis(headers[REQUEST_TIMEOUT].as_bytes()).unwrap();
                prop_assert!(sent <= Duration::from_micros(left));
                if let Some(there) = budget::millis(there.as_bytes()) {
                    prop_assert!(sent <= there);
                }
                Ok(())
            })?;
        }
    }
}

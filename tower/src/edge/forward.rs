//! [`forward`]: puts the task's remaining deadline and criticality on outbound requests.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use phalanx::Context;

use super::{CRITICALITY, GRPC_TIMEOUT, REQUEST_TIMEOUT, criticality, deadline};

/// Sets the remaining time (`X-Request-Timeout`) and the criticality (`X-Criticality`) of the current task on an outbound
/// request.
///
/// Values that are already there are only lowered: a shorter timeout or a lower criticality stays, a malformed value is
/// replaced. Milliseconds are rounded down, so that the next hop never gets more time than this one has. A deadline that
/// has passed is sent as `0`, which the next hop rejects at once. Without a context the headers are not changed.
///
/// With the feature `trace-context` it also sets the trace context (`phalanx::telemetry::inject`): inside an operation,
/// that of the attempt.
///
/// # Examples
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
    forward_as(headers, &REQUEST_TIMEOUT, deadline::parse_millis, |left| left.as_millis().to_string());
}

/// Like [`forward`], for gRPC: sends the remaining time as `grpc-timeout`.
pub fn forward_grpc(headers: &mut HeaderMap) {
    forward_as(headers, &GRPC_TIMEOUT, deadline::parse_grpc_timeout, |left| match left.as_millis() {
        millis @ ..=99_999_999 => format!("{millis}m"),
        _ => format!("{}S", left.as_secs().min(99_999_999)),
    });
}

fn forward_as(
    headers: &mut HeaderMap,
    name: &HeaderName,
    parse: impl Fn(&[u8]) -> Option<Duration>,
    format: impl Fn(Duration) -> String,
) {
    #[cfg(feature = "trace-context")]
    phalanx::telemetry::inject(headers);
    let context = Context::current();
    if let Some(left) = context.remaining() {
        let present = headers.get_all(name).iter().filter_map(|value| parse(value.as_bytes())).min();
        // A single shorter value stays as the caller wrote it; several are replaced by their minimum.
        if present.is_none_or(|present| left < present) || headers.get_all(name).iter().count() > 1 {
            let least = present.map_or(left, |present| present.min(left));
            if let Ok(value) = HeaderValue::from_str(&format(least)) {
                headers.insert(name, value);
            }
        }
    }
    if context != Context::EMPTY {
        let own = context.criticality();
        let values = headers.get_all(CRITICALITY).iter();
        let present = values.filter_map(|value| criticality::parse(value.as_bytes())).min();
        let least = present.map_or(own, |present| present.min(own));
        // `Normal` is the default of every receiver and is not sent.
        if present != Some(least) && (least != phalanx::Criticality::Normal || headers.contains_key(CRITICALITY)) {
            headers.insert(CRITICALITY, criticality::header_value(least));
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
    async fn the_remaining_time_is_sent_and_a_shorter_timeout_stays() {
        let two = Context::EMPTY.with_timeout(Duration::from_micros(1_999_999));
        assert_eq!(forwarded(two, &[]).await[REQUEST_TIMEOUT], "1999", "rounded down");
        for (present, sent) in [("5000", "1999"), ("0900", "0900"), ("soon", "1999"), ("99999999999", "1999")] {
            assert_eq!(forwarded(two, &[("x-request-timeout", present)]).await[REQUEST_TIMEOUT], sent);
        }
        let several = forwarded(two, &[("x-request-timeout", "700"), ("x-request-timeout", "900")]).await;
        assert_eq!(several.get_all(REQUEST_TIMEOUT).iter().collect::<Vec<_>>(), ["700"]);
        let none = Context::EMPTY.with_timeout(Duration::ZERO);
        assert_eq!(forwarded(none, &[]).await[REQUEST_TIMEOUT], "0");
        assert!(forwarded(Context::EMPTY, &[]).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_grpc_timeout_has_at_most_eight_digits() {
        for (millis, header) in [(1_500, "1500m"), (99_999_999, "99999999m"), (100_000_500, "100000S")] {
            let mut headers = HeaderMap::new();
            let context = Context::EMPTY.with_timeout(Duration::from_millis(millis));
            scope(context, async { forward_grpc(&mut headers) }).await;
            assert_eq!(headers[GRPC_TIMEOUT], header);
        }
    }

    #[tokio::test]
    async fn criticality_is_sent_and_only_lowered() {
        let low = Context::EMPTY.with_criticality(Criticality::Degraded);
        assert_eq!(forwarded(low, &[]).await[CRITICALITY], "degraded");
        assert_eq!(forwarded(low, &[("x-criticality", "critical")]).await[CRITICALITY], "degraded");
        assert_eq!(forwarded(low, &[("x-criticality", "best_effort")]).await[CRITICALITY], "best_effort");
        let normal = Context::EMPTY.with_criticality(Criticality::Normal);
        assert!(forwarded(normal, &[]).await.is_empty(), "the default is not sent");
        assert_eq!(forwarded(normal, &[("x-criticality", "critical")]).await[CRITICALITY], "normal");
    }

    proptest! {
        #[test]
        fn the_next_hop_never_gets_more_time_than_is_left(
            present in "[0-9]{0,12}|[ -~]{0,20}", left in 0_u64..10_000_000_000,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let context = Context::EMPTY.with_timeout(Duration::from_micros(left));
                let headers = forwarded(context, &[("x-request-timeout", &present)]).await;
                let sent = deadline::parse_millis(headers[REQUEST_TIMEOUT].as_bytes()).unwrap();
                prop_assert!(sent <= Duration::from_micros(left));
                if let Some(present) = deadline::parse_millis(present.as_bytes()) {
                    prop_assert!(sent <= present);
                }
                Ok(())
            })?;
        }
    }
}

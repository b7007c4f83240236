//! Policies as data: they round-trip through JSON, durations are text, and unknown keys are errors.

#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used)] // tests may unwrap

mod support;

use phalanx::policy::{BudgetSpec, DeadlineSpec};
use phalanx::*;
use support::*;

fn full() -> Policy {
    Policy::named("payments")
        .deadline(DeadlineSpec::total(2 * SECOND).safety_margin(100 * MS))
        .rate_limit(RateLimitSpec::per_second(100).burst(200).max_wait(50 * MS))
        .breaker(
            BreakerSpec::failure_ratio(0.5)
                .or_consecutive_failures(5)
                .or_slow_call_ratio(0.8, SECOND)
                .or_latency(0.95, 300 * MS, 5 * SECOND)
                .escalate(2.0, 60 * SECOND)
                .probes(2, 3)
                .probe_lease(5 * SECOND)
                .ramp(8 * SECOND, 4)
                .count_attempts(),
        )
        .retry(RetrySpec::attempts(3).on([Kind::Infrastructure, Kind::Throttled]).budget(BudgetSpec::ratio(0.1)))
        .timeout(250 * MS)
        .on_degraded(OnDegraded::Closed)
}

#[test]
fn a_policy_round_trips_through_json() {
    let text = serde_json::to_string(&full()).unwrap();
    assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), full());
    let throttled = Policy::named("p").throttle(ThrottleSpec::default());
    let text = serde_json::to_string(&throttled).unwrap();
    assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), throttled);
}

#[test]
fn durations_and_kinds_are_parsed_from_text() {
    let text = r#"{
        "name": "vendor", "timeout": "250ms", "deadline": "2s",
        "retry": { "max_attempts": 3, "retry_on": ["throttled"], "backoff": { "base": "100ms", "max": "2s" } },
        "breaker": { "failure_ratio": 0.5, "break_duration": "30s" }
    }"#;
    let policy: Policy = serde_json::from_str(text).unwrap();
    let backoff = Backoff::exponential(100 * MS).max(2 * SECOND);
    let expected = Policy::named("vendor")
        .timeout(250 * MS)
        .deadline(2 * SECOND)
        .retry(RetrySpec::attempts(3).on([Kind::Throttled]).backoff(backoff))
        .breaker(BreakerSpec::failure_ratio(0.5));
    assert_eq!(policy, expected);
}

#[test]
fn an_unknown_key_is_an_error() {
    for text in [
        r#"{"name":"p","timeuot":"1s"}"#,
        r#"{"name":"p","breaker":{"failure_rate":0.5}}"#,
        r#"{"name":"p","deadline":{"totl":"1s"}}"#,
    ] {
        assert!(serde_json::from_str::<Policy>(text).is_err(), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn records_and_descriptions_serialize() {
    let pipeline = module(full()).pipeline("payments", "eu").unwrap();
    let (_, record) = pipeline.call().run_recorded(|| Upstream::always(Ok(1)).call_owned()).await;
    let record = serde_json::to_value(record).unwrap();
    assert_eq!((&record["verdict"], &record["remaining"]), (&"admitted".into(), &199.into()));
    let described = serde_json::to_value(pipeline.describe()).unwrap();
    assert_eq!(described["key"]["route"], "eu");
    assert_eq!(described["stages"][4]["timeout"], "250ms");
}

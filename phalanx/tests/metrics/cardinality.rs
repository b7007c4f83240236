//! The number of series is bounded whatever names callers use, and no count is lost.

use phalanx::telemetry::metrics::OTHER;
use phalanx::telemetry::metrics::names::*;
use phalanx::*;

use crate::meters::{Meters, Value};
use crate::support::*;
use crate::{broken, ok};

/// The sum over all series of a counter.
fn sum(series: &[(crate::meters::Attributes, Value)]) -> f64 {
    let values = series.iter().map(|(_, value)| match value {
        Value::Number(value) => *value,
        Value::Histogram { count, .. } => *count as f64,
    });
    values.sum()
}

#[tokio::test]
async fn ten_thousand_routes_export_no_more_series_than_the_cap_and_lose_no_counts() {
    const ROUTES: usize = 10_000;
    let meters = Meters::new();
    let policy = Policy::named("p")
        .rate_limit(RateLimitSpec::per_second(10))
        .bulkhead(BulkheadSpec::fixed(3))
        .breaker(BreakerSpec::consecutive_failures(1));
    let metrics = meters.metrics().max_routes(20);
    let module = builder(policy).clock(Clock::manual()).max_routes(2 * ROUTES).metered_by(metrics).build().unwrap();
    for route in 0..ROUTES {
        let route = format!("route-{route}");
        module.run("p", route.as_str(), ok).await.unwrap();
        module.run("p", route.as_str(), broken).await.unwrap_err();
        module.run("p", route.as_str(), ok).await.unwrap_err();
    }
    let seen = meters.collect();
    for (named, outcomes, total) in [
        (EXECUTIONS, 3, 3 * ROUTES),
        (DURATION, 3, 3 * ROUTES),
        (REJECTIONS, 1, ROUTES),
        (BREAKER_TRANSITIONS, 1, ROUTES),
        (BREAKER_STATE, 3, ROUTES),
        (BULKHEAD_LIMIT, 1, 3 * ROUTES),
        (BULKHEAD_IN_FLIGHT, 1, 0),
        (RATE_LIMIT_REMAINING, 1, 21 * 8),
    ] {
        let series = seen.series(&named);
        assert_eq!(series.len(), 21 * outcomes, "{}", named.name);
        assert_eq!(sum(&series), total as f64, "{}", named.name);
    }
    let other = [("policy", "p"), ("route", OTHER), ("outcome", "success"), ("source", "local")];
    assert_eq!(seen.value(&EXECUTIONS, &other), Some((ROUTES - 20) as f64));
    let open = [("policy", "p"), ("route", OTHER), ("state", "open")];
    assert_eq!(seen.value(&BREAKER_STATE, &open), Some((ROUTES - 20) as f64), "all breakers beyond the cap are open");
}

#[tokio::test(start_paused = true)]
async fn unknown_policy_names_are_bounded_too() {
    let meters = Meters::new();
    let module = ResilienceModule::in_memory()
        .default_policy(Policy::named("default"))
        .metered_by(meters.metrics().max_routes(5))
        .build()
        .unwrap();
    for policy in 0..500 {
        module.run(&format!("policy-{policy}"), (), ok).await.unwrap();
    }
    let series = meters.collect().series(&EXECUTIONS);
    assert_eq!((series.len(), sum(&series)), (6, 500.0));
    let other = [("policy", OTHER), ("route", OTHER), ("outcome", "success"), ("source", "local")];
    assert_eq!(meters.collect().value(&EXECUTIONS, &other), Some(495.0));
}

#[tokio::test(start_paused = true)]
async fn a_route_keeps_its_series_when_its_pipeline_is_rebuilt() {
    let meters = Meters::new();
    let module = builder(Policy::named("p")).max_routes(1).metered_by(meters.metrics()).build().unwrap();
    for _ in 0..3 {
        module.run("p", "a", ok).await.unwrap();
        module.run("p", "b", ok).await.unwrap(); // the table has room for one pipeline
    }
    let seen = meters.collect();
    for route in ["a", "b"] {
        let one = [("policy", "p"), ("route", route), ("outcome", "success"), ("source", "local")];
        assert_eq!(seen.value(&EXECUTIONS, &one), Some(3.0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_route_has_an_empty_route_label() {
    let meters = Meters::new();
    let module = builder(Policy::named("p")).metered_by(meters.metrics()).build().unwrap();
    module.run("p", (), ok).await.unwrap();
    let whole = [("policy", "p"), ("route", ""), ("outcome", "success"), ("source", "local")];
    assert_eq!(meters.collect().value(&EXECUTIONS, &whole), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_hostile_name_is_escaped_and_truncated() {
    let meters = Meters::new();
    let module = builder(Policy::named("p")).metered_by(meters.metrics()).build().unwrap();
    module.run("p", format!("x\r\n\u{1b}[2J{}", "y".repeat(900)).as_str(), ok).await.unwrap();
    let (attributes, _) = &meters.collect().series(&EXECUTIONS)[0];
    let route = &attributes["phalanx.route"];
    assert!(route.starts_with("x\\r\\n\\u{1b}[2Jyy") && route.ends_with("y…"), "{route}");
    assert!(route.chars().count() < 150 && !route.contains(char::is_control), "{route}");
}

//! The log lines of a module: their events and levels, and how repeated lines are suppressed.

#![cfg(feature = "tracing")]
#![allow(clippy::unwrap_used)] // helpers of tests may panic

#[path = "support/spans.rs"]
mod spans;
mod support;

use std::pin::pin;

use phalanx::*;
use spans::{Collector, collect};
use support::*;
use tracing::Level;

fn traced(policy: Policy) -> ResilienceModule {
    builder(policy).traced().build().unwrap()
}

/// Events and their levels, in order.
fn lines(seen: &Collector) -> Vec<(Level, String)> {
    seen.lines().iter().map(|line| (line.level, line.fields["event"].clone())).collect()
}

fn expected(lines: &[(Level, &str)]) -> Vec<(Level, String)> {
    lines.iter().map(|(level, event)| (*level, (*event).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn many_rejections_log_one_line_and_the_next_line_counts_the_rest() {
    let (seen, _guard) = collect();
    let clock = Clock::manual();
    let policy = Policy::named("p").rate_limit(RateLimitSpec::per_second(1));
    let module = builder(policy).clock(clock.clone()).traced().build().unwrap();
    let upstream = Upstream::always(Ok(1));
    module.run("p", "eu", || upstream.call()).await.unwrap();
    for _ in 0..10_000 {
        module.run("p", "eu", || upstream.call()).await.unwrap_err();
    }
    assert_eq!(seen.lines_of("rate_limited").len(), 1);
    clock.advance(10 * SECOND);
    module.run("p", "eu", || upstream.call()).await.unwrap(); // the bucket is full again
    module.run("p", "eu", || upstream.call()).await.unwrap_err();
    let lines = seen.lines_of("rate_limited");
    assert_eq!((lines.len(), lines[0].field("suppressed")), (2, None));
    assert_eq!(lines[1].field("suppressed"), Some("9999"));
    assert_eq!(
        (lines[1].level, lines[1].field("code"), lines[1].field("route")),
        (Level::WARN, Some("rate_limited"), Some("eu"))
    );
    assert_eq!((seen.lines_of("near_limit").len(), seen.lines().len()), (2, 4), "no other lines");
}

#[tokio::test(start_paused = true)]
async fn failed_retries_log_a_warning_each_and_one_error() {
    let (seen, _guard) = collect();
    let module = traced(Policy::named("p").retry(RetrySpec::attempts(2)).timeout(50 * MS));
    module.run("p", (), hang).await.unwrap_err();
    let expected_lines = [
        (Level::WARN, "timeout"),
        (Level::WARN, "retry_attempt"),
        (Level::ERROR, "retry_exhausted"), // the second timeout is suppressed: within ten seconds of the first
    ];
    assert_eq!(lines(&seen), expected(&expected_lines));
    let exhausted = &seen.lines()[2];
    assert_eq!((exhausted.field("attempts"), exhausted.field("code")), (Some("2"), Some("attempt_timeout")));
    assert_eq!(exhausted.field("kind"), Some("infrastructure"));
}

#[tokio::test(start_paused = true)]
async fn a_failure_without_a_retry_logs_nothing() {
    let (seen, _guard) = collect();
    traced(Policy::named("p")).run("p", (), async || Err::<(), _>(BROKEN)).await.unwrap_err();
    assert!(seen.lines().is_empty());
}

#[tokio::test(start_paused = true)]
async fn every_phase_of_a_breaker_is_logged() {
    let (seen, _guard) = collect();
    let module = traced(Policy::named("p").breaker(BreakerSpec::consecutive_failures(1).break_for(SECOND)));
    let upstream = Upstream::scripted([Err(BROKEN), Ok(1)]);
    for _ in 0..2 {
        module.run("p", (), || upstream.call()).await.unwrap_err();
    }
    tokio::time::advance(2 * SECOND).await;
    module.run("p", (), || upstream.call()).await.unwrap();
    let expected_lines = [
        (Level::WARN, "circuit_opened"),
        (Level::WARN, "circuit_rejected"),
        (Level::INFO, "circuit_half_open"),
        (Level::INFO, "circuit_closed"),
    ];
    assert_eq!(lines(&seen), expected(&expected_lines));
    assert_eq!((seen.lines()[0].field("failures"), seen.lines()[0].field("break_ms")), (Some("1"), Some("1000")));
}

#[tokio::test(start_paused = true)]
async fn a_full_bulkhead_and_a_fallback_are_logged() {
    let (seen, _guard) = collect();
    let module = traced(Policy::named("p").bulkhead(BulkheadSpec::fixed(1)));
    let mut inside = pin!(module.run("p", (), hang));
    assert!(poll_once(inside.as_mut()).is_pending());
    let upstream = Upstream::always(Ok(1));
    assert_eq!(module.call("p", ()).fallback_value(5).run(|| upstream.call()).await, Ok(5));
    assert_eq!(lines(&seen), expected(&[(Level::WARN, "bulkhead_rejected"), (Level::INFO, "fallback_used")]));
}

//! A traced module allocates nothing if its spans and lines are filtered out or suppressed.

#![cfg(feature = "tracing")]
#![allow(clippy::unwrap_used)] // helpers of tests may panic

#[path = "support/spans.rs"]
mod spans;
mod support;

use std::pin::pin;
use std::task::Poll;

use allocation_counter::measure;
use phalanx::*;
use spans::collect_at;
use support::*;
use tracing_subscriber::filter::{LevelFilter, Targets};

/// Calls measured together: even one allocation in a hundred calls fails the test.
const CALLS: usize = 100;

/// The allocations of a hundred immediate calls, after a hundred calls of warm-up.
fn allocations(pipeline: &Pipeline, answer: Result<u32, Failure>) -> u64 {
    let round = || {
        for _ in 0..CALLS {
            let call = pin!(pipeline.run(async || answer));
            assert!(matches!(poll_once(call), Poll::Ready(_)));
        }
    };
    round();
    measure(round).count_total
}

fn pipeline(rate: u64) -> Pipeline {
    let policy = Policy::named("p")
        .rate_limit(RateLimitSpec::per_second(rate))
        .breaker(BreakerSpec::failure_ratio(0.5).min_throughput(1_000_000))
        .timeout(SECOND);
    builder(policy).clock(Clock::manual()).traced().build().unwrap().pipeline("p", "eu").unwrap()
}

fn phalanx_at(level: LevelFilter) -> Targets {
    Targets::new().with_default(LevelFilter::INFO).with_target("phalanx", level)
}

#[test]
fn a_traced_module_that_is_filtered_out_allocates_nothing() {
    let (seen, _guard) = collect_at(phalanx_at(LevelFilter::OFF));
    let (plenty, little) = (pipeline(1_000_000), pipeline(1));
    assert_eq!(allocations(&plenty, Ok(1)), 0, "answered");
    assert_eq!(allocations(&plenty, Err(BROKEN)), 0, "failed");
    assert_eq!(allocations(&little, Ok(1)), 0, "rejected");
    assert!(seen.spans().is_empty() && seen.lines().is_empty());
}

#[test]
fn a_suppressed_line_allocates_nothing() {
    let (seen, _guard) = collect_at(phalanx_at(LevelFilter::WARN));
    assert_eq!(allocations(&pipeline(1), Ok(1)), 0);
    assert_eq!(seen.lines_of("rate_limited").len(), 1);
}

#[test]
fn enabled_spans_allocate() {
    let (seen, _guard) = collect_at(phalanx_at(LevelFilter::DEBUG));
    assert!(allocations(&pipeline(1_000_000), Ok(1)) > 0, "otherwise the tests above measure nothing");
    assert_eq!(seen.named("phalanx.call").len(), 2 * CALLS);
}

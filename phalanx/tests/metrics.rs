//! Metrics: each instrument is driven by calls in paused time and read back through the SDK.

#![cfg(feature = "otel")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)] // helpers of tests may panic

#[path = "metrics/cardinality.rs"]
mod cardinality;
#[path = "metrics/lifetimes.rs"]
mod lifetimes;
#[path = "metrics/meters.rs"]
mod meters;
mod support;
#[path = "metrics/table.rs"]
mod table;

use meters::Meters;
use phalanx::policy::{BudgetSpec, Jitter, LeverSpec, LimitKey, LimitSpec, Override};
use phalanx::telemetry::metrics::names::*;
use phalanx::*;
use support::*;

const P: (&str, &str) = ("policy", "p");
const R: (&str, &str) = ("route", "r");

async fn ok() -> Result<u32, Failure> {
    Ok(1)
}

async fn broken() -> Result<u32, Failure> {
    Err(BROKEN)
}

/// A module with this policy, metered, and its pipeline on route `r`.
fn metered(meters: &Meters, policy: Policy) -> (ResilienceModule, Pipeline) {
    let module = builder(policy).metered_by(meters.metrics()).build().unwrap();
    let pipeline = module.pipeline("p", "r").unwrap();
    (module, pipeline)
}

#[tokio::test(start_paused = true)]
async fn a_call_is_counted_and_timed_by_its_outcome() {
    let meters = Meters::new();
    let (_module, pipeline) = metered(&meters, Policy::named("p").rate_limit(RateLimitSpec::per_second(5)));
    pipeline.run(|| after(40 * MS, Ok(1))).await.unwrap();
    pipeline.run(|| after(2 * MS, Ok(1))).await.unwrap();
    pipeline.run(|| after(300 * MS, Err(BROKEN))).await.unwrap_err();
    pipeline.run(|| after(5 * MS, Err(Failure(Kind::Throttled, None)))).await.unwrap_err();
    let gone = tokio::time::timeout(70 * MS, pipeline.run(hang));
    assert!(gone.await.is_err());
    while pipeline.run(ok).await.is_ok() {} // permits that were refilled meanwhile
    let seen = meters.collect();
    let source = ("source", "local");
    let ended = |outcome| seen.value(&EXECUTIONS, &[P, R, ("outcome", outcome), source]);
    let took = |outcome| seen.histogram(&DURATION, &[P, R, ("outcome", outcome)]).unwrap();
    assert_eq!((ended("failure"), took("failure")), (Some(1.0), (1, 0.3)));
    assert_eq!((ended("neutral"), took("neutral")), (Some(1.0), (1, 0.005)));
    assert_eq!((ended("cancelled"), took("cancelled")), (Some(1.0), (1, 0.07)));
    assert_eq!((ended("rejected"), took("rejected")), (Some(1.0), (1, 0.0)));
    let (answered, seconds) = took("success");
    assert_eq!((ended("success"), seconds), (Some(answered as f64), 0.042));
    assert_eq!(seen.value(&REJECTIONS, &[P, R, ("code", "rate_limited")]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn rejections_are_counted_by_their_code() {
    let meters = Meters::new();
    let policy = Policy::named("p").breaker(BreakerSpec::consecutive_failures(1)).timeout(10 * MS);
    let (_module, pipeline) = metered(&meters, policy);
    assert_eq!(code(pipeline.run(hang).await), RejectionCode::AttemptTimeout);
    for _ in 0..3 {
        assert_eq!(code(pipeline.run(ok).await), RejectionCode::CircuitOpen);
    }
    let seen = meters.collect();
    assert_eq!(seen.value(&REJECTIONS, &[P, R, ("code", "attempt_timeout")]), Some(1.0));
    assert_eq!(seen.value(&REJECTIONS, &[P, R, ("code", "circuit_open")]), Some(3.0));
    assert_eq!(seen.value(&TIMEOUTS, &[P, R]), Some(1.0));
    assert_eq!(seen.series(&REJECTIONS).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn rejections_of_several_limits_are_counted_by_limit_and_never_by_the_value_of_a_tag() {
    let meters = Meters::new();
    let tenant = LimitSpec::per_second(1).key(LimitKey::tag("tenant"));
    let policy =
        Policy::named("p").limit("all", LimitSpec::per_second(4).key(LimitKey::Policy)).limit("tenant", tenant);
    let (_module, pipeline) = metered(&meters, policy.guard(RejectsAsRateLimited));
    for tenant in ["acme", "acme", "other", "other", "third", "fourth", "fifth", "sixth"] {
        let _ = pipeline.call().tag("tenant", tenant).run(ok).await;
    }
    let seen = meters.collect();
    let rejected = |limit| seen.value(&RATE_LIMIT_REJECTIONS, &[P, R, ("limit", limit)]);
    assert_eq!((rejected("tenant"), rejected("all")), (Some(2.0), Some(1.0)), "not those of the guard");
    assert_eq!(seen.series(&RATE_LIMIT_REJECTIONS).len(), 2);
}

/// Rejects the fourth call that reaches it with the code of a rate limit.
struct RejectsAsRateLimited;

impl phalanx::guard::Guard for RejectsAsRateLimited {
    fn name(&self) -> &str {
        "rejects as rate limited"
    }

    fn order(&self) -> u16 {
        250
    }

    fn admit(&self, _: &phalanx::guard::CallInfo<'_>) -> Result<(), Rejection> {
        static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        match CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            3 => Err(Rejection::new(RejectionCode::RateLimited)),
            _ => Ok(()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn retries_are_counted_by_kind_and_denied_ones_by_reason() {
    let meters = Meters::new();
    let backoff = Backoff::constant(100 * MS).jitter(Jitter::None);
    let budget = BudgetSpec::ratio(0.0).min_per_second(1);
    let retry = RetrySpec::attempts(3).backoff(backoff).budget(budget);
    let (_module, pipeline) = metered(&meters, Policy::named("p").retry(retry));
    pipeline.call().within(50 * MS).run(broken).await.unwrap_err();
    for _ in 0..20 {
        pipeline.run(broken).await.unwrap_err(); // until the budget is used up
    }
    let seen = meters.collect();
    let retried = seen.value(&RETRIES, &[P, R, ("error.type", "infrastructure")]).unwrap();
    let denied = seen.value(&RETRIES_DENIED, &[P, R, ("reason", "budget")]).unwrap();
    assert!(retried >= 1.0 && denied >= 1.0, "{retried} {denied}");
    assert_eq!(seen.value(&RETRIES_DENIED, &[P, R, ("reason", "deadline")]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn hedges_are_counted_as_sent_won_and_denied() {
    let meters = Meters::new();
    let hedge = HedgeSpec::after(100 * MS).budget(BudgetSpec::ratio(0.0).min_per_second(1));
    let (_module, pipeline) = metered(&meters, Policy::named("p").hedge(hedge).idempotent());
    let runs = std::sync::atomic::AtomicU32::new(0);
    let first_hangs = || {
        let first = runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(2);
        async move { if first { after(10 * SECOND, Ok(1)).await } else { ok().await } }
    };
    pipeline.run(first_hangs).await.unwrap();
    let mut denied = 0.0;
    while denied == 0.0 {
        pipeline.run(|| after(150 * MS, Ok(1))).await.unwrap();
        denied = meters.collect().value(&HEDGES_DENIED, &[P, R]).unwrap_or_default();
    }
    let seen = meters.collect();
    assert_eq!(seen.value(&HEDGES_WON, &[P, R]), Some(1.0));
    assert!(seen.value(&HEDGES, &[P, R]).unwrap() >= 1.0);
    assert_eq!(seen.value(&HEDGE_DELAY, &[P, R]), Some(0.1));
}

#[tokio::test(start_paused = true)]
async fn a_hedge_that_failed_last_is_not_counted_as_won() {
    let meters = Meters::new();
    let policy = Policy::named("p").hedge(HedgeSpec::after(10 * MS)).idempotent();
    let (_module, pipeline) = metered(&meters, policy);
    let runs = std::sync::atomic::AtomicU32::new(0);
    let both_fail = || {
        let first = runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        after(if first { 15 * MS } else { 20 * MS }, Err(BROKEN)) // at 15 ms and at 30
    };
    pipeline.run(both_fail).await.unwrap_err();
    let seen = meters.collect();
    assert_eq!((seen.value(&HEDGES, &[P, R]), seen.value(&HEDGES_WON, &[P, R])), (Some(1.0), None));
}

#[tokio::test(start_paused = true)]
async fn answers_of_a_fallback_are_counted() {
    let meters = Meters::new();
    let (_module, pipeline) = metered(&meters, Policy::named("p"));
    pipeline.call().fallback_value(7).run(broken).await.unwrap();
    pipeline.call().fallback_value(7).run(ok).await.unwrap();
    assert_eq!(meters.collect().value(&FALLBACKS, &[P, R]), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn the_remaining_time_is_recorded_for_calls_with_a_deadline() {
    let meters = Meters::new();
    let (_module, pipeline) = metered(&meters, Policy::named("p"));
    pipeline.run(ok).await.unwrap();
    assert_eq!(meters.collect().series(&DEADLINE_REMAINING), []);
    pipeline.call().within(SECOND).run(|| after(250 * MS, Ok(1))).await.unwrap();
    assert_eq!(meters.collect().histogram(&DEADLINE_REMAINING, &[P, R]), Some((1, 0.75)));
}

#[tokio::test(start_paused = true)]
async fn a_breaker_exports_one_state_at_a_time_and_counts_its_transitions() {
    let meters = Meters::new();
    let breaker = BreakerSpec::consecutive_failures(1).break_for(SECOND);
    let (_module, pipeline) = metered(&meters, Policy::named("p").breaker(breaker));
    let states = || {
        let seen = meters.collect();
        ["closed", "open", "half_open"].map(|state| seen.value(&BREAKER_STATE, &[P, R, ("state", state)]).unwrap())
    };
    assert_eq!(states(), [1.0, 0.0, 0.0]);
    pipeline.run(broken).await.unwrap_err();
    assert_eq!(states(), [0.0, 1.0, 0.0]);
    pipeline.force(Some(Override::Closed)).await;
    assert_eq!(states(), [1.0, 0.0, 0.0], "an override is the effective state");
    pipeline.force(None).await;
    tokio::time::advance(SECOND).await;
    let probe = tokio::spawn({
        let pipeline = pipeline.clone();
        async move { pipeline.run(|| after(SECOND, Ok(1))).await }
    });
    tokio::task::yield_now().await;
    assert_eq!(states(), [0.0, 0.0, 1.0]);
    probe.await.unwrap().unwrap();
    assert_eq!(states(), [1.0, 0.0, 0.0]);
    let seen = meters.collect();
    for state in ["closed", "open", "half_open"] {
        assert_eq!(seen.value(&BREAKER_TRANSITIONS, &[P, R, ("state", state)]), Some(1.0), "{state}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_breaker_under_a_lever_exports_the_forced_state() {
    let meters = Meters::new();
    let breaker = BreakerSpec::consecutive_failures(1).break_for(SECOND);
    let (module, pipeline) = metered(&meters, Policy::named("p").breaker(breaker));
    let states = || {
        let seen = meters.collect();
        ["closed", "open", "half_open"].map(|state| seen.value(&BREAKER_STATE, &[P, R, ("state", state)]))
    };
    module.pull("p", LeverSpec::force_open()).unwrap();
    assert_eq!(states(), [Some(0.0), Some(1.0), Some(0.0)]);
    assert!(module.release("p"));
    assert_eq!(states(), [Some(1.0), Some(0.0), Some(0.0)]);
    pipeline.run(broken).await.unwrap_err();
    module.pull("p", LeverSpec::force_closed()).unwrap();
    assert_eq!(states(), [Some(1.0), Some(0.0), Some(0.0)], "every call is admitted");
    assert!(module.release("p"));
    assert_eq!(states(), [Some(0.0), Some(1.0), Some(0.0)], "the breaker below is still open");
}

#[tokio::test(start_paused = true)]
async fn a_lever_exports_no_breaker_state_without_a_breaker() {
    let meters = Meters::new();
    let (module, _pipeline) = metered(&meters, Policy::named("p"));
    module.pull("p", LeverSpec::force_open()).unwrap();
    assert_eq!(meters.collect().series(&BREAKER_STATE), []);
}

#[tokio::test(start_paused = true)]
async fn a_bulkhead_exports_its_limit_slots_in_use_and_queue() {
    let meters = Meters::new();
    let (_module, pipeline) = metered(&meters, Policy::named("p").bulkhead(BulkheadSpec::fixed(2).queue(5)));
    let calls: Vec<_> = (0..3).map(|_| Box::pin(pipeline.run(|| after(SECOND, Ok(1))))).collect();
    let together = futures_util::future::join_all(calls);
    let mut together = std::pin::pin!(together);
    assert!(poll_once(together.as_mut()).is_pending());
    let shown = || {
        let seen = meters.collect();
        [BULKHEAD_LIMIT, BULKHEAD_IN_FLIGHT, BULKHEAD_QUEUE_DEPTH].map(|named| seen.value(&named, &[P, R]).unwrap())
    };
    assert_eq!(shown(), [2.0, 2.0, 1.0]);
    together.await;
    assert_eq!(shown(), [2.0, 0.0, 0.0]);
}

#[tokio::test]
async fn a_rate_limit_exports_the_permits_that_are_left() {
    let (meters, clock) = (Meters::new(), Clock::manual());
    let policy = Policy::named("p").rate_limit(RateLimitSpec::per_second(10));
    let module = builder(policy).clock(clock.clone()).metered_by(meters.metrics()).build().unwrap();
    for _ in 0..4 {
        module.run("p", "r", ok).await.unwrap();
    }
    assert_eq!(meters.collect().value(&RATE_LIMIT_REMAINING, &[P, R]), Some(6.0));
    clock.advance(300 * MS);
    assert_eq!(meters.collect().value(&RATE_LIMIT_REMAINING, &[P, R]), Some(9.0));
}

#[tokio::test(start_paused = true)]
async fn a_lever_is_exported_while_it_is_pulled() {
    let meters = Meters::new();
    let (module, _) = metered(&meters, Policy::named("p"));
    module.pull("p", LeverSpec::force_open().without_retries()).unwrap();
    module.pull("*", LeverSpec::default().without_hedging()).unwrap();
    let seen = meters.collect();
    assert_eq!(seen.value(&LEVER, &[P, ("lever", "force_open")]), Some(1.0));
    assert_eq!(seen.value(&LEVER, &[P, ("lever", "retries_off")]), Some(1.0));
    assert_eq!(seen.value(&LEVER, &[("policy", "*"), ("lever", "hedging_off")]), Some(1.0));
    assert_eq!(seen.series(&LEVER).len(), 3);
    assert!(module.release("p") && module.release("*"));
    assert_eq!(meters.collect().series(&LEVER), []);
}

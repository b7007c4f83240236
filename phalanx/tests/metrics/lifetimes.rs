//! Lifetimes: metrics never keep a module alive, and end with it.

use std::sync::{Arc, Weak};

use phalanx::policy::LeverSpec;
use phalanx::telemetry::metrics::names::*;
use phalanx::*;

use crate::meters::Meters;
use crate::support::*;
use crate::{metered, ok};

/// An observer that shows whether its module still exists.
struct LifetimeProbe(#[allow(dead_code)] Arc<()>);

impl Observer for LifetimeProbe {
    fn on_event(&self, _: &Event<'_>) {}
}

fn stages() -> Policy {
    Policy::named("p")
        .rate_limit(RateLimitSpec::per_second(10))
        .bulkhead(BulkheadSpec::fixed(3))
        .breaker(BreakerSpec::consecutive_failures(1))
        .hedge(HedgeSpec::after(SECOND))
        .idempotent()
}

#[tokio::test(start_paused = true)]
async fn a_dropped_module_ends_its_observable_series_and_is_freed() {
    let meters = Meters::new();
    let life = Arc::new(());
    let left: Weak<()> = Arc::downgrade(&life);
    let module = builder(stages()).observer(LifetimeProbe(life)).metered_by(meters.metrics()).build().unwrap();
    module.run("p", "r", ok).await.unwrap();
    module.pull("p", LeverSpec::force_open()).unwrap();
    let pulled = [EXECUTIONS, BREAKER_STATE, BULKHEAD_LIMIT, RATE_LIMIT_REMAINING, HEDGE_DELAY, LEVER];
    let seen = meters.collect();
    assert!(pulled.iter().all(|named| !seen.series(named).is_empty()), "{seen:?}");
    drop(module);
    assert!(left.upgrade().is_none(), "the module is not freed");
    let seen = meters.collect();
    assert!(pulled.iter().all(|named| seen.series(named).is_empty()), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pipeline_that_outlives_its_module_is_still_counted() {
    let meters = Meters::new();
    let (module, pipeline) = metered(&meters, stages());
    drop(module);
    pipeline.run(ok).await.unwrap();
    let one = [("policy", "p"), ("route", "r"), ("outcome", "success")];
    let ended = [one[0], one[1], one[2], ("source", "local")];
    let seen = meters.collect();
    assert_eq!(seen.histogram(&DURATION, &one).map(|(count, _)| count), Some(1));
    assert_eq!(seen.value(&EXECUTIONS, &ended), Some(1.0));
    drop(pipeline);
    assert_eq!(meters.collect().series(&EXECUTIONS), [], "the series ends with the pipeline");
}

#[tokio::test(start_paused = true)]
async fn modules_with_the_same_metrics_are_added_up() {
    let meters = Meters::new();
    let metrics = meters.metrics();
    let modules = [(); 2].map(|()| builder(stages()).metered_by(metrics.clone()).build().unwrap());
    for module in &modules {
        module.run("p", "r", ok).await.unwrap();
    }
    let seen = meters.collect();
    let both = [("policy", "p"), ("route", "r")];
    let ended = [("policy", "p"), ("route", "r"), ("outcome", "success"), ("source", "local")];
    assert_eq!(seen.value(&EXECUTIONS, &ended), Some(2.0));
    assert_eq!(seen.value(&BULKHEAD_LIMIT, &both), Some(6.0));
}

#[tokio::test(start_paused = true)]
async fn a_retuned_policy_keeps_its_series() {
    let meters = Meters::new();
    let (module, pipeline) = metered(&meters, stages());
    pipeline.run(ok).await.unwrap();
    module.retune(stages().bulkhead(BulkheadSpec::fixed(9))).unwrap();
    pipeline.run(ok).await.unwrap();
    let seen = meters.collect();
    let ended = [("policy", "p"), ("route", "r"), ("outcome", "success"), ("source", "local")];
    assert_eq!(seen.value(&EXECUTIONS, &ended), Some(2.0));
    assert_eq!(seen.value(&BULKHEAD_LIMIT, &[("policy", "p"), ("route", "r")]), Some(9.0));
}

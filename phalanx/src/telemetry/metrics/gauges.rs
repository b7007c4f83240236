//! Gauges: state that is read when metrics are collected. Calls pay nothing for them, and no store is queried.
//!
//! An SDK keeps callbacks for ever, so they hold the recorder weakly: when its modules and their pipelines are gone they
//! report nothing.
//! Pipelines that share a series ([`OTHER`](super::OTHER)) are combined: slots and breakers are added, permits are the
//! minimum and delays the maximum.

use std::sync::{Arc, Weak};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use phalanx_core::breaker::{Override, Phase};
use phalanx_core::engine::Engine;

use super::labels::label;
use super::names::{self, Named};
use super::recorder::Recorder;
use super::series::phase_number;
use crate::module::Pipeline;

/// Registers the callbacks.
pub(super) fn register(meter: &Meter, recorder: &Arc<Recorder>) {
    let gauge = |named: Named, observe: fn(&Recorder, &dyn AsyncInstrument<u64>)| {
        let weak = Arc::downgrade(recorder);
        let builder = meter.u64_observable_gauge(named.name).with_unit(named.unit).with_description(named.meaning);
        builder.with_callback(move |to| read(&weak, to, observe)).build();
    };
    gauge(names::BREAKER_STATE, breakers);
    gauge(names::BULKHEAD_LIMIT, |recorder, to| slots(recorder, to, |view| view.limit));
    gauge(names::BULKHEAD_IN_FLIGHT, |recorder, to| slots(recorder, to, |view| view.in_use));
    gauge(names::BULKHEAD_QUEUE_DEPTH, |recorder, to| slots(recorder, to, |view| view.waiting));
    gauge(names::RATE_LIMIT_REMAINING, permits);
    gauge(names::LEVER, levers);
    #[cfg(feature = "redis")]
    gauge(names::STORE_DEGRADED, store::degraded);
    #[cfg(feature = "redis")]
    gauge(names::STORE_PUSH_LOST, store::push_lost);
    #[cfg(feature = "redis")]
    gauge(names::BREAKER_ODD_REPLICA, store::odd_breakers);
    #[cfg(feature = "redis")]
    gauge(names::RATE_LIMIT_LEASED, store::leased_permits);
    #[cfg(feature = "redis")]
    gauge(names::STORE_MODE, store::modes);
    #[cfg(feature = "redis")]
    gauge(names::REPLICAS, store::replicas);

    #[cfg(feature = "redis")]
    {
        let weak = Arc::downgrade(recorder);
        let named = names::STORE_DEGRADED_DECISIONS;
        let builder = meter.u64_observable_counter(named.name).with_unit(named.unit).with_description(named.meaning);
        builder.with_callback(move |to| read(&weak, to, store::degraded_decisions)).build();
        let weak = Arc::downgrade(recorder);
        let named = names::RATE_LIMIT_LEASE_PERMITS;
        let builder = meter.u64_observable_counter(named.name).with_unit(named.unit).with_description(named.meaning);
        builder.with_callback(move |to| read(&weak, to, store::lease_permits)).build();
    }

    let weak = Arc::downgrade(recorder);
    let named = names::EXECUTIONS;
    let builder = meter.u64_observable_counter(named.name).with_unit(named.unit).with_description(named.meaning);
    builder.with_callback(move |to| read(&weak, to, executions)).build();

    let weak = Arc::downgrade(recorder);
    let named = names::HEDGE_DELAY;
    let builder = meter.f64_observable_gauge(named.name).with_unit(named.unit).with_description(named.meaning);
    builder.with_callback(move |to| read(&weak, to, hedge_delays)).build();
}

fn read<T>(recorder: &Weak<Recorder>, to: &dyn AsyncInstrument<T>, observe: fn(&Recorder, &dyn AsyncInstrument<T>)) {
    if let Some(recorder) = recorder.upgrade() {
        observe(&recorder, to);
    }
}

fn executions(recorder: &Recorder, to: &dyn AsyncInstrument<u64>) {
    for series in recorder.all_series() {
        for (count, attributes) in series.ends() {
            to.observe(count, &attributes);
        }
    }
}

fn breakers(recorder: &Recorder, to: &dyn AsyncInstrument<u64>) {
    let one = |pipeline: &Pipeline| {
        let mut phases = [0_u64; 3];
        phases[phase_number(effective(pipeline.cached_phase()?))] = 1;
        Some(phases)
    };
    let sum = |a: [u64; 3], b: [u64; 3]| std::array::from_fn(|phase| a[phase] + b[phase]);
    for (series, phases) in recorder.collect(one, sum) {
        for (count, attributes) in phases.into_iter().zip(&series.by_phase) {
            to.observe(count, attributes);
        }
    }
}

/// The phase that calls see: that of the override, if one is set.
const fn effective((phase, overridden): (Phase, Option<Override>)) -> Phase {
    match overridden {
        Some(Override::Open) => Phase::Open,
        Some(Override::Closed | Override::Disabled) => Phase::Closed,
        Some(Override::MetricsOnly) | None => phase,
    }
}

fn slots(recorder: &Recorder, to: &dyn AsyncInstrument<u64>, which: fn(&crate::describe::BulkheadView) -> u32) {
    let one = |pipeline: &Pipeline| pipeline.bulkhead().map(|view| u64::from(which(&view)));
    for (series, value) in recorder.collect(one, |a, b| a + b) {
        to.observe(value, &series.attributes);
    }
}

fn permits(recorder: &Recorder, to: &dyn AsyncInstrument<u64>) {
    for (series, value) in recorder.collect(Pipeline::cached_permits, u64::min) {
        to.observe(value, &series.attributes);
    }
}

fn hedge_delays(recorder: &Recorder, to: &dyn AsyncInstrument<f64>) {
    let one = |pipeline: &Pipeline| pipeline.hedge_delay().map(|delay| delay.as_secs_f64());
    for (series, value) in recorder.collect(one, f64::max) {
        to.observe(value, &series.attributes);
    }
}

fn levers(recorder: &Recorder, to: &dyn AsyncInstrument<u64>) {
    for (policy, lever) in recorder.modules().iter().flat_map(Engine::levers) {
        let policy = KeyValue::new(names::POLICY, label(&policy).into_owned());
        for pulled in lever.pulled() {
            to.observe(1, &[KeyValue::new(names::LEVER_PULLED, pulled), policy.clone()]);
        }
    }
}

/// Gauges of modules over Redis.
#[cfg(feature = "redis")]
mod store {
    use std::collections::BTreeMap;

    use super::*;
    use phalanx_store_redis::{LeasedPermits, RedisStore, StoreMode};

    pub(super) fn degraded(recorder: &Recorder, to: &dyn AsyncInstrument<u64>) {
        let is_degraded = |mode| matches!(mode, StoreMode::Partial | StoreMode::Degraded);
        let modes = of_modules(recorder, |store| Some(u64::from(is_degraded(store.mode()))));
        modes.into_iter().max().into_iter().for_each(|degraded| to.observe(degraded, &[]));
    }

    pub(super) fn push_lost(recorder: &Recorder, to: &dyn AsyncInstrument<u64>) {
        let lost = of_modules(recorder, |store| Some(u64::from(store.is_push_lost())));
        lost.into_iter().max().into_iter().for_each(|lost| to.observe(lost, &[]));
    }

    pub(super) fn odd_breakers(recorder: &Recorder, to: &dyn AsyncInstrument<u64>) {
        let odd = of_modules(recorder, |store| Some(u64::from(store.odd_breakers())));
        if !odd.is_empty() {
            to.observe(odd.into_iter().sum(), &[]);
        }
    }

    pub(super) fn leased_permits(recorder: &Recorder, to: &dyn AsyncInstrument<u64>) {
        let held = of_modules(recorder, |store| Some(store.leased_permits().held));
        if !held.is_empty() {
            to.observe(held.into_iter().sum(), &[]);
        }
    }

    pub(super) fn lease_permits(recorder: &Recorder, to: &dyn AsyncInstrument<u64>) {
        let leases = of_modules(recorder, |store| Some(store.leased_permits()));
        let all = |read: fn(&LeasedPermits) -> u64| leases.iter().map(read).sum::<u64>();
        let counts =
            [("drawn", all(|it| it.drawn)), ("returned", all(|it| it.returned)), ("expired", all(|it| it.expired))];
        for (state, count) in counts.into_iter().filter(|_| !leases.is_empty()) {
            to.observe(count, &[KeyValue::new(names::STATE, state)]);
        }
    }

    pub(super) fn modes(recorder: &Recorder, to: &dyn AsyncInstrument<u64>) {
        let modes = of_modules(recorder, |store| Some(store.mode()));
        for (mode, name) in [
            (StoreMode::Connecting, "connecting"),
            (StoreMode::Shared, "shared"),
            (StoreMode::Partial, "partial"),
            (StoreMode::Degraded, "degraded"),
        ] {
            let count = modes.iter().filter(|it| **it == mode).count() as u64;
            if !modes.is_empty() {
                to.observe(count, &[KeyValue::new(names::MODE, name)]);
            }
        }
    }

    pub(super) fn degraded_decisions(recorder: &Recorder, to: &dyn AsyncInstrument<u64>) {
        let mut sums = BTreeMap::<&str, u64>::new();
        for (reason, count) in recorder.degraded_decisions().iter().flat_map(|store| store.by_reason()) {
            *sums.entry(reason).or_default() += count;
        }
        for (reason, count) in sums {
            to.observe(count, &[KeyValue::new(names::REASON, reason)]);
        }
    }

    pub(super) fn replicas(recorder: &Recorder, to: &dyn AsyncInstrument<u64>) {
        let live = of_modules(recorder, |store| store.replicas().map(u64::from));
        live.into_iter().max().into_iter().for_each(|live| to.observe(live, &[]));
    }

    fn of_modules<T>(recorder: &Recorder, read: impl Fn(&RedisStore) -> Option<T>) -> Vec<T> {
        recorder.modules().iter().filter_map(|module| read(module.store().shared()?)).collect()
    }
}

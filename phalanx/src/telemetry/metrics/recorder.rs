//! The recorder: an observer that passes events of a route to its series and counts events of the whole process.

use std::fmt;
use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use parking_lot::Mutex;
use phalanx_core::engine::{Engine, WeakEngine};
use phalanx_core::event::{Event, EventKind, Observer};
use phalanx_core::key::StateKey;
#[cfg(feature = "redis")]
use phalanx_store_redis::DegradedDecisions;

use super::instruments::Instruments;
use super::labels::Labels;
use super::names::{ERROR_TYPE, RESULT};
use super::series::Series;
use crate::backend::Backend;
use crate::module::Pipeline;

/// Shared by all modules metered by clones of one [`Metrics`](super::Metrics). Modules and pipelines keep it alive; it keeps
/// none of them alive.
pub(super) struct Recorder {
    instruments: Arc<Instruments>,
    labels: Labels,
    modules: Mutex<Vec<WeakEngine<Backend>>>,
    /// Kept when their modules are gone, so that the counts do not decrease.
    #[cfg(feature = "redis")]
    degraded_decisions: Mutex<Vec<Arc<DegradedDecisions>>>,
}

impl Recorder {
    pub(super) fn new(meter: &Meter, max_routes: usize) -> Self {
        let instruments = Arc::new(Instruments::new(meter));
        Self {
            labels: Labels::new(max_routes, instruments.clone()),
            instruments,
            modules: Mutex::default(),
            #[cfg(feature = "redis")]
            degraded_decisions: Mutex::default(),
        }
    }

    pub(super) fn watch(&self, engine: &Engine<Backend>) {
        let mut modules = self.modules.lock();
        modules.retain(|module| module.upgrade().is_some());
        modules.push(engine.downgrade());
        #[cfg(feature = "redis")]
        if let Some(store) = engine.store().shared() {
            self.degraded_decisions.lock().extend(store.degraded_decisions());
            self.instruments.store_slowdowns.add(0, &[]); // so that the first one is an increase
            self.instruments.fleet_lapsed.add(0, &[]);
        }
    }

    /// Returns the counts of decisions without the shared store, of all modules so far.
    #[cfg(feature = "redis")]
    pub(super) fn degraded_decisions(&self) -> Vec<Arc<DegradedDecisions>> {
        self.degraded_decisions.lock().clone()
    }

    /// Returns the modules that are still in use.
    pub(super) fn modules(&self) -> Vec<Engine<Backend>> {
        self.modules.lock().iter().filter_map(WeakEngine::upgrade).collect()
    }

    pub(super) fn all_series(&self) -> Vec<Arc<Series>> {
        self.labels.all()
    }

    /// Reads a value from every pipeline, and combines the values of pipelines that share a series.
    pub(super) fn collect<T: Copy>(
        &self,
        read: impl Fn(&Pipeline) -> Option<T>,
        combine: impl Fn(T, T) -> T,
    ) -> impl Iterator<Item = (Arc<Series>, T)> {
        let mut seen: Vec<Option<(Arc<Series>, T)>> = Vec::new();
        for pipeline in self.modules().iter().flat_map(Engine::pipelines) {
            let Some(value) = read(&pipeline) else { continue };
            let series = self.labels.series(pipeline.key());
            let number = series.number;
            if seen.len() <= number {
                seen.resize_with(number + 1, || None);
            }
            let before = seen[number].as_ref().map(|(_, before)| *before);
            seen[number] = Some((series, before.map_or(value, |before| combine(before, value))));
        }
        seen.into_iter().flatten()
    }
}

impl Observer for Recorder {
    fn on_event(&self, event: &Event<'_>) {
        if let Some(key) = event.key {
            return self.labels.series(key).on_event(event);
        }
        let to = &*self.instruments;
        match event.kind {
            EventKind::StoreRoundTrip { took, failed } => {
                to.store_duration.record(took.as_secs_f64(), &[]);
                if let Some(error) = failed {
                    to.store_errors.add(1, &[KeyValue::new(ERROR_TYPE, error.to_owned())]);
                }
            }
            EventKind::StoreSlow { .. } => to.store_slowdowns.add(1, &[]),
            EventKind::StoreDegraded { .. } => to.store_outages.add(1, &[]),
            EventKind::ConfigApplied { .. } => to.config_reloads.add(1, &[KeyValue::new(RESULT, "applied")]),
            EventKind::ConfigRejected { .. } => to.config_reloads.add(1, &[KeyValue::new(RESULT, "rejected")]),
            _ => {}
        }
    }
}

/// The observer of a module: the recorder, with an observer per pipeline.
pub(super) struct ModuleObserver(pub(super) Arc<Recorder>);

impl Observer for ModuleObserver {
    fn on_event(&self, event: &Event<'_>) {
        self.0.on_event(event);
    }

    fn for_route(&self, key: &StateKey) -> Option<Arc<dyn Observer>> {
        Some(Arc::new(PipelineObserver { series: self.0.labels.series(key), _recorder: self.0.clone() }))
    }
}

/// The observer of one pipeline. It may outlive its module, and keeps the recorder alive, through which its counts are read.
struct PipelineObserver {
    series: Arc<Series>,
    _recorder: Arc<Recorder>,
}

impl Observer for PipelineObserver {
    #[inline]
    fn on_event(&self, event: &Event<'_>) {
        self.series.on_event(event);
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("labels", &self.labels).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use opentelemetry::metrics::MeterProvider;
    use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
    use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};

    use super::*;

    /// Returns what the recorder counted for these events, as `name attributes value`.
    fn counted(events: &[EventKind<'_>]) -> Vec<String> {
        counted_of(None, events)
    }

    /// The same, for events of one policy and route.
    fn counted_of(key: Option<&StateKey>, events: &[EventKind<'_>]) -> Vec<String> {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let recorder = Recorder::new(&provider.meter("phalanx"), 10);
        events.iter().for_each(|kind| recorder.on_event(&Event { key, kind: *kind }));
        provider.force_flush().unwrap();
        let mut lines = Vec::new();
        let finished = exporter.get_finished_metrics().unwrap();
        for metric in finished.iter().flat_map(|all| all.scope_metrics()).flat_map(|scope| scope.metrics()) {
            let pair = |pair: &KeyValue| format!("{}={}", pair.key, pair.value);
            match metric.data() {
                AggregatedMetrics::U64(MetricData::Sum(sum)) => lines.extend(sum.data_points().map(|point| {
                    format!(
                        "{} {:?} {}",
                        metric.name(),
                        point.attributes().map(pair).collect::<Vec<_>>(),
                        point.value()
                    )
                })),
                AggregatedMetrics::F64(MetricData::Histogram(histogram)) => lines.extend(
                    histogram.data_points().map(|point| format!("{} {} {}", metric.name(), point.count(), point.sum())),
                ),
                _ => {}
            }
        }
        lines.sort();
        lines
    }

    #[test]
    fn round_trips_are_timed_and_failed_ones_are_counted_by_error() {
        let (took, quick) = (Duration::from_millis(250), Duration::from_millis(500));
        let events = [
            EventKind::StoreRoundTrip { took, failed: None },
            EventKind::StoreRoundTrip { took: quick, failed: Some("timeout") },
            EventKind::StoreRoundTrip { took: quick, failed: Some("READONLY") },
            EventKind::StoreRoundTrip { took: quick, failed: Some("timeout") },
            EventKind::StoreDegraded { reason: "timeout" },
            EventKind::StoreSlow { share: 0.02 },
        ];
        let expected = [
            "phalanx.store.duration 4 1.75",
            "phalanx.store.errors [\"error.type=READONLY\"] 1",
            "phalanx.store.errors [\"error.type=timeout\"] 2",
            "phalanx.store.outages [] 1",
            "phalanx.store.slowdowns [] 1",
        ];
        assert_eq!(counted(&events), expected);
    }

    #[test]
    fn calls_without_a_share_of_the_fleets_slots_are_counted() {
        let events = [EventKind::FleetShareLapsed { calls: 3 }, EventKind::FleetShareLapsed { calls: 4 }];
        assert_eq!(counted_of(Some(&StateKey::new("p", "r")), &events), ["phalanx.bulkhead.fleet.lapsed [] 7"]);
    }

    #[test]
    fn reloads_are_counted_by_result() {
        let applied = EventKind::ConfigApplied { changed: 2 };
        let rejected = EventKind::ConfigRejected { reason: "policies.p.timeout must be more than zero" };
        let expected = [
            "phalanx.config.reloads [\"phalanx.result=applied\"] 2",
            "phalanx.config.reloads [\"phalanx.result=rejected\"] 1",
        ];
        assert_eq!(counted(&[applied, rejected, applied]), expected);
    }
}

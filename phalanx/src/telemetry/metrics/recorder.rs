//! Who listens for a module's metrics: hands every key to its series, and counts what concerns no key.

use std::fmt;
use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use parking_lot::Mutex;
use phalanx_core::engine::{Engine, WeakEngine};
use phalanx_core::event::{Event, EventKind, Observer};
use phalanx_core::key::StateKey;

use super::instruments::Instruments;
use super::labels::Labels;
use super::names::{ERROR_TYPE, RESULT};
use super::series::Series;
use crate::backend::Backend;
use crate::module::Pipeline;

/// What all modules metered by one [`Metrics`](super::Metrics) share. Modules and their pipelines hold it, and it
/// holds none of them alive.
pub(super) struct Recorder {
    instruments: Arc<Instruments>,
    labels: Labels,
    modules: Mutex<Vec<WeakEngine<Backend>>>,
}

impl Recorder {
    pub(super) fn new(meter: &Meter, max_routes: usize) -> Self {
        let instruments = Arc::new(Instruments::new(meter));
        Self { labels: Labels::new(max_routes, instruments.clone()), instruments, modules: Mutex::default() }
    }

    pub(super) fn watch(&self, engine: &Engine<Backend>) {
        let mut modules = self.modules.lock();
        modules.retain(|module| module.upgrade().is_some());
        modules.push(engine.downgrade());
    }

    /// The modules that are still in use.
    pub(super) fn modules(&self) -> Vec<Engine<Backend>> {
        self.modules.lock().iter().filter_map(WeakEngine::upgrade).collect()
    }

    pub(super) fn all_series(&self) -> Vec<Arc<Series>> {
        self.labels.all()
    }

    /// Looks at every pipeline; those that share a series are put together.
    pub(super) fn look<T: Copy>(
        &self,
        look: impl Fn(&Pipeline) -> Option<T>,
        together: impl Fn(T, T) -> T,
    ) -> impl Iterator<Item = (Arc<Series>, T)> {
        let mut seen: Vec<Option<(Arc<Series>, T)>> = Vec::new();
        for pipeline in self.modules().iter().flat_map(Engine::pipelines) {
            let Some(value) = look(&pipeline) else { continue };
            let series = self.labels.series(pipeline.key());
            let number = series.number;
            if seen.len() <= number {
                seen.resize_with(number + 1, || None);
            }
            let before = seen[number].as_ref().map(|(_, before)| *before);
            seen[number] = Some((series, before.map_or(value, |before| together(before, value))));
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
                if let Some(word) = failed {
                    to.store_errors.add(1, &[KeyValue::new(ERROR_TYPE, word.to_owned())]);
                }
            }
            EventKind::StoreDegraded { .. } => to.store_outages.add(1, &[]),
            EventKind::ConfigApplied { .. } => to.config_reloads.add(1, &[KeyValue::new(RESULT, "applied")]),
            EventKind::ConfigRejected { .. } => to.config_reloads.add(1, &[KeyValue::new(RESULT, "rejected")]),
            _ => {}
        }
    }
}

/// What a module is given: the recorder, and for each pipeline one who keeps it.
pub(super) struct Listening(pub(super) Arc<Recorder>);

impl Observer for Listening {
    fn on_event(&self, event: &Event<'_>) {
        self.0.on_event(event);
    }

    fn for_route(&self, key: &StateKey) -> Option<Arc<dyn Observer>> {
        Some(Arc::new(OnKey { series: self.0.labels.series(key), _recorder: self.0.clone() }))
    }
}

/// Who listens on one pipeline. It may outlive its module, and what it counts is read through the recorder.
struct OnKey {
    series: Arc<Series>,
    _recorder: Arc<Recorder>,
}

impl Observer for OnKey {
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

    /// What the recorder counted of these events, as `name attributes value`.
    fn counted(events: &[EventKind<'_>]) -> Vec<String> {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let recorder = Recorder::new(&provider.meter("phalanx"), 10);
        events.iter().for_each(|what| recorder.on_event(&Event { key: None, kind: *what }));
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
    fn round_trips_are_timed_and_those_that_fail_are_counted_by_what_went_wrong() {
        let (took, quick) = (Duration::from_millis(250), Duration::from_millis(500));
        let events = [
            EventKind::StoreRoundTrip { took, failed: None },
            EventKind::StoreRoundTrip { took: quick, failed: Some("timeout") },
            EventKind::StoreRoundTrip { took: quick, failed: Some("READONLY") },
            EventKind::StoreRoundTrip { took: quick, failed: Some("timeout") },
            EventKind::StoreDegraded { reason: "timeout" },
        ];
        let expected = [
            "phalanx.store.duration 4 1.75",
            "phalanx.store.errors [\"error.type=READONLY\"] 1",
            "phalanx.store.errors [\"error.type=timeout\"] 2",
            "phalanx.store.outages [] 1",
        ];
        assert_eq!(counted(&events), expected);
    }

    #[test]
    fn reloads_are_counted_by_what_became_of_them() {
        let applied = EventKind::ConfigApplied { changed: 2 };
        let rejected = EventKind::ConfigRejected { reason: "policies.p.timeout must be more than zero" };
        let expected = [
            "phalanx.config.reloads [\"phalanx.result=applied\"] 2",
            "phalanx.config.reloads [\"phalanx.result=rejected\"] 1",
        ];
        assert_eq!(counted(&[applied, rejected, applied]), expected);
    }
}

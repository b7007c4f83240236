//! Who listens for a module's metrics: hands every key to its series, and counts what concerns no key.

use std::fmt;
use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use parking_lot::Mutex;
use phalanx_core::engine::{Engine, WeakEngine};
use phalanx_core::event::{Event, Observer, What};
use phalanx_core::key::StateKey;

use super::instruments::Instruments;
use super::labels::Labels;
use super::names::{ERROR_TYPE, RESULT};
use super::series::Series;
use crate::backend::Backend;
use crate::module::Pipeline;

/// What all modules metered by one [`Metrics`](super::Metrics) share. Modules hold it, and it holds none of them alive.
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
        match event.what {
            What::StoreAsked { took, failed } => {
                to.store_duration.record(took.as_secs_f64(), &[]);
                if let Some(word) = failed {
                    to.store_errors.add(1, &[KeyValue::new(ERROR_TYPE, word.to_owned())]);
                }
            }
            What::StoreDegraded { .. } => to.store_outages.add(1, &[]),
            What::ConfigApplied { .. } => to.config_reloads.add(1, &[KeyValue::new(RESULT, "applied")]),
            What::ConfigRefused { .. } => to.config_reloads.add(1, &[KeyValue::new(RESULT, "refused")]),
            _ => {}
        }
    }

    fn listen_on(&self, key: &StateKey) -> Option<Arc<dyn Observer>> {
        Some(self.labels.series(key))
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("labels", &self.labels).finish_non_exhaustive()
    }
}

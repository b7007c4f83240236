//! Metrics through OpenTelemetry: `ResilienceModule::in_memory().metered()`.
//!
//! What happens is counted where it happens, what stands is read when somebody collects. A finished call costs one
//! count of this process' own and one `record` of the duration, with attributes made when its pipeline was: nothing is
//! looked up or allocated. The duration is recorded inside the caller's context, so an SDK that takes exemplars finds
//! the span.
//!
//! Attributes are bounded: beyond [`Metrics::max_routes`] pairs of policy and route, new ones share the route
//! [`OTHER`]. [`names`] lists every instrument.

mod gauges;
mod instruments;
mod labels;
pub mod names;
mod recorder;
mod series;
mod tally;
mod timed;

use std::sync::{Arc, OnceLock};

use opentelemetry::global;
use opentelemetry::metrics::Meter;
use phalanx_core::engine::Engine;

pub use self::labels::OTHER;
use self::recorder::{Listening, Recorder};
use crate::backend::Backend;
use crate::module::ModuleBuilder;

/// Pairs of policy and route that have series of their own, unless told otherwise.
pub const DEFAULT_MAX_ROUTES: usize = 100;

/// Where a module's metrics go, and how many series there may be. Clones are the same metrics: modules of one process
/// that are metered by clones of one add up; those that are not must have policies of different names.
#[derive(Clone, Debug)]
pub struct Metrics {
    meter: Meter,
    max_routes: usize,
    /// Made when the first module is metered.
    recorder: Arc<OnceLock<Arc<Recorder>>>,
}

impl Metrics {
    /// Metrics through this meter.
    pub fn of(meter: Meter) -> Self {
        Self { meter, max_routes: DEFAULT_MAX_ROUTES, recorder: Arc::default() }
    }

    /// Metrics through the process' global meter provider, as it is now: set that first.
    pub fn global() -> Self {
        Self::of(global::meter("phalanx"))
    }

    /// How many pairs of policy and route have series of their own; the first ones seen. Beyond it, those of one policy
    /// share a series with the route [`OTHER`]; and beyond as many policies, all others share the policy of that name.
    /// Default 100. For metrics that no module uses yet.
    #[must_use]
    pub fn max_routes(self, routes: usize) -> Self {
        Self { max_routes: routes, recorder: Arc::default(), ..self }
    }

    fn recorder(&self) -> &Arc<Recorder> {
        self.recorder.get_or_init(|| {
            let recorder = Arc::new(Recorder::new(&self.meter, self.max_routes));
            gauges::register(&self.meter, &recorder);
            recorder
        })
    }

    /// Reads this module's state from now on, for as long as somebody else uses it.
    pub(crate) fn watch(&self, engine: &Engine<Backend>) {
        self.recorder().watch(engine);
    }
}

/// Metrics of the module.
impl ModuleBuilder {
    /// Metrics through OpenTelemetry's global meter provider, which must be set before: see [`Metrics::global`].
    pub fn metered(self) -> Self {
        self.metered_by(Metrics::global())
    }

    /// Metrics through a meter of your choice.
    pub fn metered_by(mut self, metrics: Metrics) -> Self {
        let recorder = metrics.recorder().clone();
        self.metrics.push(metrics);
        self.shared_observer(Arc::new(Listening(recorder)))
    }
}

//! Metrics through OpenTelemetry: `ResilienceModule::in_memory().metered()`.
//!
//! Events are counted when they happen, state is read when metrics are collected. A finished call costs one increment of a
//! local counter and one `record` of the duration, with attributes prepared when its pipeline was created: nothing is looked
//! up or allocated. The duration is recorded inside the caller's context, so that an SDK with exemplars finds the span.
//!
//! Attributes are bounded: beyond [`Metrics::max_routes`] pairs of policy and route, new ones share the route [`OTHER`].
//! [`names`] lists every instrument.

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
use self::recorder::{ModuleObserver, Recorder};
use crate::backend::Backend;
use crate::module::ModuleBuilder;

/// The default of [`Metrics::max_routes`].
pub const DEFAULT_MAX_ROUTES: usize = 100;

/// The meter that a module's metrics go to, and the bound on the number of series.
///
/// Clones record into the same series, so modules metered by clones of one `Metrics` add up. Modules with separate `Metrics`
/// on one meter must have policies with different names.
///
/// # Examples
///
/// ```
/// use opentelemetry::metrics::MeterProvider;
/// use opentelemetry_sdk::metrics::SdkMeterProvider;
/// use phalanx::telemetry::Metrics;
/// use phalanx::{Policy, ResilienceModule};
///
/// let provider = SdkMeterProvider::builder().build(); // with the readers of your service
/// let metrics = Metrics::of(provider.meter("my-service")).max_routes(500);
/// let module = ResilienceModule::in_memory().policy(Policy::named("search")).metered_by(metrics).build()?;
/// assert!(module.policies().contains(&"search".to_owned()));
/// # Ok::<(), phalanx::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Metrics {
    meter: Meter,
    max_routes: usize,
    /// Created when the first module is metered.
    recorder: Arc<OnceLock<Arc<Recorder>>>,
}

impl Metrics {
    /// Records through this meter.
    pub fn of(meter: Meter) -> Self {
        Self { meter, max_routes: DEFAULT_MAX_ROUTES, recorder: Arc::default() }
    }

    /// Records through the global meter provider, which must be set before.
    pub fn global() -> Self {
        Self::of(global::meter("phalanx"))
    }

    /// Sets how many pairs of policy and route have their own series, first come first served. Default: 100.
    ///
    /// Further routes of a policy share a series with the route [`OTHER`]; beyond as many policies, all further policies
    /// share the policy [`OTHER`]. Call it before a module uses these metrics.
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

    /// Reads the state of this module at each collection, as long as the module is in use.
    pub(crate) fn watch(&self, engine: &Engine<Backend>) {
        self.recorder().watch(engine);
    }
}

/// Metrics of the module.
#[cfg_attr(docsrs, doc(cfg(feature = "otel")))]
impl ModuleBuilder {
    /// Records metrics through OpenTelemetry's global meter provider, which must be set before: see [`Metrics::global`].
    pub fn metered(self) -> Self {
        self.metered_by(Metrics::global())
    }

    /// Records metrics through a meter of your choice.
    pub fn metered_by(mut self, metrics: Metrics) -> Self {
        let recorder = metrics.recorder().clone();
        self.metrics.push(metrics);
        self.shared_observer(Arc::new(ModuleObserver(recorder)))
    }
}

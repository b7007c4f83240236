//! A page of metrics for Prometheus, over `opentelemetry-prometheus`; for any HTTP server, or as a route of axum.
//!
//! ```
//! use phalanx::telemetry::prometheus::Page;
//! use phalanx::{Policy, ResilienceModule};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let page = Page::install()?; // a meter provider for the whole process; before any module is metered
//! let module = ResilienceModule::in_memory().policy(Policy::named("payments")).metered().build()?;
//! let (content_type, text) = page.render(); // what GET /metrics answers
//! # assert!(content_type.starts_with("text/plain"));
//! # drop((module, text));
//! # Ok(())
//! # }
//! ```
//!
//! Who has a meter provider already adds [`reader`] to it, and who has a registry already shows it with [`Page::of`].

use opentelemetry::global;
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};

/// Where Prometheus looks unless told otherwise.
pub const PATH: &str = "/metrics";

/// A registry, and what it holds as text. Cheap to clone; clones show the same.
#[derive(Clone, Debug)]
pub struct Page {
    registry: Registry,
    provider: Option<SdkMeterProvider>,
}

impl Page {
    /// A page with a meter provider of its own, for [`Page::meter`].
    ///
    /// # Errors
    /// What the exporter says.
    pub fn new() -> Result<Self, OTelSdkError> {
        let registry = Registry::new();
        let provider = SdkMeterProvider::builder().with_reader(reader(&registry)?).build();
        Ok(Self { registry, provider: Some(provider) })
    }

    /// The same, and its provider is the whole process' from now on.
    ///
    /// # Errors
    /// What the exporter says.
    pub fn install() -> Result<Self, OTelSdkError> {
        let page = Self::new()?;
        page.provider.iter().cloned().for_each(global::set_meter_provider);
        Ok(page)
    }

    /// A page of a registry that you fill yourself, with [`reader`] among others.
    pub const fn of(registry: Registry) -> Self {
        Self { registry, provider: None }
    }

    /// A meter whose instruments this page shows: its own, or the process' if the page has none of its own.
    pub fn meter(&self) -> Meter {
        self.provider.as_ref().map_or_else(|| global::meter("phalanx"), |provider| provider.meter("phalanx"))
    }

    /// The registry, for whatever else is to be on the page.
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The content type and the text. A family of metrics that cannot be written is left out.
    pub fn render(&self) -> (&'static str, String) {
        let mut text = String::new();
        for family in self.registry.gather() {
            let before = text.len();
            if TextEncoder::new().encode_utf8(&[family], &mut text).is_err() {
                text.truncate(before);
            }
        }
        (prometheus::TEXT_FORMAT, text)
    }
}

/// What a meter provider of yours needs to write into a registry:
/// `SdkMeterProvider::builder().with_reader(reader(&registry)?)`.
///
/// # Errors
/// What the exporter says.
pub fn reader(registry: &Registry) -> Result<PrometheusExporter, OTelSdkError> {
    opentelemetry_prometheus::exporter().with_registry(registry.clone()).build()
}

/// `GET /metrics` as a route of axum: `Router::new().merge(prometheus::route(&page))`.
#[cfg(feature = "axum")]
pub fn route<S: Clone + Send + Sync + 'static>(page: &Page) -> axum::Router<S> {
    let page = page.clone();
    let answer = move || {
        let (content_type, text) = page.render();
        std::future::ready(([(axum::http::header::CONTENT_TYPE, content_type)], text))
    };
    axum::Router::new().route(PATH, axum::routing::get(answer))
}

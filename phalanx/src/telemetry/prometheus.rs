//! A page of metrics for Prometheus, over `opentelemetry-prometheus`, for any HTTP server or as an axum route.
//!
//! # Examples
//!
//! ```
//! use phalanx::telemetry::prometheus::Page;
//! use phalanx::{Policy, ResilienceModule};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let page = Page::install()?; // sets the global meter provider; before any module is metered
//! let module = ResilienceModule::in_memory().policy(Policy::named("payments")).metered().build()?;
//! let (content_type, text) = page.render(); // the response to GET /metrics
//! # assert!(content_type.starts_with("text/plain"));
//! # drop((module, text));
//! # Ok(())
//! # }
//! ```
//!
//! With an existing meter provider, add [`reader`] to it; with an existing registry, render it with [`Page::of`].

use opentelemetry::global;
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_prometheus::PrometheusExporter;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Registry, TextEncoder};

/// The path that Prometheus scrapes by default.
pub const PATH: &str = "/metrics";

/// A Prometheus registry, rendered as text. Clones are cheap and render the same registry.
///
/// # Examples
///
/// ```
/// use phalanx::telemetry::Metrics;
/// use phalanx::telemetry::prometheus::Page;
/// use phalanx::{Kind, Policy, ResilienceModule};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let page = Page::new()?; // its own meter provider; the global one stays
/// let metrics = Metrics::of(page.meter());
/// let module = ResilienceModule::in_memory().policy(Policy::named("search")).metered_by(metrics).build()?;
/// assert!(module.run("search", "eu", || async { Ok::<_, Kind>(()) }).await.is_ok());
/// let (_, text) = page.render();
/// assert!(text.contains("phalanx_executions_total"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Page {
    registry: Registry,
    provider: Option<SdkMeterProvider>,
}

impl Page {
    /// Creates a page with its own meter provider, for [`Page::meter`].
    ///
    /// # Errors
    /// Returns the error of the exporter.
    pub fn new() -> Result<Self, OTelSdkError> {
        let registry = Registry::new();
        let provider = SdkMeterProvider::builder().with_reader(reader(&registry)?).build();
        Ok(Self { registry, provider: Some(provider) })
    }

    /// Creates a page and sets its meter provider as the global one.
    ///
    /// # Errors
    /// Returns the error of the exporter.
    pub fn install() -> Result<Self, OTelSdkError> {
        let page = Self::new()?;
        page.provider.iter().cloned().for_each(global::set_meter_provider);
        Ok(page)
    }

    /// Creates a page of an existing registry, which a [`reader`] or other exporters fill.
    pub const fn of(registry: Registry) -> Self {
        Self { registry, provider: None }
    }

    /// Returns a meter whose instruments this page renders: of its own provider, or else of the global one.
    pub fn meter(&self) -> Meter {
        self.provider.as_ref().map_or_else(|| global::meter("phalanx"), |provider| provider.meter("phalanx"))
    }

    /// Returns the registry, to add other collectors to the page.
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the content type and the text. A metric family that cannot be encoded is left out.
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

/// Creates a reader that exports a meter provider into a registry:
/// `SdkMeterProvider::builder().with_reader(reader(&registry)?)`.
///
/// # Errors
/// Returns the error of the exporter.
pub fn reader(registry: &Registry) -> Result<PrometheusExporter, OTelSdkError> {
    opentelemetry_prometheus::exporter().with_registry(registry.clone()).build()
}

/// Returns `GET /metrics` as an axum route: `Router::new().merge(prometheus::route(&page))`.
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub fn route<S: Clone + Send + Sync + 'static>(page: &Page) -> axum::Router<S> {
    let page = page.clone();
    let answer = move || {
        let (content_type, text) = page.render();
        std::future::ready(([(axum::http::header::CONTENT_TYPE, content_type)], text))
    };
    axum::Router::new().route(PATH, axum::routing::get(answer))
}

//! The five stages with telemetry: metrics through a real SDK with a Prometheus exporter, and tracing with a subscriber
//! whose filter disables Phalanx.

use std::error::Error;
use std::sync::Once;

use phalanx::telemetry::Metrics;
use phalanx::telemetry::prometheus::Page;
use phalanx::{Pipeline, ResilienceModule};
use tracing_subscriber::EnvFilter;

use super::five_stages;
use crate::contender::Caller;
use crate::operation::Operation;

/// A pipeline and the exporter of its metrics.
#[derive(Clone)]
struct Observed<O> {
    pipeline: Pipeline,
    operation: O,
    /// Kept, because metrics are collected only while the page exists.
    _page: Page,
}

impl<O: Operation> Caller for Observed<O> {
    async fn call(&mut self) -> bool {
        self.pipeline.run(self.operation).await.is_ok()
    }
}

/// The same stages as `ours::stack`.
pub(crate) fn stack<O: Operation>(operation: O) -> Result<impl Caller + Clone, Box<dyn Error>> {
    subscribe();
    let page = Page::new()?;
    let builder = ResilienceModule::in_memory().policy(five_stages()).traced().metered_by(Metrics::of(page.meter()));
    let module = builder.build()?;
    Ok(Observed { pipeline: module.pipeline("bench", "peer")?, operation, _page: page })
}

/// Installs a subscriber for the whole process, as services have, with a filter.
fn subscribe() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let filter = EnvFilter::new("info,phalanx=off,phalanx_core=off");
        // An already installed subscriber serves as well.
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::sink).try_init();
    });
}

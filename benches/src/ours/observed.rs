//! The five stages while somebody observes them: metrics through a real SDK with a Prometheus exporter behind it, and
//! tracing with a subscriber that is there but whose filter wants nothing of ours.

use std::error::Error;
use std::sync::Once;

use phalanx::telemetry::Metrics;
use phalanx::telemetry::prometheus::Page;
use phalanx::{Pipeline, ResilienceModule};
use tracing_subscriber::EnvFilter;

use super::five_stages;
use crate::contender::Caller;
use crate::operation::Operation;

/// A kept handle, and what collects its metrics.
#[derive(Clone)]
struct Observed<O> {
    pipeline: Pipeline,
    operation: O,
    /// Kept, or nobody would collect.
    _page: Page,
}

impl<O: Operation> Caller for Observed<O> {
    async fn call(&mut self) -> bool {
        self.pipeline.run(self.operation).await.is_ok()
    }
}

/// Every stage that `ours::stack` has.
pub(crate) fn stack<O: Operation>(operation: O) -> Result<impl Caller + Clone, Box<dyn Error>> {
    subscribe();
    let page = Page::new()?;
    let builder = ResilienceModule::in_memory().policy(five_stages()).traced().metered_by(Metrics::of(page.meter()));
    let module = builder.build()?;
    Ok(Observed { pipeline: module.pipeline("bench", "peer")?, operation, _page: page })
}

/// A subscriber for the whole process: services have one, and it is the filter that decides.
fn subscribe() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let filter = EnvFilter::new("info,phalanx=off,phalanx_core=off");
        // Somebody else's subscriber would do as well.
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::sink).try_init();
    });
}

//! The same policy as a tower layer around a service.

use std::error::Error;

use phalanx::ResilienceModule;
use phalanx_tower::ResilienceLayer;
use tower::Layer;

use super::five_stages;
use crate::contender::Caller;
use crate::operation::Operation;
use crate::peers::service::{ServiceCaller, serve};

/// The same stages as `peers::tower_resilience::stack`.
pub(crate) fn stack(operation: impl Operation) -> Result<impl Caller + Clone, Box<dyn Error>> {
    let module = ResilienceModule::in_memory().policy(five_stages()).build()?;
    let layer = ResilienceLayer::new(&module, "bench")?.route("peer")?.any_service();
    Ok(ServiceCaller(layer.layer(serve(operation))))
}

//! The `/metrics` page of a replica, with the feature `prometheus` and `--metrics`.

use std::error::Error;

use phalanx::ModuleBuilder;

use crate::args::ReplicaArgs;

#[cfg(feature = "prometheus")]
pub(crate) async fn install(builder: ModuleBuilder, args: &ReplicaArgs) -> Result<ModuleBuilder, Box<dyn Error>> {
    let Some(address) = args.metrics else { return Ok(builder) };
    let listener = tokio::net::TcpListener::bind(address).await?;
    let page = phalanx::telemetry::prometheus::Page::install()?;
    tokio::spawn(crate::metrics::serve(listener, page));
    Ok(builder.metered())
}

#[cfg(not(feature = "prometheus"))]
pub(crate) async fn install(builder: ModuleBuilder, _: &ReplicaArgs) -> Result<ModuleBuilder, Box<dyn Error>> {
    Ok(builder)
}

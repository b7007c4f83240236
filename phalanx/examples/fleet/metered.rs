//! A replica's page of metrics, where it was built with the feature `prometheus` and is told an address.

use std::error::Error;

use phalanx::ModuleBuilder;

use crate::args::Single;

#[cfg(feature = "prometheus")]
pub(crate) async fn shown(builder: ModuleBuilder, args: &Single) -> Result<ModuleBuilder, Box<dyn Error>> {
    let Some(address) = args.metrics else { return Ok(builder) };
    let listener = tokio::net::TcpListener::bind(address).await?;
    let page = phalanx::telemetry::prometheus::Page::install()?;
    tokio::spawn(crate::metrics::serve(listener, page));
    Ok(builder.metered())
}

#[cfg(not(feature = "prometheus"))]
pub(crate) async fn shown(builder: ModuleBuilder, _: &Single) -> Result<ModuleBuilder, Box<dyn Error>> {
    Ok(builder)
}

//! Builds the module, and watches a file of levers if there is one.

use std::error::Error;
use std::path::Path;

use phalanx::{ModuleBuilder, ResilienceModule};

/// The watcher, which must be kept for as long as the file is to be watched.
#[cfg(all(feature = "toml", feature = "reload"))]
pub(crate) type ConfigWatcher = Option<phalanx::config::ConfigWatcher>;

#[cfg(all(feature = "toml", feature = "reload"))]
pub(crate) fn build(
    builder: ModuleBuilder,
    file: Option<&Path>,
) -> Result<(ResilienceModule, ConfigWatcher), Box<dyn Error>> {
    let Some(file) = file else { return Ok((builder.build()?, None)) };
    let loader = phalanx::config::Config::loader().file(file);
    let module = builder.config(loader.load()?).build()?;
    let watcher = module.watch_config(loader)?;
    Ok((module, Some(watcher)))
}

#[cfg(not(all(feature = "toml", feature = "reload")))]
pub(crate) type ConfigWatcher = ();

#[cfg(not(all(feature = "toml", feature = "reload")))]
pub(crate) fn build(
    builder: ModuleBuilder,
    file: Option<&Path>,
) -> Result<(ResilienceModule, ConfigWatcher), Box<dyn Error>> {
    match file {
        Some(_) => Err("built without the features `toml` and `reload`".into()),
        None => Ok((builder.build()?, ())),
    }
}

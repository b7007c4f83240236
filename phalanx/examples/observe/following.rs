//! The module, and the file of levers that it follows while it runs, if there is one.

use std::error::Error;
use std::path::Path;

use phalanx::{ModuleBuilder, ResilienceModule};

/// What has to be kept for as long as the file is to be followed.
#[cfg(all(feature = "toml", feature = "reload"))]
pub(crate) type Following = Option<phalanx::config::Following>;

#[cfg(all(feature = "toml", feature = "reload"))]
pub(crate) fn build(
    builder: ModuleBuilder,
    file: Option<&Path>,
) -> Result<(ResilienceModule, Following), Box<dyn Error>> {
    let Some(file) = file else { return Ok((builder.build()?, None)) };
    let reader = phalanx::config::Config::reader().file(file);
    let module = builder.config(reader.read()?).build()?;
    let following = module.follow(reader)?;
    Ok((module, Some(following)))
}

#[cfg(not(all(feature = "toml", feature = "reload")))]
pub(crate) type Following = ();

#[cfg(not(all(feature = "toml", feature = "reload")))]
pub(crate) fn build(
    builder: ModuleBuilder,
    file: Option<&Path>,
) -> Result<(ResilienceModule, Following), Box<dyn Error>> {
    match file {
        Some(_) => Err("built without the features `toml` and `reload`".into()),
        None => Ok((builder.build()?, ())),
    }
}

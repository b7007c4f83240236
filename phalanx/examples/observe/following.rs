//! The module, and the file of levers that it follows while it runs, if there is one.

use std::error::Error;
use std::path::Path;

use phalanx::{ModuleBuilder, ResilienceModule};

/// What has to be kept for as long as the file is to be followed.
pub(crate) type Following = ();

pub(crate) fn build(
    builder: ModuleBuilder,
    file: Option<&Path>,
) -> Result<(ResilienceModule, Following), Box<dyn Error>> {
    match file {
        Some(_) => Err("built without the features `toml` and `reload`".into()),
        None => Ok((builder.build()?, ())),
    }
}

//! Files of this repository, by their path in it.

use std::path::{Path, PathBuf};

/// Where the repository begins.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

pub(crate) fn path(relative: &str) -> PathBuf {
    root().join(relative)
}

pub(crate) fn text(relative: &str) -> String {
    std::fs::read_to_string(path(relative)).unwrap_or_else(|error| panic!("{relative}: {error}"))
}

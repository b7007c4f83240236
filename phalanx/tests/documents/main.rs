//! The documents against the code: the JSON Schema, the reference file, the tuning guide.

#![cfg(all(feature = "schema", feature = "toml"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests may unwrap

mod check;
mod guide;
mod reference;
mod schema;
mod walk;

use std::path::{Path, PathBuf};

/// The folder of the documents.
fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Converts TOML to JSON, for the schema.
fn toml_as_json(text: &str) -> serde_json::Value {
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}"));
    serde_json::to_value(table).unwrap()
}

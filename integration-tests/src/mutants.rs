//! Mutation testing: `make mutants` changes one place of the code at a time and expects a test to fail.
//!
//! * [`lua`]: makes the mutants of a Lua script.
//! * [`lua_run`]: runs the in-process suites against each of them, in test binaries that are built once.
//! * [`rust_run`]: runs cargo-mutants on a sample of the Rust mutants.
//! * [`survivors`]: the listed mutants that no test can catch, each with its reason.

pub mod lua;
pub mod lua_run;
pub mod rust_run;
pub mod survivors;

use std::path::{Path, PathBuf};

/// Returns the root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

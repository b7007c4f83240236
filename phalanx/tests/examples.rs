//! The examples as a newcomer runs them: each ends by itself and says what it should.

#![allow(clippy::expect_used)] // a panic is how a test says no, in its helpers too

#[path = "examples/configure.rs"]
mod configure;
#[path = "examples/fleet.rs"]
mod fleet;
#[path = "examples/ports.rs"]
mod ports;
#[path = "examples/simulations.rs"]
mod simulations;

use std::process::Command;

/// The program of an example. All features and all packages, so that what `make test` has built is not built again; and
/// without what Cargo tells this test about its package, which would make Cargo build anew whatever asks for it.
fn cargo(example: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let told = std::env::vars_os().map(|(name, _)| name);
    for name in told.filter(|name| name.to_str().is_some_and(is_about_this_package)) {
        cargo.env_remove(name);
    }
    cargo.args(["run", "--quiet", "--locked", "--all-features", "--example", example, "--"]);
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    cargo
}

fn is_about_this_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// What it writes. Into a pipe it writes no colours.
fn run(mut example: Command) -> String {
    let output = example.output().expect("cargo runs");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    assert!(!text.contains('\u{1b}'), "escape codes in a pipe:\n{text}");
    text.into_owned()
}

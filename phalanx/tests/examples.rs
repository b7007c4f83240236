//! Runs the examples as a newcomer does: each ends by itself and prints what it should.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests may panic

#[path = "examples/configure.rs"]
mod configure;
#[path = "examples/fleet.rs"]
mod fleet;
#[path = "examples/ports.rs"]
mod ports;
#[path = "examples/simulations.rs"]
mod simulations;
#[path = "examples/small.rs"]
mod small;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The examples that the tests run.
const EXAMPLES: [&str; 22] = [
    "attribute",
    "breaker",
    "breaker_recovery",
    "bulkhead",
    "chaos_lever",
    "configure",
    "fallback",
    "fleet",
    "hedge",
    "hedge_demo",
    "layer",
    "own_store",
    "ports",
    "queue_demo",
    "rate_limit",
    "redis_outage",
    "reload",
    "retry",
    "scripted_retry",
    "shared_state",
    "tenants",
    "testing",
];

/// Builds all examples with one call of Cargo and returns the path of each program.
///
/// All features and all packages, so that nothing is built again that `make test` has built. The variables that Cargo sets
/// for this package are removed, because crates that depend on them would be rebuilt.
fn programs() -> &'static BTreeMap<String, PathBuf> {
    static PROGRAMS: OnceLock<BTreeMap<String, PathBuf>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_about_this_package)) {
            cargo.env_remove(name);
        }
        cargo.args(["build", "--quiet", "--locked", "--all-features", "--message-format=json"]);
        cargo.args(EXAMPLES.iter().flat_map(|name| ["--example", name]));
        let output = cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).output().expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().filter_map(program).collect()
    })
}

fn is_about_this_package(name: &str) -> bool {
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

/// The name and the path of the example that a message of Cargo is about.
fn program(message: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let target = &message["target"];
    let is_example = target["kind"].as_array()?.iter().any(|kind| kind == "example");
    is_example.then(|| Some((target["name"].as_str()?.to_owned(), message["executable"].as_str()?.into())))?
}

/// The command that runs an example.
fn example(name: &str) -> Command {
    let mut command = Command::new(programs().get(name).unwrap_or_else(|| panic!("no example {name}")));
    // Tests run with PHALANX_TEST_REDIS and the like set; what the examples print must not depend on it.
    command.env_remove("REDIS_URL");
    command
}

/// Returns what an example prints. Into a pipe it prints no colours.
fn run(mut example: Command) -> String {
    let output = example.output().expect("the example runs");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    assert!(!text.contains('\u{1b}'), "escape codes in a pipe:\n{text}");
    text.into_owned()
}

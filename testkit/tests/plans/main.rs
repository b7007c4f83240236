//! Fault plans: tests A to E of the resiliency playbook, every expectation when it is not met, hostile plans, and the
//! evidence.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed test panics, also in helpers

mod evidence;
mod example;
mod hostile;
mod page;
mod playbook;
mod size;
mod unmet;

use std::path::{Path, PathBuf};

use phalanx::config::Config;
use phalanx_testkit::plan::{Evidence, Plan, Player};

/// The folder of the plans.
fn plans() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plans")
}

/// The dependency budget of the playbook, with load shedding and a policy for writes.
fn policies() -> Config {
    Config::loader().budget(plans().join("budget.csv")).file(plans().join("policies.toml")).load().unwrap()
}

/// Plays a file of the folder against these policies.
fn play(file: &str) -> Evidence {
    let plan = Plan::load(plans().join(file), &policies()).unwrap();
    Player::new(policies()).play(&plan).unwrap()
}

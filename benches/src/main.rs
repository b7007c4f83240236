//! `phalanx-bench`: compares the cost of a call through Phalanx with comparable crates, in one run.
//!
//! ```text
//! cargo run --release -p phalanx-bench -- local [--json] [--seconds N] [--only TEXT]
//! cargo run --release -p phalanx-bench -- fleet [--json] [--seconds N] [--only TEXT]
//! ```
//!
//! ```text
//!   cases/      the comparisons: a name, a bar, our contender, the peers' contenders
//!     ├─ ours.rs     contenders that use the phalanx crate
//!     └─ peers/      one file per peer, configured for speed
//!   settings.rs   the configuration common to all contenders
//!   contender.rs  one implementation of a case, and how it is driven
//!   measure.rs    interleaved rounds in alternating order; medians
//!   report.rs     a table, or one JSON object per line
//!   fleet/        comparisons over Redis: see fleet.rs
//! ```

mod cases;
mod contender;
mod fleet;
mod local;
mod measure;
mod operation;
mod ours;
mod peers;
mod report;
mod settings;

use std::error::Error;

use clap::{Parser, Subcommand};

/// Compares Phalanx with its peers.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// One process, no network: nanoseconds per call for Phalanx and each peer, and their ratio.
    Local(local::Arguments),
    /// Over a Redis started on loopback: exact limits, shared breakers, trips and hangs.
    Fleet(fleet::Arguments),
    /// Child processes of `fleet`.
    #[command(hide = true, subcommand)]
    FleetChild(fleet::Child),
}

fn main() -> Result<(), Box<dyn Error>> {
    match Arguments::parse().command {
        Command::Local(arguments) => local::run(&arguments),
        Command::Fleet(arguments) => fleet::run(&arguments),
        Command::FleetChild(child) => fleet::run_child(&child),
    }
}

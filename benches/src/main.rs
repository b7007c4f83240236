//! `phalanx-bench`: what a call through Phalanx costs beside what it costs through its peers, in one run.
//!
//! ```text
//! cargo run --release -p phalanx-bench -- local [--json] [--seconds N] [--only TEXT]
//! cargo run --release -p phalanx-bench -- fleet [--json] [--seconds N] [--only TEXT]
//! ```
//!
//! ```text
//!   cases/      what is compared: a name, a bar, our contender, the peers' contenders
//!     ├─ ours.rs     everything that names the phalanx crate
//!     └─ peers/      one file a peer, set up as someone who knows it would for speed
//!   settings.rs   the numbers all of them are set up with
//!   contender.rs  one implementation that can be asked for n calls, and how it is driven
//!   measure.rs    rounds, interleaved and in alternating order; medians
//!   report.rs     a table, or one JSON object a line
//!   fleet/        the same questions over a Redis of its own: see fleet.rs
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

/// Measures Phalanx beside its peers.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// One process, no network: nanoseconds a call, ours and each peer's, and their ratio.
    Local(local::Arguments),
    /// Over a Redis of its own on loopback: exact limits, shared circuits, trips and hangs.
    Fleet(fleet::Arguments),
    /// What `fleet` starts itself as; not for people.
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

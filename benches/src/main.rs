//! `phalanx-bench`: compares the cost of a call through Phalanx with comparable crates, in one run.
//!
//! ```text
//! cargo run --release -p phalanx-bench -- local [--json] [--seconds N] [--only TEXT]
//! cargo run --release -p phalanx-bench -- fleet [--json] [--seconds N] [--only TEXT]
//! cargo run --release -p phalanx-bench -- scale [--json] [--case NAME [--replicas N] [--routes N]]
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
//!   scale/        what a large fleet costs its Redis: see scale.rs
//!   server.rs     the Redis server of `fleet` and `scale`; figures.rs: their output
//! ```

mod cases;
mod contender;
mod figures;
mod fleet;
mod local;
mod measure;
mod monotonic;
mod operation;
mod ours;
mod peers;
mod report;
mod scale;
mod server;
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
    /// Many replicas against one Redis started on loopback: its CPU time, scripts and bytes.
    Scale(scale::Arguments),
    /// Child processes of `fleet`.
    #[command(hide = true, subcommand)]
    FleetChild(fleet::Child),
    /// Child processes of `scale`.
    #[command(hide = true)]
    ScaleChild { assignment: String },
    /// Becomes a redis-server that exits with its parent.
    #[command(hide = true)]
    ServeRedis { port: u16 },
}

fn main() -> Result<(), Box<dyn Error>> {
    match Arguments::parse().command {
        Command::Local(arguments) => local::run(&arguments),
        Command::Fleet(arguments) => fleet::run(&arguments),
        Command::Scale(arguments) => scale::run(&arguments),
        Command::FleetChild(child) => fleet::run_child(&child),
        Command::ScaleChild { assignment } => scale::run_child(&assignment),
        Command::ServeRedis { port } => server::become_redis(port),
    }
}

//! The `fleet` command: measures shared state in Redis, on a server that the command starts itself.
//!
//! ```text
//!   contest.rs    contenders alternate, round by round, on one runtime of two workers; medians
//!     ├─ callers.rs    n callers in a closed loop: calls a second, and latencies
//!     ├─ exact.rs      an exact rate limit: ours, naive.rs, limitador.rs
//!     ├─ leased.rs     a leased one, also what five replicas admit and cost
//!     ├─ several.rs    three limits in one decision
//!     └─ guarded.rs    breaker and digest, shared and in memory; the whole stack
//!   commands.rs   Redis commands per 1,000 calls
//!   trips.rs      from a trip in one process to a rejection in another
//!   hang.rs       the cost of a stopped Redis to a caller
//!   distance.rs   a Redis that is milliseconds away
//!   beside.rs     an exact limit beside many circuits in use; degraded.rs counts for both
//! ```
//!
//! The Redis server is `server.rs`, the output `figures.rs`, one level up.

mod beside;
mod callers;
mod commands;
mod contest;
mod degraded;
mod distance;
mod exact;
mod guarded;
mod hang;
mod leased;
#[cfg(feature = "limitador")]
mod limitador;
mod naive;
mod policies;
mod several;
mod trips;

use std::error::Error;
use std::io;
use std::time::Duration;

use clap::{Args, Subcommand};
use tokio::runtime::{Builder, Runtime};

pub(crate) use self::callers::quantile_of;
use crate::figures::{self, Row};
use crate::server::Server;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,

    /// Total time in seconds for cases with peers. Cases without peers (commands, trips, hangs, distances) take a minute and a half more.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Measure only the cases whose name contains this text.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

#[derive(Subcommand)]
pub(crate) enum Child {
    /// The other replica of `trip_p99`.
    Watch { url: String },
}

/// Cases without peers.
const WITHOUT_PEERS: &[(&[&str], Measure)] = &[
    (commands::CASES, commands::measure),
    (trips::CASES, trips::measure),
    (hang::CASES, hang::measure),
    (beside::CASES, beside::measure),
    (distance::CASES, distance::measure),
    (leased::CASES, leased::measure),
    #[cfg(feature = "limitador")]
    (limitador::CASES, limitador::measure),
];

type Measure = fn(&Runtime) -> Result<Vec<Row>, Box<dyn Error>>;

pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let runtime = two_workers()?;
    let wanted = |case: &str| case.contains(&arguments.only);
    let mut rows = contests(&runtime, Duration::from_secs(arguments.seconds), &wanted)?;
    for (cases, measure) in WITHOUT_PEERS {
        if cases.iter().any(|case| wanted(case)) {
            rows.extend(measure(&runtime)?.into_iter().filter(|row| wanted(row.case())));
        }
    }
    if rows.is_empty() {
        return Err(format!("no case is named like {:?}", arguments.only).into());
    }
    let mut out = io::stdout().lock();
    if arguments.json {
        figures::json(&rows, &mut out)?;
    } else {
        figures::table(&rows, &mut out)?;
    }
    Ok(())
}

pub(crate) fn run_child(child: &Child) -> Result<(), Box<dyn Error>> {
    match child {
        Child::Watch { url } => trips::watch(url),
    }
}

/// Measures all cases with peers, in one run on one server.
fn contests(runtime: &Runtime, budget: Duration, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Row>, Box<dyn Error>> {
    let server = Server::start()?;
    let mut cases = exact::cases(runtime, &server, wanted)?;
    cases.extend(leased::cases(runtime, &server, wanted)?);
    cases.extend(several::cases(runtime, &server, wanted)?);
    cases.extend(guarded::cases(runtime, &server, wanted)?);
    if cases.is_empty() {
        return Ok(Vec::new());
    }
    contest::run(runtime, cases, budget)
}

/// The runtime of all contenders.
fn two_workers() -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

//! The command line of the simulated demos.

use clap::Parser;

/// Runs in simulated time: half a minute takes a few seconds, and a seed always gives the same figures.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// The seed of everything random: arrivals, latencies.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// Exit with status 1 if an expectation is not met.
    #[arg(long)]
    pub(crate) check: bool,
}

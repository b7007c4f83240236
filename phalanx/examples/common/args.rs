//! The command line of the simulated examples.

use clap::Parser;

/// Runs in simulated time: a minute takes a moment, and a seed always gives the same figures.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// The seed of everything random: arrivals, latencies.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// End with status 1 if a promise was broken.
    #[arg(long)]
    pub(crate) check: bool,
}

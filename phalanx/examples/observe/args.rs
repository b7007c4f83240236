//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// Demo: a shop whose policies use every stage, with a page of metrics for Prometheus.
#[derive(Debug, Parser)]
#[command(name = "observe")]
pub(crate) struct Args {
    /// The address of the page of metrics. Port 0 takes a free port; the first line prints it.
    #[arg(long, default_value = "127.0.0.1:9464")]
    pub(crate) listen: SocketAddr,
    /// The Redis that the fleet shares. Without it the state is in memory.
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// Replicas with the same environment share state.
    #[arg(long, default_value = "observe")]
    pub(crate) environment: String,
    /// A file of levers that is watched while the demo runs (features `toml` and `reload`).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// End after this many seconds. Default: at Ctrl-C.
    #[arg(long)]
    pub(crate) seconds: Option<u64>,
    /// The length of each of the four phases.
    #[arg(long, value_name = "SECONDS", default_value = "6", value_parser = seconds)]
    pub(crate) phase: Duration,
    /// The seed of everything random: arrivals, latencies, jitter.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.5..=3_600.0).contains(&seconds) {
        return Err("from 0.5 to 3600 seconds".to_owned());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

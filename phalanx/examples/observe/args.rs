//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

/// A shop whose policies use every stage, and a page of metrics that tells of it.
#[derive(Debug, Parser)]
#[command(name = "observe")]
pub(crate) struct Args {
    /// Where the page of metrics is served. Port 0 takes a free one; the first line says which.
    #[arg(long, default_value = "127.0.0.1:9464")]
    pub(crate) listen: SocketAddr,
    /// The Redis that makes it part of a fleet; without one it is alone.
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// Replicas share with those of the same environment.
    #[arg(long, default_value = "observe")]
    pub(crate) environment: String,
    /// A file of levers that is followed while it runs (features `toml` and `reload`).
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Ends it after so many seconds. Default: Ctrl-C does.
    #[arg(long)]
    pub(crate) seconds: Option<u64>,
    /// How long each of the four phases takes.
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

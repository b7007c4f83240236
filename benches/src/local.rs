//! The `local` command: every case of [`crate::cases`] in one process.

use std::error::Error;
use std::io;
use std::time::Duration;

use clap::Args;

use crate::contender::Runtimes;
use crate::{cases, measure, report};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,

    /// Total time of the measurement in seconds.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Measure only the cases whose name contains this text.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let runtimes = Runtimes::start()?;
    let _timers = runtimes.enter_one_thread();

    let mut cases = cases::all(&runtimes)?;
    cases.retain(|case| case.name.contains(&arguments.only));
    if cases.is_empty() {
        return Err(format!("no case is named like {:?}", arguments.only).into());
    }

    let measured = measure::run(cases, Duration::from_secs(arguments.seconds))?;
    let rows = report::rows(&measured);
    let mut out = io::stdout().lock();
    if arguments.json {
        report::json(&rows, &mut out)?;
    } else {
        report::table(&rows, &mut out)?;
    }
    Ok(())
}

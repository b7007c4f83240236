//! A fleet in one terminal: several replicas share one circuit and one rate limit while their upstream is healthy,
//! turns slow, dies, and comes back.
//!
//! ```text
//!   cargo run --example fleet                               20 seconds, live; tasks over one store in memory
//!   cargo run --example fleet -- --seconds 5                the same story, told faster
//!   cargo run --example fleet | cat                         plain lines
//!   cargo run --example fleet -- --redis redis://localhost  processes over a Redis
//!   cargo run --example fleet -- --spawn-redis --kill-redis-at 2 --restart-redis-at 4
//! ```
//!
//! The files: `story` (what happens when), `upstream` and `service` (what is called), `policy` (what stands between),
//! `replica` (who calls), `tasks` and `processes` with `worker` and `metered` (how a fleet is made of them), `server` and `faults`
//! (Redis and what is done to it), `report` (what replicas tell), `ledger` and `evidence` (what came of it), `stage`,
//! `board` and `lines` (how it is shown), `summary` and `promises` (what it means).

mod args;
mod board;
mod evidence;
mod faults;
mod ledger;
mod lines;
mod log;
mod metered;
#[cfg(feature = "prometheus")]
#[path = "../common/metrics.rs"]
mod metrics;
mod moment;
mod paint;
mod policy;
mod processes;
mod promises;
mod replica;
mod report;
mod screen;
mod server;
mod service;
mod stage;
#[path = "../common/stop.rs"]
mod stop;
mod story;
mod summary;
mod table;
mod tally;
mod tasks;
mod timeline;
mod upstream;
mod worker;

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use crate::args::{Cli, Part, Show};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::read();
    let done = match cli.part {
        Some(Part::Replica(single)) => worker::run(single).await.map(|()| ExitCode::SUCCESS),
        Some(Part::Upstream(upstream)) => service::run(upstream).await.map(|()| ExitCode::SUCCESS),
        Some(Part::RedisKeeper { port }) => server::keep(port).map(|()| ExitCode::SUCCESS).map_err(Into::into),
        None => play(&cli.show).await,
    };
    match done {
        Ok(code) => code,
        // `fleet | head` has seen enough; that is no failure.
        Err(error) if is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fleet: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn play(show: &Show) -> Result<ExitCode, Box<dyn Error>> {
    let (ledger, interrupted) =
        if show.is_of_processes() { processes::play(show).await? } else { tasks::play(show).await? };
    let colour = screen::has_colour() && io::stdout().is_terminal();
    let kept = summary::print(&mut io::stdout().lock(), &ledger, show, colour)?;
    io::stdout().flush()?;
    Ok(match (interrupted, kept) {
        (true, _) => ExitCode::from(130),
        (false, false) if show.check => ExitCode::FAILURE,
        (false, _) => ExitCode::SUCCESS,
    })
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

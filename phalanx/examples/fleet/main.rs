//! Demo: a fleet in one terminal. Several replicas share one breaker and one rate limit while their upstream is healthy,
//! turns slow, fails and recovers. For a small example see `shared_state`.
//!
//! ```text
//!   cargo run --example fleet                               20 seconds, live; the replicas are tasks over one store in memory
//!   cargo run --example fleet -- --seconds 5                the same scenario in 5 seconds
//!   cargo run --example fleet | cat                         plain lines
//!   cargo run --example fleet -- --redis redis://localhost  the replicas are processes over a Redis
//!   cargo run --example fleet -- --spawn-redis --kill-redis-at 2 --restart-redis-at 4
//! ```
//!
//! | files | what they hold |
//! |---|---|
//! | `args`, `scenario`, `policy` | the command line, what happens when, and the policy under test |
//! | `upstream`, `upstream_server` | the simulated dependency, in this process and behind a socket |
//! | `replica`, `tasks`, `processes`, `worker`, `metrics_page` | the traffic of a replica, and a fleet of tasks or of processes |
//! | `redis_server`, `faults` | a redis-server of its own, and the faults that are injected |
//! | `message`, `recorder`, `call_counts`, `observations`, `milestone` | what replicas send, and what is recorded of it |
//! | `display`, `dashboard`, `table`, `timeline`, `screen`, `style`, `lines`, `replica_log` | the output while it runs |
//! | `summary`, `guarantees` | the output at the end |

mod args;
mod call_counts;
mod dashboard;
mod display;
mod faults;
mod guarantees;
mod lines;
mod message;
#[cfg(feature = "prometheus")]
#[path = "../common/metrics.rs"]
mod metrics;
mod metrics_page;
mod milestone;
mod observations;
mod policy;
mod processes;
mod recorder;
mod redis_server;
mod replica;
mod replica_log;
mod scenario;
mod screen;
#[path = "../common/stop.rs"]
mod stop;
mod style;
mod summary;
mod table;
mod tasks;
mod timeline;
mod upstream;
mod upstream_server;
mod worker;

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use crate::args::{Cli, DemoArgs, Role};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::read();
    let done = match cli.role {
        Some(Role::Replica(replica)) => worker::run(replica).await.map(|()| ExitCode::SUCCESS),
        Some(Role::Upstream(upstream)) => upstream_server::run(upstream).await.map(|()| ExitCode::SUCCESS),
        Some(Role::RedisSupervisor { port }) => {
            redis_server::supervise(port).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
        None => run(&cli.demo).await,
    };
    match done {
        Ok(code) => code,
        // `fleet | head` closes the pipe early; that is no failure.
        Err(error) if is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fleet: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &DemoArgs) -> Result<ExitCode, Box<dyn Error>> {
    let (recorder, interrupted) =
        if args.uses_processes() { processes::run(args).await? } else { tasks::run(args).await? };
    let colour = screen::has_colour() && io::stdout().is_terminal();
    let all_held = summary::print(&mut io::stdout().lock(), &recorder, args, colour)?;
    io::stdout().flush()?;
    Ok(match (interrupted, all_held) {
        (true, _) => ExitCode::from(130),
        (false, false) if args.check => ExitCode::FAILURE,
        (false, _) => ExitCode::SUCCESS,
    })
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

//! Demo: a gateway to a language model, in miniature. Six tenants share it through three replicas; each has its tokens per
//! minute, free or pro, and all of them a budget together. A request pays an estimate, and its true cost is settled when the
//! answer is there. For a small example see `rate_limit`.
//!
//! ```text
//!   cargo run --example tenants                              a simulated minute, the replicas over one store in memory
//!   cargo run --example tenants -- --spawn-redis             ten seconds, the replicas are processes over a Redis of their own
//!   cargo run --example tenants -- --redis redis://localhost
//!   cargo run --example tenants -- --check                   status 1 if an expectation is not met
//! ```
//!
//! The files: `gateway` (the limits and the tenants), `load` (the requests of one replica and their counts), `replicas` (the
//! fleet, in this process or as processes), `report` (the table), `../fleet/redis_server`, `../common/printout`.

mod gateway;
mod load;
#[path = "../common/printout.rs"]
mod printout;
mod processes;
#[path = "../fleet/redis_server.rs"]
mod redis_server;
mod report;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Parser, Subcommand};
use tokio::runtime::Builder;

/// How long the demo takes: in simulated time, and over a Redis.
const SIMULATED: Duration = Duration::from_secs(60);
const REAL: Duration = Duration::from_secs(10);

/// Demo: tokens per minute of six tenants and of all together, over three replicas.
#[derive(Debug, Parser)]
#[command(name = "tenants", args_conflicts_with_subcommands = true)]
#[command(group = ArgGroup::new("server").args(["redis", "spawn_redis"]))]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    /// Run the replicas as processes over this Redis.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Run the replicas as processes over a redis-server started for the demo, on a free port.
    #[arg(long)]
    spawn_redis: bool,
    /// The seed of everything random: arrivals, lengths, latencies.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Exit with status 1 if an expectation is not met.
    #[arg(long)]
    check: bool,
}

/// What a process that the demo starts does.
#[derive(Debug, Subcommand)]
enum Role {
    /// One replica.
    #[command(hide = true)]
    Replica(processes::ReplicaArgs),
    /// Keeps the redis-server of the demo.
    #[command(hide = true)]
    RedisSupervisor {
        #[arg(long)]
        port: u16,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tenants: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Box<dyn Error>> {
    let simulated = cli.role.is_none() && cli.redis.is_none() && !cli.spawn_redis;
    let runtime = Builder::new_current_thread().enable_all().start_paused(simulated).build()?;
    let (counts, over, lasted) = match cli.role {
        Some(Role::RedisSupervisor { port }) => {
            redis_server::supervise(port)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(Role::Replica(replica)) => {
            runtime.block_on(processes::replica(replica))?;
            return Ok(ExitCode::SUCCESS);
        }
        None if simulated => {
            let counts = runtime.block_on(load::in_one_process(SIMULATED, cli.seed))?;
            (counts, "over one store in memory, in simulated time", SIMULATED)
        }
        None => {
            let counts = runtime.block_on(processes::run(cli.redis, REAL, cli.seed))?;
            (counts, "processes over one Redis", REAL)
        }
    };
    Ok(report::of(&counts, over, lasted, cli.seed).write(cli.check)?)
}

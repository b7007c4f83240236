//! The command line: which fleet, for how long, and which faults are injected.

use std::time::Duration;

use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, error::ErrorKind};

use crate::faults::Fault;

/// Demo: replicas that share a breaker and a rate limit, as tasks over one store in memory or as processes over Redis.
#[derive(Debug, Parser)]
#[command(name = "fleet", args_conflicts_with_subcommands = true)]
#[command(group = ArgGroup::new("server").args(["redis", "spawn_redis"]))]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
    #[command(flatten)]
    pub(crate) demo: DemoArgs,
}

/// Options that every process of a fleet must have in common.
#[derive(Clone, Debug, Args)]
pub(crate) struct CommonArgs {
    /// How long the scenario takes.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(3..=3600))]
    pub(crate) seconds: u32,
    /// The seed of everything random: arrivals, latencies, jitter.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// How many replicas call the upstream.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) replicas: u8,
}

/// The whole demo: the fleet, its upstream and the display.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Run the replicas as processes over this Redis.
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// Run the replicas as processes over a redis-server started for the demo, on a free port.
    #[arg(long)]
    pub(crate) spawn_redis: bool,
    /// Kill that redis-server (SIGKILL) at this second.
    #[arg(long, value_name = "S", requires = "spawn_redis", value_parser = second)]
    kill_redis_at: Option<Duration>,
    /// Start it again, empty, at this second.
    #[arg(long, value_name = "S", requires = "kill_redis_at", value_parser = second)]
    restart_redis_at: Option<Duration>,
    /// Let that redis-server hang (SIGSTOP) at this second.
    #[arg(long, value_name = "S", requires = "spawn_redis", conflicts_with = "kill_redis_at", value_parser = second)]
    stop_redis_at: Option<Duration>,
    /// Let it continue (SIGCONT) at this second.
    #[arg(long, value_name = "S", requires = "stop_redis_at", value_parser = second)]
    cont_redis_at: Option<Duration>,
    /// Kill the last replica (SIGKILL) at this second.
    #[arg(long, value_name = "S", requires = "server", value_parser = second)]
    kill_replica_at: Option<Duration>,
    /// Exit with status 1 if a guarantee was violated.
    #[arg(long, requires = "server")]
    pub(crate) check: bool,
}

/// What a single process of a fleet does.
#[derive(Debug, Subcommand)]
pub(crate) enum Role {
    /// One replica: calls the upstream and prints one line a second.
    Replica(ReplicaArgs),
    /// The upstream as a service: repeats the scenario.
    Upstream(UpstreamArgs),
    /// Runs a redis-server for the demo, controlled by commands on the standard input.
    #[command(hide = true)]
    RedisSupervisor {
        #[arg(long)]
        port: u16,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ReplicaArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// The Redis that the fleet shares.
    #[arg(long, value_name = "URL")]
    pub(crate) redis: String,
    /// The name printed in its lines.
    #[arg(long, default_value = "replica")]
    pub(crate) name: String,
    /// The address of the upstream, `host:port`. Without it the replica simulates one in its own process.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) upstream: Option<String>,
    /// Replicas with the same environment share state.
    #[arg(long, default_value = "demo")]
    pub(crate) environment: String,
    /// Serve metrics for Prometheus at this address.
    #[cfg(feature = "prometheus")]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<std::net::SocketAddr>,
    /// Send a message for every call to the demo that started this replica, under this number, and end with the demo.
    #[arg(long, hide = true)]
    pub(crate) report_as: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct UpstreamArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:7000")]
    pub(crate) listen: String,
}

fn second(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

impl Cli {
    /// Parses the command line, or exits with a message about what is invalid.
    pub(crate) fn read() -> Self {
        let cli = Self::parse();
        if let Err(message) = cli.demo.validate() {
            Self::command().error(ErrorKind::ValueValidation, message).exit();
        }
        cli
    }
}

impl CommonArgs {
    pub(crate) fn length(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

impl DemoArgs {
    /// Whether the replicas are processes rather than tasks.
    pub(crate) const fn uses_processes(&self) -> bool {
        self.spawn_redis || self.redis.is_some()
    }

    /// The faults to inject and when, in order.
    pub(crate) fn faults(&self) -> Vec<(Duration, Fault)> {
        let mut faults: Vec<_> = [
            (self.kill_redis_at, Fault::KillRedis),
            (self.restart_redis_at, Fault::RestartRedis),
            (self.stop_redis_at, Fault::StopRedis),
            (self.cont_redis_at, Fault::ContRedis),
            (self.kill_replica_at, Fault::KillReplica),
        ]
        .into_iter()
        .filter_map(|(at, fault)| Some((at?, fault)))
        .collect();
        faults.sort_by_key(|(at, _)| *at);
        faults
    }

    fn validate(&self) -> Result<(), &'static str> {
        let backwards = |first: Option<Duration>, then: Option<Duration>| {
            first.zip(then).is_some_and(|(first, then)| then <= first)
        };
        if backwards(self.kill_redis_at, self.restart_redis_at) {
            return Err("--restart-redis-at must come after --kill-redis-at");
        }
        if backwards(self.stop_redis_at, self.cont_redis_at) {
            return Err("--cont-redis-at must come after --stop-redis-at");
        }
        if self.faults().iter().any(|(at, _)| *at >= self.common.length()) {
            return Err("the scenario ends before that second; make it longer with --seconds");
        }
        Ok(())
    }
}

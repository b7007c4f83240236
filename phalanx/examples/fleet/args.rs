//! The command line: which fleet, how long, and what is to go wrong.

use std::time::Duration;

use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, error::ErrorKind};

use crate::faults::Fault;

/// Replicas that hold the line together, live: tasks over one store in memory, or processes over Redis.
#[derive(Debug, Parser)]
#[command(name = "fleet", args_conflicts_with_subcommands = true)]
#[command(group = ArgGroup::new("server").args(["redis", "spawn_redis"]))]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) part: Option<Part>,
    #[command(flatten)]
    pub(crate) show: Show,
}

/// What all parts must agree on.
#[derive(Clone, Debug, Args)]
pub(crate) struct Scale {
    /// How long the story takes.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(3..=3600))]
    pub(crate) seconds: u32,
    /// The seed of everything random: arrivals, latencies, jitter.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,
    /// How many replicas call the upstream.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) replicas: u8,
}

/// The whole show: the fleet, its upstream and somebody who watches.
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) scale: Scale,
    /// Run the replicas as processes over this Redis.
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// Run the replicas as processes over a redis-server of our own, on a free port of this machine.
    #[arg(long)]
    pub(crate) spawn_redis: bool,
    /// Kill our Redis (SIGKILL) at this second.
    #[arg(long, value_name = "S", requires = "spawn_redis", value_parser = second)]
    kill_redis_at: Option<Duration>,
    /// Start it again, empty.
    #[arg(long, value_name = "S", requires = "kill_redis_at", value_parser = second)]
    restart_redis_at: Option<Duration>,
    /// Let our Redis hang (SIGSTOP) at this second.
    #[arg(long, value_name = "S", requires = "spawn_redis", conflicts_with = "kill_redis_at", value_parser = second)]
    stop_redis_at: Option<Duration>,
    /// Let it go on (SIGCONT).
    #[arg(long, value_name = "S", requires = "stop_redis_at", value_parser = second)]
    cont_redis_at: Option<Duration>,
    /// Kill the last replica (SIGKILL) at this second.
    #[arg(long, value_name = "S", requires = "server", value_parser = second)]
    kill_replica_at: Option<Duration>,
    /// End with status 1 if a promise was broken.
    #[arg(long, requires = "server")]
    pub(crate) check: bool,
}

/// One process of many.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    /// One replica: calls the upstream, prints one line a second.
    Replica(Single),
    /// The upstream, as a service: plays its story again and again.
    Upstream(Service),
    /// Keeps a redis-server for the show, by words on the standard input.
    #[command(hide = true)]
    RedisKeeper {
        #[arg(long)]
        port: u16,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Single {
    #[command(flatten)]
    pub(crate) scale: Scale,
    /// The Redis that makes it part of a fleet.
    #[arg(long, value_name = "URL")]
    pub(crate) redis: String,
    /// What it is called in its lines.
    #[arg(long, default_value = "replica")]
    pub(crate) name: String,
    /// The upstream's address, `host:port`; without it each replica has an upstream of its own.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) upstream: Option<String>,
    /// Replicas share with those of the same environment.
    #[arg(long, default_value = "demo")]
    pub(crate) environment: String,
    /// Serves a page of metrics for Prometheus here.
    #[cfg(feature = "prometheus")]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<std::net::SocketAddr>,
    /// Tells every call to the show that started it, under this number, and ends with it.
    #[arg(long, hide = true)]
    pub(crate) report_as: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct Service {
    #[command(flatten)]
    pub(crate) scale: Scale,
    /// Where it listens.
    #[arg(long, default_value = "127.0.0.1:7000")]
    pub(crate) listen: String,
}

fn second(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

impl Cli {
    /// What was asked for, or the end of the program with a word about what makes no sense.
    pub(crate) fn read() -> Self {
        let cli = Self::parse();
        if let Err(complaint) = cli.show.is_in_order() {
            Self::command().error(ErrorKind::ValueValidation, complaint).exit();
        }
        cli
    }
}

impl Scale {
    pub(crate) fn length(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

impl Show {
    /// Whether the replicas are processes rather than tasks.
    pub(crate) const fn is_of_processes(&self) -> bool {
        self.spawn_redis || self.redis.is_some()
    }

    /// What goes wrong when, in order.
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

    fn is_in_order(&self) -> Result<(), &'static str> {
        let backwards = |first: Option<Duration>, then: Option<Duration>| {
            first.zip(then).is_some_and(|(first, then)| then <= first)
        };
        if backwards(self.kill_redis_at, self.restart_redis_at) {
            return Err("--restart-redis-at must come after --kill-redis-at");
        }
        if backwards(self.stop_redis_at, self.cont_redis_at) {
            return Err("--cont-redis-at must come after --stop-redis-at");
        }
        if self.faults().iter().any(|(at, _)| *at >= self.scale.length()) {
            return Err("the story is over before that second; make it longer with --seconds");
        }
        Ok(())
    }
}

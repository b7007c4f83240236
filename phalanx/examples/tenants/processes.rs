//! The replicas as processes over one Redis. Each prints its counts as one line for each tenant when it ends.

use std::error::Error;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use phalanx::ResilienceModule;
use phalanx::store::{Rng, StoreMode};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::gateway;
use crate::load::{self, AllCounts, Counts, SHARES};
use crate::redis_server::Server;

/// The options of one replica.
#[derive(Debug, Args)]
pub(crate) struct ReplicaArgs {
    #[arg(long)]
    redis: String,
    #[arg(long)]
    environment: String,
    #[arg(long)]
    number: usize,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    seed: u64,
}

/// Runs the replicas, over a Redis of the demo's own unless there is one already.
pub(crate) async fn run(redis: Option<String>, length: Duration, seed: u64) -> Result<AllCounts, Box<dyn Error>> {
    let (_server, url) = match redis {
        Some(url) => (None, url),
        None => {
            let server = Server::start().await?;
            let url = server.url();
            (Some(server), url)
        }
    };
    // Each run has an environment of its own, so that no state is left from the last one.
    let environment = format!("tenants-{}", std::process::id());
    let mut replicas = Vec::new();
    for number in 0..SHARES.len() {
        let mut command = own_command()?;
        command.arg("replica").args(["--redis", &url, "--environment", &environment]);
        command.args(["--number", &number.to_string(), "--seconds", &length.as_secs().to_string()]);
        let mut child = command.args(["--seed", &(seed + number as u64).to_string()]).spawn()?;
        let (Some(input), Some(lines)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a replica has no pipes".into());
        };
        replicas.push((child, input, BufReader::new(lines).lines()));
    }
    for (_, _, lines) in &mut replicas {
        if lines.next_line().await?.as_deref() != Some("ready") {
            return Err("a replica did not reach Redis".into());
        }
    }
    for (_, input, _) in &mut replicas {
        input.write_all(b"go\n").await?;
    }
    let mut sum = AllCounts::default();
    for (_, _, lines) in &mut replicas {
        for counts in &mut sum {
            let line = lines.next_line().await?.unwrap_or_default();
            counts.add(&parse(&line).ok_or("a replica ended early")?);
        }
    }
    Ok(sum)
}

/// A command that runs this program again: with pipes, and in its own process group, so that Ctrl-C reaches only the demo.
pub(crate) fn own_command() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    #[cfg(unix)]
    command.process_group(0);
    Ok(command)
}

/// Runs one replica.
pub(crate) async fn replica(args: ReplicaArgs) -> Result<(), Box<dyn Error>> {
    let client = redis::Client::open(args.redis.as_str())?;
    let module = ResilienceModule::with_redis(client)
        .service("tenants")
        .environment(&args.environment)
        .expected_replicas(SHARES.len() as u32)
        .policy(gateway::policy())
        .build()?;
    while module.store_mode() != Some(StoreMode::Shared) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("ready");
    tokio::task::spawn_blocking(|| io::stdin().read_line(&mut String::new())).await??; // until all are ready
    let length = Duration::from_secs(args.seconds);
    for counts in load::replica(module, args.number, length, Rng::seeded(args.seed)).await {
        println!("{}", line(&counts));
    }
    Ok(())
}

fn line(counts: &Counts) -> String {
    let Counts { requests, answered, over_tenant, over_all, estimated, tokens } = counts;
    format!("{requests} {answered} {over_tenant} {over_all} {estimated} {tokens}")
}

fn parse(line: &str) -> Option<Counts> {
    let numbers: Vec<u64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
    let [requests, answered, over_tenant, over_all, estimated, tokens] = numbers[..] else { return None };
    Some(Counts { requests, answered, over_tenant, over_all, estimated, tokens })
}

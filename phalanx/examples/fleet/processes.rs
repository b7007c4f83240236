//! The fleet as processes over one Redis. The demo serves the upstream on the loopback and counts what reaches it; the
//! replicas send it a line for each message.

use std::error::Error;
use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use phalanx::store::Rng;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::args::DemoArgs;
use crate::display::{Display, Output};
use crate::message::Message;
use crate::recorder::Recorder;
use crate::redis_server::Server;
use crate::scenario::Scenario;
use crate::upstream::Upstream;
use crate::{faults, policy, upstream_server};

/// How long Redis may take to answer the first PING.
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// The process of a replica. Dropping it ends the process.
struct ReplicaProcess {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

/// Kills the replica that a fault is injected into.
#[derive(Clone, Default)]
pub(crate) struct Victim(Arc<Notify>);

impl Victim {
    pub(crate) fn kill(&self) {
        self.0.notify_one();
    }
}

pub(crate) async fn run(args: &DemoArgs) -> Result<(Arc<Recorder>, bool), Box<dyn Error>> {
    let server = if args.spawn_redis { Some(Server::start().await?) } else { None };
    let url = server.as_ref().map(Server::url).or_else(|| args.redis.clone()).unwrap_or_default();
    check_redis(&url).await?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let replicas = usize::from(args.common.replicas);
    let running = start(args, &url, &listener.local_addr()?.to_string()).await?;

    let scenario = Scenario::start(args.common.length());
    let recorder = Arc::new(Recorder::new(scenario, policy::of(&scenario, replicas, policy::ONE_PROBE), replicas));
    let upstream = Arc::new(Upstream::new(scenario, Rng::seeded(args.common.seed)));
    let counted = recorder.clone();
    let mut services = JoinSet::new();
    services.spawn(upstream_server::serve(listener, upstream, Arc::new(move |first| counted.record_attempt(first))));

    let mut fleet = JoinSet::new();
    let mut victim = Victim::default();
    for (number, mut replica) in running.into_iter().enumerate() {
        let started = format!("{}\n", scenario.now().as_micros());
        replica.stdin.write_all(started.as_bytes()).await?;
        victim = Victim::default(); // the last replica is the one that may be killed
        fleet.spawn(receive(number, replica, recorder.clone(), victim.clone()));
    }
    services.spawn(faults::run(args.faults(), recorder.clone(), server, victim));

    let mut display = Display::start(Output::open(recorder.clone())?);
    loop {
        tokio::select! {
            biased;
            frame = display.next() => if frame?.is_none() {
                return Ok((recorder, true));
            },
            ended = fleet.join_next() => match ended {
                Some(replica) => replica??,
                None => break,
            },
            Some(failed) = services.join_next() => failed??,
        }
    }
    display.update()?;
    Ok((recorder, false))
}

/// A command that runs this program again: with pipes, and in its own process group, so that Ctrl-C reaches only the demo.
pub(crate) fn own_command() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    #[cfg(unix)]
    command.process_group(0);
    Ok(command)
}

/// Fails if Redis does not answer: phalanx works without Redis, this demo does not.
async fn check_redis(url: &str) -> Result<(), Box<dyn Error>> {
    let client = redis::Client::open(url)?;
    let address = client.get_connection_info().addr().clone(); // without the password
    let ping = async {
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("PING").query_async::<String>(&mut connection).await
    };
    match timeout(PING_TIMEOUT, ping).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("no Redis at {address}: {error}; --spawn-redis starts one").into()),
        Err(_) => Err(format!("no Redis at {address}: no answer; --spawn-redis starts one").into()),
    }
}

/// Starts every replica and waits until all have joined the fleet.
async fn start(args: &DemoArgs, url: &str, upstream: &str) -> Result<Vec<ReplicaProcess>, Box<dyn Error>> {
    // Each run has an environment of its own, so that no state is left from the last one.
    let environment = format!("demo-{}", std::process::id());
    let common = &args.common;
    let mut running = Vec::new();
    for number in 0..usize::from(common.replicas) {
        let mut command = own_command()?;
        command.arg("replica").args(["--redis", url, "--upstream", upstream, "--environment", &environment]);
        command.args(["--seconds", &common.seconds.to_string(), "--seed", &common.seed.to_string()]);
        command.args(["--replicas", &common.replicas.to_string(), "--report-as", &number.to_string()]);
        let mut child = command.spawn()?;
        let (Some(stdin), Some(lines)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a replica has no pipes".into());
        };
        running.push(ReplicaProcess { child, stdin, lines: BufReader::new(lines).lines() });
    }
    for replica in &mut running {
        if replica.lines.next_line().await?.as_deref() != Some("ready") {
            return Err("a replica did not start".into());
        }
    }
    Ok(running)
}

/// Records the messages of a replica until it ends or is killed.
async fn receive(
    number: usize,
    mut replica: ReplicaProcess,
    recorder: Arc<Recorder>,
    victim: Victim,
) -> io::Result<()> {
    loop {
        tokio::select! {
            line = replica.lines.next_line() => match line? {
                Some(line) => match Message::parse(&line) {
                    Some((at, message)) => recorder.record(number, at, message),
                    None => return Err(io::Error::other(format!("replica {} sent {line:?}", number + 1))),
                },
                None => break,
            },
            () = victim.0.notified() => replica.child.start_kill()?,
        }
    }
    let ended = replica.child.wait().await?;
    if !ended.success() {
        recorder.record_killed(number);
    }
    Ok(())
}

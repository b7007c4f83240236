//! The fleet as processes over one Redis. The show plays the upstream on the loopback, so it sees for itself what gets
//! through; what the replicas know they tell it, a line each.

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

use crate::args::Show;
use crate::ledger::Ledger;
use crate::report::Report;
use crate::server::Server;
use crate::stage::{Stage, Watch};
use crate::story::Story;
use crate::upstream::Upstream;
use crate::{faults, policy, service};

/// How long Redis may take to say that it is there.
const HELLO: Duration = Duration::from_secs(2);

/// One replica's process. Dropping it ends the process.
struct Running {
    child: Child,
    words: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

/// The replica that may be killed.
#[derive(Clone, Default)]
pub(crate) struct Victim(Arc<Notify>);

impl Victim {
    pub(crate) fn kill(&self) {
        self.0.notify_one();
    }
}

pub(crate) async fn play(show: &Show) -> Result<(Arc<Ledger>, bool), Box<dyn Error>> {
    let server = if show.spawn_redis { Some(Server::start().await?) } else { None };
    let url = server.as_ref().map(Server::url).or_else(|| show.redis.clone()).unwrap_or_default();
    greet(&url).await?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let replicas = usize::from(show.scale.replicas);
    let running = start(show, &url, &listener.local_addr()?.to_string()).await?;

    let story = Story::begin(show.scale.length());
    let ledger = Arc::new(Ledger::new(story, policy::of(&story, replicas, policy::ONE_PROBE), replicas));
    let upstream = Arc::new(Upstream::new(story, Rng::seeded(show.scale.seed)));
    let counted = ledger.clone();
    let mut around = JoinSet::new();
    around.spawn(service::serve(listener, upstream, Arc::new(move |first| counted.reached(first))));

    let mut fleet = JoinSet::new();
    let mut victim = Victim::default();
    for (number, mut replica) in running.into_iter().enumerate() {
        let begun = format!("{}\n", story.now().as_micros());
        replica.words.write_all(begun.as_bytes()).await?;
        victim = Victim::default(); // the last one it is
        fleet.spawn(listen(number, replica, ledger.clone(), victim.clone()));
    }
    around.spawn(faults::play(show.faults(), ledger.clone(), server, victim));

    let mut watch = Watch::begin(Stage::open(ledger.clone())?);
    loop {
        tokio::select! {
            biased;
            frame = watch.next() => if frame?.is_none() {
                return Ok((ledger, true));
            },
            ended = fleet.join_next() => match ended {
                Some(replica) => replica??,
                None => break,
            },
            Some(failed) = around.join_next() => failed??,
        }
    }
    watch.show()?;
    Ok((ledger, false))
}

/// This program once more: with pipes, and in a group of its own, so that Ctrl-C reaches only the show.
pub(crate) fn itself() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    #[cfg(unix)]
    command.process_group(0);
    Ok(command)
}

/// The library does without Redis; a show about Redis does not.
async fn greet(url: &str) -> Result<(), Box<dyn Error>> {
    let client = redis::Client::open(url)?;
    let address = client.get_connection_info().addr().clone(); // without the password
    let hello = async {
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("PING").query_async::<String>(&mut connection).await
    };
    match timeout(HELLO, hello).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("no Redis at {address}: {error}; --spawn-redis starts one").into()),
        Err(_) => Err(format!("no Redis at {address}: no answer; --spawn-redis starts one").into()),
    }
}

/// Starts every replica and waits until all have joined the fleet.
async fn start(show: &Show, url: &str, upstream: &str) -> Result<Vec<Running>, Box<dyn Error>> {
    // A fleet of its own for every show: nothing is left over from the last one.
    let environment = format!("demo-{}", std::process::id());
    let scale = &show.scale;
    let mut running = Vec::new();
    for number in 0..usize::from(scale.replicas) {
        let mut command = itself()?;
        command.arg("replica").args(["--redis", url, "--upstream", upstream, "--environment", &environment]);
        command.args(["--seconds", &scale.seconds.to_string(), "--seed", &scale.seed.to_string()]);
        command.args(["--replicas", &scale.replicas.to_string(), "--report-as", &number.to_string()]);
        let mut child = command.spawn()?;
        let (Some(words), Some(lines)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a replica has no pipes".into());
        };
        running.push(Running { child, words, lines: BufReader::new(lines).lines() });
    }
    for replica in &mut running {
        if replica.lines.next_line().await?.as_deref() != Some("ready") {
            return Err("a replica did not start".into());
        }
    }
    Ok(running)
}

/// Writes what a replica tells into the ledger, until it ends or is killed.
async fn listen(number: usize, mut replica: Running, ledger: Arc<Ledger>, victim: Victim) -> io::Result<()> {
    loop {
        tokio::select! {
            line = replica.lines.next_line() => match line? {
                Some(line) => match Report::read(&line) {
                    Some((at, report)) => ledger.note(number, at, report),
                    None => return Err(io::Error::other(format!("replica {} said {line:?}", number + 1))),
                },
                None => break,
            },
            () = victim.0.notified() => replica.child.start_kill()?,
        }
    }
    let ended = replica.child.wait().await?;
    if !ended.success() {
        ledger.gone(number);
    }
    Ok(())
}

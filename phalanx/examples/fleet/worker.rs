//! A replica as a process: one module over Redis. By itself it prints a line a second; started by the demo it sends a message
//! for every call on its standard output, and ends when its standard input is closed.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::store::StoreMode;
use phalanx::{Event, ResilienceModule};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{interval, sleep};

use crate::args::ReplicaArgs;
use crate::message::{Membership, Message, ReplicaStatus, TimedMessage};
use crate::metrics_page;
use crate::policy::{self, NAME, ROUTE};
use crate::replica::{MessageSink, Replica};
use crate::replica_log::Log;
use crate::scenario::Scenario;
use crate::stop::stopped;
use crate::upstream::Upstream;
use crate::upstream_server::RemoteUpstream;

/// More than the default of 20 ms, for debug builds on a busy machine.
const STORE_BUDGET: Duration = Duration::from_millis(50);
/// How often it sends its status.
const STATUS_INTERVAL: Duration = Duration::from_millis(250);
/// How often it checks whether the fleet is complete before the demo starts.
const JOIN_CHECKS: u32 = 60;

/// Messages to be sent, with the time each was made.
type Messages = mpsc::UnboundedReceiver<(tokio::time::Instant, Message)>;

pub(crate) async fn run(args: ReplicaArgs) -> Result<(), Box<dyn Error>> {
    let (sink, messages) = message_channel();
    let number = args.report_as.unwrap_or_else(|| args.name.bytes().map(usize::from).sum());
    let rng = Rng::seeded(args.common.seed.wrapping_add(number as u64 + 1));
    let replicas = usize::from(args.common.replicas);
    let policy = policy::of(&Scenario::start(args.common.length()), replicas, policy::ONE_PROBE);
    let event_sink = sink.clone();
    // What makes it part of a fleet.
    let builder = ResilienceModule::with_redis(redis::Client::open(args.redis.as_str())?)
        .environment(&args.environment)
        .store_budget(STORE_BUDGET)
        .policy(policy)
        .on_event(move |event: &Event<'_>| Message::of(event).into_iter().for_each(|message| event_sink(message)));
    let module = metrics_page::install(builder, &args).await?.build()?;

    let scenario = match args.report_as {
        Some(_) => join_fleet(&module, replicas, args.common.length()).await?,
        None => Scenario::repeating(args.common.length()),
    };
    let mut out = tokio::spawn(forward(module.clone(), messages, scenario, args.clone()));
    let pipeline = module.pipeline(NAME, ROUTE)?;
    let last = sink.clone();
    let traffic = async {
        match args.upstream {
            Some(address) => {
                Replica { pipeline, upstream: Arc::new(RemoteUpstream::at(address)), sink, rng }.run(scenario).await
            }
            None => {
                let upstream = Arc::new(Upstream::new(scenario, rng.fork()));
                Replica { pipeline, upstream, sink, rng }.run(scenario).await
            }
        }
    };
    tokio::select! {
        over = traffic => over?,
        stopped = stopped() => stopped?,
        written = &mut out => return Ok(written??),
    }
    module.leave_fleet().await;
    last(Message::Ended);
    Ok(out.await??)
}

fn message_channel() -> (MessageSink, Messages) {
    let (sender, messages) = mpsc::unbounded_channel();
    // The receiver is dropped when the process ends.
    (Arc::new(move |message| drop(sender.send((tokio::time::Instant::now(), message)))), messages)
}

/// Joins the fleet, prints `ready`, and waits for the start of the scenario.
async fn join_fleet(module: &ResilienceModule, replicas: usize, length: Duration) -> Result<Scenario, Box<dyn Error>> {
    let pipeline = module.pipeline(NAME, ROUTE)?;
    for _ in 0..JOIN_CHECKS {
        pipeline.circuit().await;
        if module.replicas().is_some_and(|live| live as usize >= replicas) {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    let started_ago = read_start();
    print_line("ready")?;
    Ok(Scenario::started_ago(started_ago.await?, length))
}

/// Reads `<microseconds since the start of the scenario>` from the standard input, then waits for its end, which ends this
/// process: no replica outlives the demo.
fn read_start() -> oneshot::Receiver<Duration> {
    let (sender, started_ago) = oneshot::channel();
    std::thread::spawn(move || {
        let mut lines = io::stdin().lock().lines().map_while(Result::ok);
        let ago = lines.next().and_then(|line| line.parse().ok()).map(Duration::from_micros);
        if let Some(ago) = ago {
            let _ = sender.send(ago);
        }
        lines.for_each(drop);
        std::process::exit(0);
    });
    started_ago
}

/// Prints messages, and the status at every interval.
async fn forward(
    module: ResilienceModule,
    mut messages: Messages,
    scenario: Scenario,
    args: ReplicaArgs,
) -> io::Result<()> {
    let mut replica_log = args.report_as.is_none().then(|| Log::new(args.name, scenario));
    let mut status_interval = interval(STATUS_INTERVAL);
    loop {
        let (at, message) = tokio::select! {
            message = messages.recv() => match message {
                Some((at, message)) => (at.duration_since(scenario.started_at()), message),
                None => return Ok(()),
            },
            _ = status_interval.tick() => match status(&module).await {
                Some(status) => (scenario.now(), Message::Status(status)),
                None => continue,
            },
        };
        let degraded = module.store_mode() == Some(StoreMode::Degraded);
        let message = match message {
            Message::BreakerChanged { change, .. } => Message::BreakerChanged { change, degraded },
            other => other,
        };
        let ended = matches!(message, Message::Ended);
        match &mut replica_log {
            Some(replica_log) => replica_log.print(at, message, &mut io::stdout().lock())?,
            None => print_line(&TimedMessage(at, &message).to_string())?,
        }
        if ended {
            return Ok(());
        }
    }
}

async fn status(module: &ResilienceModule) -> Option<ReplicaStatus> {
    let circuit = module.pipeline(NAME, ROUTE).ok()?.circuit().await?;
    let degraded = module.store_mode() == Some(StoreMode::Degraded);
    Some(ReplicaStatus { circuit, fleet: Some(Membership { degraded, live: module.replicas().unwrap_or(0) }) })
}

fn print_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush())
}

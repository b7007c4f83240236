//! A replica as a process of its own: one module over Redis. Alone it prints a line a second; started by the show it
//! tells every call on its standard output, and ends when its standard input is closed.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::store::StoreMode;
use phalanx::{Event, ResilienceModule};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{interval, sleep};

use crate::args::Single;
use crate::log::Log;
use crate::metered;
use crate::policy::{self, NAME, ROUTE};
use crate::replica::{Replica, Tell};
use crate::report::{Membership, Report, Standing, Timed};
use crate::service::Remote;
use crate::stop::stopped;
use crate::story::Story;
use crate::upstream::Upstream;

/// A debug build beside a compiler deserves more patience than the default of 20 ms.
const BUDGET: Duration = Duration::from_millis(50);
/// How often it says how things stand.
const STAND: Duration = Duration::from_millis(250);
/// How long it waits for its fleet to be complete before the show begins.
const PATIENCE: u32 = 60;

/// Reports on their way out, with the time each was made.
type Reports = mpsc::UnboundedReceiver<(tokio::time::Instant, Report)>;

pub(crate) async fn run(args: Single) -> Result<(), Box<dyn Error>> {
    let (tell, reports) = teller();
    let number = args.report_as.unwrap_or_else(|| args.name.bytes().map(usize::from).sum());
    let rng = Rng::seeded(args.scale.seed.wrapping_add(number as u64 + 1));
    let replicas = usize::from(args.scale.replicas);
    let policy = policy::of(&Story::begin(args.scale.length()), replicas, policy::ONE_PROBE);
    let scribe = tell.clone();
    // The line that makes it one of a fleet.
    let builder = ResilienceModule::with_redis(redis::Client::open(args.redis.as_str())?)
        .environment(&args.environment)
        .store_budget(BUDGET)
        .policy(policy)
        .on_event(move |event: &Event<'_>| Report::of(event).into_iter().for_each(|report| scribe(report)));
    let module = metered::shown(builder, &args).await?.build()?;

    let story = match args.report_as {
        Some(_) => begin(&module, replicas, args.scale.length()).await?,
        None => Story::endless(args.scale.length()),
    };
    let mut out = tokio::spawn(pass_on(module.clone(), reports, story, args.clone()));
    let pipeline = module.pipeline(NAME, ROUTE)?;
    let last = tell.clone();
    let traffic = async {
        match args.upstream {
            Some(address) => Replica { pipeline, upstream: Arc::new(Remote::at(address)), tell, rng }.run(story).await,
            None => {
                let upstream = Arc::new(Upstream::new(story, rng.fork()));
                Replica { pipeline, upstream, tell, rng }.run(story).await
            }
        }
    };
    tokio::select! {
        over = traffic => over?,
        stopped = stopped() => stopped?,
        written = &mut out => return Ok(written??),
    }
    module.leave_fleet().await;
    last(Report::Ended);
    Ok(out.await??)
}

fn teller() -> (Tell, Reports) {
    let (sender, reports) = mpsc::unbounded_channel();
    // Nobody listens any more when the process ends.
    (Arc::new(move |report| drop(sender.send((tokio::time::Instant::now(), report)))), reports)
}

/// Joins the fleet, says so, and waits for the word that the story has begun.
async fn begin(module: &ResilienceModule, replicas: usize, length: Duration) -> Result<Story, Box<dyn Error>> {
    let pipeline = module.pipeline(NAME, ROUTE)?;
    for _ in 0..PATIENCE {
        pipeline.circuit().await;
        if module.replicas().is_some_and(|live| live as usize >= replicas) {
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    let begun = obey_input();
    say("ready")?;
    Ok(Story::begun(begun.await?, length))
}

/// Waits for `<microseconds since the story began>` on the standard input, then for its end, which is the end of this
/// process: no replica outlives the show.
fn obey_input() -> oneshot::Receiver<Duration> {
    let (sender, begun) = oneshot::channel();
    std::thread::spawn(move || {
        let mut lines = io::stdin().lock().lines().map_while(Result::ok);
        let ago = lines.next().and_then(|line| line.parse().ok()).map(Duration::from_micros);
        if let Some(ago) = ago {
            let _ = sender.send(ago);
        }
        lines.for_each(drop);
        std::process::exit(0);
    });
    begun
}

/// Passes reports on, with how things stand in between.
async fn pass_on(module: ResilienceModule, mut reports: Reports, story: Story, args: Single) -> io::Result<()> {
    let mut log = args.report_as.is_none().then(|| Log::new(args.name, story));
    let mut stands = interval(STAND);
    loop {
        let (at, report) = tokio::select! {
            report = reports.recv() => match report {
                Some((at, report)) => (at.duration_since(story.began()), report),
                None => return Ok(()),
            },
            _ = stands.tick() => match standing(&module).await {
                Some(standing) => (story.now(), Report::Stands(standing)),
                None => continue,
            },
        };
        let alone = module.store_mode() == Some(StoreMode::Degraded);
        let report = match report {
            Report::Changed { change, .. } => Report::Changed { change, alone },
            other => other,
        };
        let ended = matches!(report, Report::Ended);
        match &mut log {
            Some(log) => log.note(at, report, &mut io::stdout().lock())?,
            None => say(&Timed(at, &report).to_string())?,
        }
        if ended {
            return Ok(());
        }
    }
}

async fn standing(module: &ResilienceModule) -> Option<Standing> {
    let circuit = module.pipeline(NAME, ROUTE).ok()?.circuit().await?;
    let alone = module.store_mode() == Some(StoreMode::Degraded);
    Some(Standing { circuit, fleet: Some(Membership { alone, live: module.replicas().unwrap_or(0) }) })
}

fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush())
}

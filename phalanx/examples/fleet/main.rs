//! A fleet in one terminal: several replicas share one circuit and one rate limit while their upstream is healthy,
//! turns slow, dies, and comes back.
//!
//! ```text
//!   cargo run --example fleet                    20 seconds, live
//!   cargo run --example fleet -- --seconds 5     the same story, told faster
//!   cargo run --example fleet | cat              plain lines
//! ```
//!
//! Each replica is a task with a [`ResilienceModule`](phalanx::ResilienceModule) of its own; what they share is the
//! store. The files: `story` (what happens when), `upstream` (what is called), `policy` (what stands between), `replica`
//! (who calls), `ledger` (what came of it), `board` and `lines` (how it is shown), `summary` (what it means).

mod board;
mod ledger;
mod lines;
mod moment;
mod paint;
mod policy;
mod replica;
mod screen;
mod story;
mod summary;
mod table;
mod tally;
mod timeline;
mod upstream;

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use phalanx::base::rng::Rng;
use phalanx::{Clock, MemoryStore};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::board::Board;
use crate::ledger::Ledger;
use crate::lines::Lines;
use crate::replica::Replica;
use crate::story::Story;
use crate::upstream::Upstream;

/// How often the board is drawn: often enough to look alive, seldom enough to be read.
const FRAME: Duration = Duration::from_millis(125);

/// Replicas that hold the line together, live.
#[derive(Debug, Parser)]
#[command(name = "fleet")]
struct Args {
    /// How long the story takes.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(3..=3600))]
    seconds: u32,
    /// The seed of everything random: arrivals, latencies, jitter.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// How many replicas call the upstream.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    replicas: u8,
}

/// Where the story is shown.
enum Stage {
    Board(Board),
    Lines(Lines),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    match play(&Args::parse()).await {
        // `fleet | head` has seen enough; that is no failure.
        Err(error) if is_broken_pipe(error.as_ref()) => Ok(ExitCode::SUCCESS),
        told => told,
    }
}

async fn play(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let rng = Rng::seeded(args.seed);
    let replicas = usize::from(args.replicas);
    let story = Story::begin(Duration::from_secs(args.seconds.into()));
    let policy = policy::of(&story, replicas);
    let ledger = Arc::new(Ledger::new(story, policy.clone(), replicas));
    let upstream = Arc::new(Upstream::new(story, rng.fork()));

    // The one line that makes them a fleet: every module keeps its state in the same store.
    let store = MemoryStore::seeded(Clock::default(), 64, rng.fork());
    let mut pipelines = Vec::with_capacity(replicas);
    let mut fleet = JoinSet::new();
    for number in 0..replicas {
        let replica = Replica::new(number, store.clone(), policy.clone(), ledger.clone(), rng.fork())?;
        pipelines.push(replica.pipeline());
        fleet.spawn(replica.run(upstream.clone()));
    }

    let mut stage = if screen::is_live() {
        Stage::Board(Board::open(ledger.clone(), pipelines)?)
    } else {
        Stage::Lines(Lines::new(ledger.clone()))
    };
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut stop = pin!(tokio::signal::ctrl_c());
    let mut interrupted = false;
    loop {
        tokio::select! {
            biased;
            pressed = &mut stop => {
                pressed?;
                interrupted = true;
                break;
            }
            ended = fleet.join_next() => match ended {
                Some(replica) => replica??,
                None => break,
            },
            _ = frames.tick() => stage.show().await?,
        }
    }
    stage.show().await?;
    drop(stage); // gives the cursor back before anything else is printed

    let colour = screen::has_colour() && io::stdout().is_terminal();
    summary::print(&mut io::stdout().lock(), &ledger, args.seed, colour)?;
    io::stdout().flush()?;
    Ok(if interrupted { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

impl Stage {
    async fn show(&mut self) -> io::Result<()> {
        match self {
            Self::Board(board) => board.draw().await,
            Self::Lines(lines) => lines.print(&mut io::stdout().lock()),
        }
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

//! The fleet in one process: every replica is a task with a module of its own; what they share is the store.

use std::error::Error;
use std::sync::Arc;

use phalanx::store::MemoryStore;
use phalanx::store::Rng;
use phalanx::{Clock, Event, Pipeline, ResilienceModule};
use tokio::task::JoinSet;

use crate::args::Show;
use crate::ledger::Ledger;
use crate::policy::{self, NAME, ROUTE};
use crate::replica::{Dependency, Replica, Tell};
use crate::report::{Report, Standing};
use crate::stage::{Stage, Watch};
use crate::story::Story;
use crate::upstream::{BadGateway, Upstream};

/// The upstream, and who counts what reaches it.
struct Counted {
    upstream: Upstream,
    ledger: Arc<Ledger>,
}

impl Dependency for Counted {
    async fn answer(&self, first: bool) -> Result<(), BadGateway> {
        self.ledger.reached(first);
        self.upstream.serve().await
    }
}

pub(crate) async fn play(show: &Show) -> Result<(Arc<Ledger>, bool), Box<dyn Error>> {
    let rng = Rng::seeded(show.scale.seed);
    let replicas = usize::from(show.scale.replicas);
    let story = Story::begin(show.scale.length());
    let policy = policy::of(&story, replicas, policy::TWO_PROBES);
    let ledger = Arc::new(Ledger::new(story, policy.clone(), replicas));
    let upstream = Arc::new(Counted { upstream: Upstream::new(story, rng.fork()), ledger: ledger.clone() });

    // The one line that makes them a fleet: every module keeps its state in the same store.
    let store = MemoryStore::seeded(Clock::default(), 64, rng.fork());
    let mut pipelines = Vec::with_capacity(replicas);
    let mut fleet = JoinSet::new();
    for number in 0..replicas {
        let rng = rng.fork();
        let tell = teller(number, ledger.clone());
        let scribe = tell.clone();
        let module = ResilienceModule::in_store(store.clone())
            .policy(policy.clone())
            .on_event(move |event: &Event<'_>| Report::of(event).into_iter().for_each(|report| scribe(report)))
            .seed(rng.next())
            .build()?;
        let pipeline = module.pipeline(NAME, ROUTE)?;
        pipelines.push(pipeline.clone());
        fleet.spawn(Replica { pipeline, upstream: upstream.clone(), tell, rng }.run(story));
    }

    let mut watch = Watch::begin(Stage::open(ledger.clone())?);
    loop {
        tokio::select! {
            biased;
            frame = watch.next() => match frame? {
                Some(()) => look(&pipelines, &ledger).await,
                None => return Ok((ledger, true)),
            },
            ended = fleet.join_next() => match ended {
                Some(replica) => replica??,
                None => break,
            },
        }
    }
    look(&pipelines, &ledger).await;
    watch.show()?;
    Ok((ledger, false))
}

/// Writes what a replica tells into the ledger, under its number.
fn teller(number: usize, ledger: Arc<Ledger>) -> Tell {
    Arc::new(move |report| ledger.note(number, ledger.story().now(), report))
}

async fn look(pipelines: &[Pipeline], ledger: &Ledger) {
    for (number, pipeline) in pipelines.iter().enumerate() {
        if let Some(circuit) = pipeline.circuit().await {
            ledger.note(number, ledger.story().now(), Report::Stands(Standing { circuit, fleet: None }));
        }
    }
}

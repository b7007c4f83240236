//! The fleet in one process: every replica is a task with its own module, and all modules share one store.

use std::error::Error;
use std::sync::Arc;

use phalanx::store::MemoryStore;
use phalanx::store::Rng;
use phalanx::{Clock, Event, Pipeline, ResilienceModule};
use tokio::task::JoinSet;

use crate::args::DemoArgs;
use crate::display::{Display, Output};
use crate::message::{Message, ReplicaStatus};
use crate::policy::{self, NAME, ROUTE};
use crate::recorder::Recorder;
use crate::replica::{Dependency, MessageSink, Replica};
use crate::scenario::Scenario;
use crate::upstream::{BadGateway, Upstream};

/// The upstream, and the recorder that counts what reaches it.
struct CountedUpstream {
    upstream: Upstream,
    recorder: Arc<Recorder>,
}

impl Dependency for CountedUpstream {
    async fn answer(&self, first: bool) -> Result<(), BadGateway> {
        self.recorder.record_attempt(first);
        self.upstream.serve().await
    }
}

pub(crate) async fn run(args: &DemoArgs) -> Result<(Arc<Recorder>, bool), Box<dyn Error>> {
    let rng = Rng::seeded(args.common.seed);
    let replicas = usize::from(args.common.replicas);
    let scenario = Scenario::start(args.common.length());
    let policy = policy::of(&scenario, replicas, policy::TWO_PROBES);
    let recorder = Arc::new(Recorder::new(scenario, policy.clone(), replicas));
    let upstream =
        Arc::new(CountedUpstream { upstream: Upstream::new(scenario, rng.fork()), recorder: recorder.clone() });

    // What makes them a fleet: every module keeps its state in the same store.
    let store = MemoryStore::seeded(Clock::default(), 64, rng.fork());
    let mut pipelines = Vec::with_capacity(replicas);
    let mut fleet = JoinSet::new();
    for number in 0..replicas {
        let rng = rng.fork();
        let sink = sink_for(number, recorder.clone());
        let event_sink = sink.clone();
        let module = ResilienceModule::in_store(store.clone())
            .policy(policy.clone())
            .on_event(move |event: &Event<'_>| Message::of(event).into_iter().for_each(|message| event_sink(message)))
            .seed(rng.next())
            .build()?;
        let pipeline = module.pipeline(NAME, ROUTE)?;
        pipelines.push(pipeline.clone());
        fleet.spawn(Replica { pipeline, upstream: upstream.clone(), sink, rng }.run(scenario));
    }

    let mut display = Display::start(Output::open(recorder.clone())?);
    loop {
        tokio::select! {
            biased;
            frame = display.next() => match frame? {
                Some(()) => record_statuses(&pipelines, &recorder).await,
                None => return Ok((recorder, true)),
            },
            ended = fleet.join_next() => match ended {
                Some(replica) => replica??,
                None => break,
            },
        }
    }
    record_statuses(&pipelines, &recorder).await;
    display.update()?;
    Ok((recorder, false))
}

/// A sink that records the messages of the replica with this number.
fn sink_for(number: usize, recorder: Arc<Recorder>) -> MessageSink {
    Arc::new(move |message| recorder.record(number, recorder.scenario().now(), message))
}

async fn record_statuses(pipelines: &[Pipeline], recorder: &Recorder) {
    for (number, pipeline) in pipelines.iter().enumerate() {
        if let Some(circuit) = pipeline.circuit().await {
            recorder.record(number, recorder.scenario().now(), Message::Status(ReplicaStatus { circuit, fleet: None }));
        }
    }
}

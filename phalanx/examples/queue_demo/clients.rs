//! The load: clients that send a call, wait for the answer until a timeout, pause, and start again.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{BulkheadSpec, Context, Criticality, Pipeline, Policy, RejectionCode, ResilienceModule, scope};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::latencies::Latencies;
use crate::simulation::{self, CLIENT_TIMEOUT, DURATION, SERVICE_TIME, USERS};

/// The results of all calls, or of one tier.
#[derive(Debug, Default)]
pub(crate) struct CallCounts {
    pub(crate) sent: u64,
    /// Answered before the client gave up.
    pub(crate) in_time: u64,
    /// Answered after the client gave up: the work was wasted.
    pub(crate) late: u64,
    pub(crate) rejected: BTreeMap<RejectionCode, u64>,
    pub(crate) latencies: Latencies,
}

impl CallCounts {
    fn count(&mut self, answer: Result<(), RejectionCode>, latency: Duration) {
        match answer {
            Err(code) => *self.rejected.entry(code).or_default() += 1,
            Ok(()) => {
                self.latencies.add(latency);
                *(if latency <= CLIENT_TIMEOUT { &mut self.in_time } else { &mut self.late }) += 1;
            }
        }
    }

    pub(crate) fn rejections(&self, code: RejectionCode) -> u64 {
        self.rejected.get(&code).copied().unwrap_or_default()
    }

    /// Calls that ended, with any result.
    pub(crate) fn ended(&self) -> u64 {
        self.in_time + self.late + self.rejected.values().sum::<u64>()
    }
}

/// The results of one queue under the load.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) all: CallCounts,
    pub(crate) tiers: BTreeMap<Criticality, CallCounts>,
    /// From the first call to the end of the last.
    pub(crate) elapsed: Duration,
    /// Calls that never ended.
    pub(crate) unfinished: u32,
}

impl Outcome {
    /// The calls of a tier answered in time, and all calls of that tier.
    pub(crate) fn tier(&self, criticality: Criticality) -> (u64, u64) {
        self.tiers.get(&criticality).map_or((0, 0), |counts| (counts.in_time, counts.sent))
    }

    pub(crate) fn per_second(&self, calls: u64) -> f64 {
        calls as f64 / self.elapsed.as_secs_f64()
    }

    fn update(&mut self, criticality: Criticality, update: impl Fn(&mut CallCounts)) {
        update(&mut self.all);
        update(self.tiers.entry(criticality).or_default());
    }
}

type Shared = Arc<Mutex<Outcome>>;

fn update(outcome: &Shared, update: impl FnOnce(&mut Outcome)) {
    update(&mut outcome.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Runs the whole load against one queue, until every slot is free again.
pub(crate) async fn load(queue: BulkheadSpec, seed: u64) -> Result<Outcome, Box<dyn Error>> {
    let module = ResilienceModule::in_memory().policy(Policy::named("dependency").bulkhead(queue)).build()?;
    let pipeline = module.pipeline("dependency", ())?;
    let (outcome, rng, start) = (Shared::default(), Rng::seeded(seed), Instant::now());
    let users = (0..USERS).map(|user| {
        let client = Client {
            criticality: simulation::criticality(user),
            pipeline: pipeline.clone(),
            rng: Arc::new(rng.fork()),
            outcome: outcome.clone(),
        };
        tokio::spawn(client.run(start + DURATION))
    });
    for user in users.collect::<Vec<_>>() {
        user.await?;
    }
    // A call that has not ended by then never will.
    let in_flight = || pipeline.bulkhead().map_or(0, |view| view.in_use + view.waiting);
    while in_flight() > 0 && start.elapsed() < 2 * DURATION {
        sleep(SERVICE_TIME.end).await;
    }
    let mut whole = Outcome::default();
    update(&outcome, |outcome| std::mem::swap(&mut whole, outcome));
    (whole.elapsed, whole.unfinished) = (start.elapsed(), in_flight());
    Ok(whole)
}

struct Client {
    criticality: Criticality,
    pipeline: Pipeline,
    rng: Arc<Rng>,
    outcome: Shared,
}

impl Client {
    async fn run(self, end: Instant) {
        loop {
            sleep_until(end.min(Instant::now() + simulation::think_time(&self.rng))).await;
            if Instant::now() >= end {
                return;
            }
            // As over a network: the server keeps working for a client that has given up.
            let _ = timeout(CLIENT_TIMEOUT, tokio::spawn(self.send())).await;
        }
    }

    /// One call on the side of the server.
    fn send(&self) -> impl Future<Output = ()> + Send + 'static {
        let (pipeline, rng, criticality) = (self.pipeline.clone(), self.rng.clone(), self.criticality);
        let (outcome, start) = (self.outcome.clone(), Instant::now());
        update(&outcome, |outcome| outcome.update(criticality, |counts| counts.sent += 1));
        scope(Context::EMPTY.with_criticality(criticality), async move {
            let dependency = || async {
                sleep(rng.between(SERVICE_TIME.start, SERVICE_TIME.end)).await;
                Ok::<(), Infallible>(())
            };
            let answer = match pipeline.run(dependency).await {
                Ok(()) => Ok(()),
                Err(phalanx::Error::Rejected(rejection)) => Err(rejection.code()),
                Err(phalanx::Error::Inner(never)) => match never {},
            };
            update(&outcome, |outcome| outcome.update(criticality, |counts| counts.count(answer, start.elapsed())));
        })
    }
}

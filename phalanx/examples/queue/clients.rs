//! The load: a crowd of clients, each of whom asks, waits as long as his patience lasts, thinks, and asks again.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use phalanx::Error as Rejected;
use phalanx::store::Rng;
use phalanx::{BulkheadSpec, Context, Criticality, Pipeline, Policy, RejectionCode, ResilienceModule, scope};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::latencies::Latencies;
use crate::scene::{self, LENGTH, PATIENCE, SERVICE, USERS};

/// What became of the calls, in all or of one tier.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) asked: u64,
    /// Answered while the client was still there.
    pub(crate) in_time: u64,
    /// Answered to nobody: the work was done, and for nothing.
    pub(crate) late: u64,
    pub(crate) rejected: BTreeMap<RejectionCode, u64>,
    pub(crate) latencies: Latencies,
}

impl Tally {
    fn count(&mut self, answer: Result<(), RejectionCode>, latency: Duration) {
        match answer {
            Err(code) => *self.rejected.entry(code).or_default() += 1,
            Ok(()) => {
                self.latencies.add(latency);
                *(if latency <= PATIENCE { &mut self.in_time } else { &mut self.late }) += 1;
            }
        }
    }

    pub(crate) fn rejections(&self, code: RejectionCode) -> u64 {
        self.rejected.get(&code).copied().unwrap_or_default()
    }

    /// Calls that have ended in one way or another.
    pub(crate) fn ended(&self) -> u64 {
        self.in_time + self.late + self.rejected.values().sum::<u64>()
    }
}

/// What one queue made of the load.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) all: Tally,
    pub(crate) tiers: BTreeMap<Criticality, Tally>,
    /// From the first call until the last was over.
    pub(crate) took: Duration,
    /// Calls that were not over even long after that.
    pub(crate) lost: u32,
}

impl Outcome {
    /// Calls of a tier that were answered in time, and all of them.
    pub(crate) fn tier(&self, criticality: Criticality) -> (u64, u64) {
        self.tiers.get(&criticality).map_or((0, 0), |tally| (tally.in_time, tally.asked))
    }

    pub(crate) fn per_second(&self, calls: u64) -> f64 {
        calls as f64 / self.took.as_secs_f64()
    }

    fn each(&mut self, criticality: Criticality, note: impl Fn(&mut Tally)) {
        note(&mut self.all);
        note(self.tiers.entry(criticality).or_default());
    }
}

type Shared = Arc<Mutex<Outcome>>;

fn note(outcome: &Shared, note: impl FnOnce(&mut Outcome)) {
    note(&mut outcome.lock().unwrap_or_else(PoisonError::into_inner));
}

/// The whole crowd against one queue, from the first call to the last slot given back.
pub(crate) async fn load(queue: BulkheadSpec, seed: u64) -> Result<Outcome, Box<dyn Error>> {
    let module = ResilienceModule::in_memory().policy(Policy::named("dependency").bulkhead(queue)).build()?;
    let pipeline = module.pipeline("dependency", ())?;
    let (outcome, chance, start) = (Shared::default(), Rng::seeded(seed), Instant::now());
    let users = (0..USERS).map(|user| {
        let client = Client {
            criticality: scene::criticality(user),
            pipeline: pipeline.clone(),
            chance: Arc::new(chance.fork()),
            outcome: outcome.clone(),
        };
        tokio::spawn(client.live(start + LENGTH))
    });
    for user in users.collect::<Vec<_>>() {
        user.await?;
    }
    // Whoever waited longest has been answered by then, or never will be.
    let under_way = || pipeline.bulkhead().map_or(0, |view| view.in_use + view.waiting);
    while under_way() > 0 && start.elapsed() < 2 * LENGTH {
        sleep(SERVICE.end).await;
    }
    let mut whole = Outcome::default();
    note(&outcome, |outcome| std::mem::swap(&mut whole, outcome));
    (whole.took, whole.lost) = (start.elapsed(), under_way());
    Ok(whole)
}

struct Client {
    criticality: Criticality,
    pipeline: Pipeline,
    chance: Arc<Rng>,
    outcome: Shared,
}

impl Client {
    async fn live(self, end: Instant) {
        loop {
            sleep_until(end.min(Instant::now() + scene::think(&self.chance))).await;
            if Instant::now() >= end {
                return;
            }
            // As over a network: when the client is gone, the server works on and does not know.
            let _ = timeout(PATIENCE, tokio::spawn(self.ask())).await;
        }
    }

    /// One call, as the server sees it.
    fn ask(&self) -> impl Future<Output = ()> + Send + 'static {
        let (pipeline, chance, criticality) = (self.pipeline.clone(), self.chance.clone(), self.criticality);
        let (outcome, start) = (self.outcome.clone(), Instant::now());
        note(&outcome, |outcome| outcome.each(criticality, |tally| tally.asked += 1));
        scope(Context::EMPTY.with_criticality(criticality), async move {
            let dependency = || async {
                sleep(chance.between(SERVICE.start, SERVICE.end)).await;
                Ok::<(), Infallible>(())
            };
            let answer = match pipeline.run(dependency).await {
                Ok(()) => Ok(()),
                Err(Rejected::Rejected(why)) => Err(why.code()),
                Err(Rejected::Inner(never)) => match never {},
            };
            note(&outcome, |outcome| outcome.each(criticality, |tally| tally.count(answer, start.elapsed())));
        })
    }
}

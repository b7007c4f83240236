//! The requests that reach one replica, and what became of them.

use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use phalanx::store::{MemoryStore, Rng};
use phalanx::{Clock, Error as CallError, ResilienceModule};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::gateway::{self, ALL, POLICY, ROUTE, TENANT, TENANTS, Tenant};

/// How many of ten requests each replica gets: the load balancer is not fair.
pub(crate) const SHARES: [u32; 3] = [6, 3, 1];

/// The tokens of a prompt, the most of an answer, and the tokens of a real one.
const PROMPT: (u64, u64) = (50, 200);
const MAX_ANSWER: u64 = 400;
const ANSWER: (u64, u64) = (50, 300);

/// How long the model takes for an answer. The longer it takes, the less comes back: a bucket has refilled meanwhile.
pub(crate) const LATENCY_MILLIS: (u64, u64) = (20, 80);

/// What became of the requests of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) answered: u64,
    /// Rejected by the tenant's own limit, and by that of all.
    pub(crate) over_tenant: u64,
    pub(crate) over_all: u64,
    /// Of the answered ones: the tokens that they paid, and those that they took.
    pub(crate) estimated: u64,
    pub(crate) tokens: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.answered += other.answered;
        self.over_tenant += other.over_tenant;
        self.over_all += other.over_all;
        self.estimated += other.estimated;
        self.tokens += other.tokens;
    }
}

/// The counts of all tenants, in their order.
pub(crate) type AllCounts = [Counts; TENANTS.len()];

/// Runs all replicas in this process, over one store.
pub(crate) async fn in_one_process(length: Duration, seed: u64) -> Result<AllCounts, Box<dyn Error>> {
    let rng = Rng::seeded(seed);
    let store = MemoryStore::seeded(Clock::default(), 64, rng.fork());
    let mut replicas = JoinSet::new();
    for number in 0..SHARES.len() {
        let module = ResilienceModule::in_store(store.clone()).policy(gateway::policy()).seed(rng.next()).build()?;
        replicas.spawn(replica(module, number, length, rng.fork()));
    }
    let mut sum = AllCounts::default();
    while let Some(counts) = replicas.join_next().await {
        sum.iter_mut().zip(counts?).for_each(|(sum, counts)| sum.add(&counts));
    }
    Ok(sum)
}

/// Sends the requests of one replica, and waits for all answers.
pub(crate) async fn replica(module: ResilienceModule, number: usize, length: Duration, rng: Rng) -> AllCounts {
    let mut tenants = JoinSet::new();
    for (index, tenant) in TENANTS.into_iter().enumerate() {
        let (module, rng) = (module.clone(), rng.fork());
        let share = f64::from(SHARES[number]) / f64::from(SHARES.iter().sum::<u32>());
        tenants.spawn(async move { (index, requests(module, tenant, share, length, rng).await) });
    }
    let mut all = AllCounts::default();
    while let Some(Ok((index, counts))) = tenants.join_next().await {
        all[index] = counts;
    }
    all
}

/// Sends the requests of one tenant at random times.
async fn requests(module: ResilienceModule, tenant: Tenant, share: f64, length: Duration, rng: Rng) -> Counts {
    let mean = |(least, most): (u64, u64)| (least + most) as f64 / 2.0;
    let per_second = tenant.wants_per_minute as f64 * share / 60.0 / (mean(PROMPT) + mean(ANSWER));
    let counts = Arc::new(Mutex::new(Counts::default()));
    let (start, mut next, mut running) = (Instant::now(), Duration::ZERO, JoinSet::new());
    loop {
        next += Duration::from_secs_f64(-(1.0 - rng.unit()).ln() / per_second);
        if next >= length {
            break;
        }
        sleep_until(start + next).await;
        let prompt = between(&rng, PROMPT);
        let request = Request {
            estimate: prompt + MAX_ANSWER,
            tokens: prompt + between(&rng, ANSWER),
            takes: Duration::from_millis(between(&rng, LATENCY_MILLIS)),
        };
        running.spawn(request.send(module.clone(), tenant.name, counts.clone()));
    }
    while running.join_next().await.is_some() {}
    let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    *counts
}

fn between(rng: &Rng, (least, most): (u64, u64)) -> u64 {
    least + (rng.unit() * (most - least + 1) as f64) as u64
}

/// One request: what it may take at most, and what it will have taken.
struct Request {
    estimate: u64,
    tokens: u64,
    takes: Duration,
}

impl Request {
    async fn send(self, module: ResilienceModule, tenant: &'static str, counts: Arc<Mutex<Counts>>) {
        let call = module.call(POLICY, ROUTE).tag("tenant", tenant).cost(self.estimate as u32);
        let used = |answer: &Result<u64, CallError<io::Error>>| answer.as_ref().ok().map(|tokens| *tokens as u32);
        let answer = call.settle_cost(used).run(|| self.answer()).await;
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.requests += 1;
        match answer {
            Ok(tokens) => {
                counts.answered += 1;
                counts.estimated += self.estimate;
                counts.tokens += tokens;
            }
            Err(error) => match error.rejection().and_then(|rejection| rejection.limit()) {
                Some(TENANT) => counts.over_tenant += 1,
                Some(ALL) => counts.over_all += 1,
                _ => {}
            },
        }
    }

    /// The model.
    async fn answer(&self) -> Result<u64, io::Error> {
        sleep(self.takes).await;
        Ok(self.tokens)
    }
}

//! The calls of one run: they come as they please, and what became of each is written down.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{HedgeSpec, Policy, ResilienceModule};
use tokio::time::{Instant, sleep_until};

use crate::latencies::Latencies;
use crate::scene::{self, Day, LENGTH, RATE};

/// What came of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) calls: u64,
    /// How often the dependency was asked.
    pub(crate) runs: u64,
    pub(crate) copies: u64,
    /// Answers that were a copy's.
    pub(crate) won: u64,
    pub(crate) latencies: Latencies,
    /// How long an attempt had to answer before a copy was sent, in the end.
    pub(crate) delay: Option<Duration>,
}

/// Half a minute of calls. Those of two runs with the same seed come at the same moments and take as long.
pub(crate) async fn run(day: Day, hedge: Option<HedgeSpec>, seed: u64) -> Result<Outcome, Box<dyn Error>> {
    let policy = Policy::named("dependency").idempotent();
    let policy = if let Some(hedge) = hedge { policy.hedge(hedge) } else { policy };
    let module = ResilienceModule::in_memory().policy(policy).build()?;
    let pipeline = module.pipeline("dependency", ())?;
    let (arrivals, runs) = (Rng::seeded(seed), Arc::new(AtomicU64::new(0)));
    let (mut calls, start) = (Vec::new(), Instant::now());
    let mut at = start;
    while at < start + LENGTH {
        sleep_until(at).await;
        let (pipeline, runs, chance) = (pipeline.clone(), runs.clone(), arrivals.fork());
        calls.push(tokio::spawn(async move {
            let dependency = || {
                runs.fetch_add(1, Ordering::Relaxed);
                let answer = Instant::now() + scene::latency(day, &chance);
                async move {
                    sleep_until(answer).await;
                    Ok::<(), Infallible>(())
                }
            };
            pipeline.call().run_recorded(dependency).await.1
        }));
        at += Duration::from_secs_f64(-(1.0 - arrivals.unit()).ln() / RATE);
    }
    let mut outcome = Outcome { calls: calls.len() as u64, delay: pipeline.hedge_delay(), ..Outcome::default() };
    for call in calls {
        let record = call.await?;
        outcome.copies += u64::from(record.hedges);
        outcome.won += u64::from(record.hedge_won);
        outcome.latencies.add(record.elapsed);
    }
    outcome.runs = runs.load(Ordering::Relaxed);
    Ok(outcome)
}

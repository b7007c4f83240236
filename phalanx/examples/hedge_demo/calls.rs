//! The calls of one run, at random intervals, and their results.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{HedgeSpec, Policy, ResilienceModule};
use tokio::time::{Instant, sleep_until};

use crate::latencies::Latencies;
use crate::simulation::{self, CALLS_PER_SECOND, Condition, DURATION};

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) calls: u64,
    /// How often the dependency was called.
    pub(crate) runs: u64,
    pub(crate) hedges: u64,
    /// Calls answered by a hedge.
    pub(crate) won: u64,
    pub(crate) latencies: Latencies,
    /// The delay before a hedge, at the end of the run.
    pub(crate) delay: Option<Duration>,
}

/// Runs half a minute of calls. With the same seed they start at the same times and take as long.
pub(crate) async fn run(condition: Condition, hedge: Option<HedgeSpec>, seed: u64) -> Result<Outcome, Box<dyn Error>> {
    let policy = Policy::named("dependency").idempotent();
    let policy = if let Some(hedge) = hedge { policy.hedge(hedge) } else { policy };
    let module = ResilienceModule::in_memory().policy(policy).build()?;
    let pipeline = module.pipeline("dependency", ())?;
    let (arrivals, runs) = (Rng::seeded(seed), Arc::new(AtomicU64::new(0)));
    let (mut calls, start) = (Vec::new(), Instant::now());
    let mut at = start;
    while at < start + DURATION {
        sleep_until(at).await;
        let (pipeline, runs, rng) = (pipeline.clone(), runs.clone(), arrivals.fork());
        calls.push(tokio::spawn(async move {
            let dependency = || {
                runs.fetch_add(1, Ordering::Relaxed);
                let answer = Instant::now() + simulation::latency(condition, &rng);
                async move {
                    sleep_until(answer).await;
                    Ok::<(), Infallible>(())
                }
            };
            pipeline.call().run_recorded(dependency).await.1
        }));
        at += Duration::from_secs_f64(-(1.0 - arrivals.unit()).ln() / CALLS_PER_SECOND);
    }
    let mut outcome = Outcome { calls: calls.len() as u64, delay: pipeline.hedge_delay(), ..Outcome::default() };
    for call in calls {
        let record = call.await?;
        outcome.hedges += u64::from(record.hedges);
        outcome.won += u64::from(record.hedge_won);
        outcome.latencies.add(record.elapsed);
    }
    outcome.runs = runs.load(Ordering::Relaxed);
    Ok(outcome)
}

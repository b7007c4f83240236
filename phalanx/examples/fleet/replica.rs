//! One replica: a module of its own over the fleet's store, and the traffic it has to serve.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use phalanx::base::rng::Rng;
use phalanx::{Event, MemoryStore, Observer, Pipeline, Policy, ResilienceModule, What};
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep_until;

use crate::ledger::Ledger;
use crate::policy::{DEMAND, NAME, ROUTE};
use crate::upstream::Upstream;

/// A process of the fleet, played by a task.
pub(crate) struct Replica {
    number: usize,
    pipeline: Pipeline,
    ledger: Arc<Ledger>,
    rng: Rng,
}

/// Writes what the module tells into the ledger, under the replica's number.
struct Scribe {
    number: usize,
    ledger: Arc<Ledger>,
}

impl Replica {
    pub(crate) fn new(
        number: usize,
        store: MemoryStore,
        policy: Policy,
        ledger: Arc<Ledger>,
        rng: Rng,
    ) -> Result<Self, Box<dyn Error>> {
        let module = ResilienceModule::in_store(store)
            .policy(policy)
            .observer(Scribe { number, ledger: ledger.clone() })
            .seed(rng.next())
            .build()?;
        let pipeline = module.pipeline(NAME, ROUTE)?;
        Ok(Self { number, pipeline, ledger, rng })
    }

    pub(crate) fn pipeline(&self) -> Pipeline {
        self.pipeline.clone()
    }

    /// Calls the upstream until the story is over, then waits for the answers that are still due.
    pub(crate) async fn run(self, upstream: Arc<Upstream>) -> Result<(), JoinError> {
        let story = self.ledger.story();
        let mut due = story.began();
        let mut calls = JoinSet::new();
        loop {
            // Arrivals do not wait for answers: a slow upstream does not make customers stay at home.
            due += self.gap();
            sleep_until(due).await;
            if story.is_over() {
                break;
            }
            calls.spawn(call(self.number, self.pipeline.clone(), self.ledger.clone(), upstream.clone()));
            while let Some(done) = calls.try_join_next() {
                done?;
            }
        }
        while let Some(done) = calls.join_next().await {
            done?;
        }
        Ok(())
    }

    /// The time to the next customer: exponential, as for any crowd whose members do not know each other.
    fn gap(&self) -> Duration {
        let luck = 1.0 - self.rng.unit();
        Duration::from_secs_f64(-luck.ln() / DEMAND)
    }
}

async fn call(number: usize, pipeline: Pipeline, ledger: Arc<Ledger>, upstream: Arc<Upstream>) {
    let first = AtomicBool::new(true);
    let attempt = || async {
        ledger.reached(number, first.swap(false, Ordering::Relaxed));
        upstream.answer().await
    };
    // What came of it arrives in the ledger by way of the observer, as it would in production.
    let _ = pipeline.run(attempt).await;
}

impl Observer for Scribe {
    fn on_event(&self, event: &Event<'_>) {
        match event.what {
            What::Finished { outcome, kind, decision } => self.ledger.finished(self.number, outcome, kind, decision),
            What::Retry { .. } => self.ledger.retried(self.number),
            What::RetryBudgetExhausted => self.ledger.withheld(self.number),
            What::Transition(change) => self.ledger.changed(self.number, change),
            _ => {}
        }
    }
}

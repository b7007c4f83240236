//! A replica in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use phalanx::store::StoreMode;
use phalanx::{Pipeline, ResilienceModule};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::callers::{Ground, call_for_a_while};
use super::dependency::Dependency;
use super::ear::Ear;
use super::ledger::Ledger;
use super::moment::Moment;
use super::orders::{Gauges, Load, Order, Report, Setup};
use super::starvation;

/// The replica.
#[derive(Debug)]
pub struct Worker {
    ground: Arc<Ground>,
    ear: Ear,
    callers: JoinSet<()>,
    store_budget: Duration,
}

impl Worker {
    /// Made by this setup; it has not asked Redis for anything yet.
    pub fn new(setup: &Setup) -> Self {
        let ear = Ear::default();
        let module = setup.module().observer(ear.clone()).build().expect("a setup in order");
        let (dependency, ledger) = (Dependency::default(), Ledger::default());
        let ground = Ground { module, dependency, ledger, enough: AtomicBool::new(false) };
        Self { ground: Arc::new(ground), ear, callers: JoinSet::new(), store_budget: setup.store_budget }
    }

    /// Its module.
    pub fn module(&self) -> &ResilienceModule {
        &self.ground.module
    }

    /// Does as it is told, and reports.
    pub async fn obey(&mut self, order: Order) -> Report {
        match order {
            Order::Look => {}
            Order::Forget => {
                self.ground.ledger.take(self.store_budget);
                self.ear.forget();
            }
            Order::Behave(behaviour) => self.ground.dependency.behave(behaviour),
            Order::Start(load) => self.start(load),
            Order::Leave => self.ground.module.leave_fleet().await,
            Order::Finish | Order::Enough => {
                self.ground.enough.store(matches!(order, Order::Enough), Ordering::Relaxed);
                while let Some(ended) = self.callers.join_next().await {
                    ended.expect("a caller that does not panic");
                }
                self.ground.enough.store(false, Ordering::Relaxed);
                return Report { tally: self.ground.ledger.take(self.store_budget), ..self.look() };
            }
        }
        self.look()
    }

    /// Lets callers come, and waits for them all to end.
    pub async fn run(&mut self, load: Load) -> Report {
        self.start(load);
        self.obey(Order::Finish).await
    }

    /// Lets callers come.
    pub fn start(&mut self, load: Load) {
        if let Some(processes) = &load.starving {
            starvation::watch(processes);
        }
        let load = Arc::new(load);
        for number in 0..load.callers {
            self.callers.spawn(call_for_a_while(self.ground.clone(), load.clone(), number));
        }
    }

    /// What it has seen.
    pub fn look(&self) -> Report {
        let module = &self.ground.module;
        Report {
            at: Moment::now(),
            alone: module.store_mode() == Some(StoreMode::Degraded),
            replicas: module.replicas(),
            gauges: module.pipelines().iter().map(|pipeline| (pipeline.key().to_string(), gauges(pipeline))).collect(),
            tally: self.ground.ledger.look(),
            told: self.ear.told(),
        }
    }

    /// Waits until it has seen something. Panics with its last report if that takes too long.
    pub async fn until(&self, patience: Duration, what: &str, wanted: impl Fn(&Report) -> bool) -> Report {
        let seen = async {
            loop {
                let report = self.look();
                if wanted(&report) {
                    return report;
                }
                sleep(Duration::from_millis(2)).await;
            }
        };
        let seen = timeout(patience, seen).await;
        seen.unwrap_or_else(|_| panic!("not within {patience:?}: {what}; {:#?}", self.look()))
    }
}

fn gauges(pipeline: &Pipeline) -> Gauges {
    Gauges { limit: pipeline.bulkhead().map(|view| view.limit), hedge_delay: pipeline.hedge_delay() }
}

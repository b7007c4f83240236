//! A replica in the test process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use phalanx::store::StoreMode;
use phalanx::{Pipeline, ResilienceModule};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::callers::{Shared, run_caller};
use super::commands::{Command, Gauges, Load, Report, Setup};
use super::dependency::Dependency;
use super::event_log::EventLog;
use super::ledger::Ledger;
use super::moment::Moment;
use super::starvation;

/// A replica running in this process.
#[derive(Debug)]
pub struct LocalReplica {
    shared: Arc<Shared>,
    log: EventLog,
    callers: JoinSet<()>,
    store_budget: Duration,
}

impl LocalReplica {
    /// Builds the replica. It does not contact Redis before its first call.
    pub fn new(setup: &Setup) -> Self {
        let log = EventLog::default();
        let module = setup.module().observer(log.clone()).build().expect("a valid setup");
        let (dependency, ledger) = (Dependency::default(), Ledger::default());
        let shared = Shared { module, dependency, ledger, stop: AtomicBool::new(false) };
        Self { shared: Arc::new(shared), log, callers: JoinSet::new(), store_budget: setup.store_budget }
    }

    /// Returns its module.
    pub fn module(&self) -> &ResilienceModule {
        &self.shared.module
    }

    /// Executes a command and reports.
    pub async fn execute(&mut self, command: Command) -> Report {
        match command {
            Command::Report => {}
            Command::Clear => {
                self.shared.ledger.take(self.store_budget);
                self.log.clear();
            }
            Command::SetDependency(behaviour) => self.shared.dependency.behave(behaviour),
            Command::Start(load) => self.start(load),
            Command::LeaveFleet => self.shared.module.leave_fleet().await,
            Command::Finish | Command::Stop => {
                self.shared.stop.store(matches!(command, Command::Stop), Ordering::Relaxed);
                while let Some(ended) = self.callers.join_next().await {
                    ended.expect("a caller panicked");
                }
                self.shared.stop.store(false, Ordering::Relaxed);
                return Report { tally: self.shared.ledger.take(self.store_budget), ..self.report() };
            }
        }
        self.report()
    }

    /// Runs a load and waits for its end.
    pub async fn run(&mut self, load: Load) -> Report {
        self.start(load);
        self.execute(Command::Finish).await
    }

    /// Starts a load.
    pub fn start(&mut self, load: Load) {
        if let Some(processes) = &load.starving {
            starvation::watch(processes);
        }
        let load = Arc::new(load);
        for number in 0..load.callers {
            self.callers.spawn(run_caller(self.shared.clone(), load.clone(), number));
        }
    }

    /// Reports without wait statistics.
    pub fn report(&self) -> Report {
        let module = &self.shared.module;
        Report {
            at: Moment::now(),
            degraded: module.store_mode() == Some(StoreMode::Degraded),
            replicas: module.replicas(),
            gauges: module.pipelines().iter().map(|pipeline| (pipeline.key().to_string(), gauges(pipeline))).collect(),
            tally: self.shared.ledger.snapshot(),
            events: self.log.events(),
        }
    }

    /// Waits for a report that satisfies `wanted`. Panics with the last report after `max_wait`.
    pub async fn until(&self, max_wait: Duration, what: &str, wanted: impl Fn(&Report) -> bool) -> Report {
        let seen = async {
            loop {
                let report = self.report();
                if wanted(&report) {
                    return report;
                }
                sleep(Duration::from_millis(2)).await;
            }
        };
        let seen = timeout(max_wait, seen).await;
        seen.unwrap_or_else(|_| panic!("not within {max_wait:?}: {what}; {:#?}", self.report()))
    }
}

fn gauges(pipeline: &Pipeline) -> Gauges {
    Gauges { limit: pipeline.bulkhead().map(|view| view.limit), hedge_delay: pipeline.hedge_delay() }
}

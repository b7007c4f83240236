//! A replica in a process of its own, from the test's end.

use std::path::Path;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::orders::{Load, Order, Report, Setup};
use crate::server::Replica;

/// How long an answer may take: longer than any load that a test orders.
const PATIENCE: Duration = Duration::from_secs(60);

/// The replica's process.
#[derive(Debug)]
pub struct Child(Replica);

impl Child {
    /// Starts the program, `env!("CARGO_BIN_EXE_replica")`, with a setup.
    pub fn start(program: impl AsRef<Path>, setup: &Setup) -> Self {
        let setup = serde_json::to_string(setup).expect("plain data");
        Self(Replica::start(program, &[&setup]))
    }

    /// The process.
    pub fn process(&self) -> &Replica {
        &self.0
    }

    /// Gives an order and waits for the report.
    pub async fn obey(&self, order: Order) -> Report {
        self.order(&order);
        self.report().await
    }

    /// Gives an order; [`Child::report`] is its answer.
    pub fn order(&self, order: &Order) {
        self.0.send(&serde_json::to_string(order).expect("plain data"));
    }

    /// The answer to the oldest order without one.
    pub async fn report(&self) -> Report {
        let line = self.0.recv_line(PATIENCE).await;
        let line = line.unwrap_or_else(|| panic!("replica {} ended instead of answering", self.0.id()));
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Lets callers come.
    pub async fn start_load(&self, load: Load) -> Report {
        self.obey(Order::Start(load)).await
    }

    /// Lets callers come, and waits for them all to end.
    pub async fn run(&self, load: Load) -> Report {
        self.order(&Order::Start(load));
        self.order(&Order::Finish);
        self.report().await;
        self.report().await
    }

    /// Waits until it has seen something. Panics with its last report if that takes too long.
    pub async fn until(&self, patience: Duration, what: &str, wanted: impl Fn(&Report) -> bool) -> Report {
        let mut last = None;
        let seen = timeout(patience, async {
            loop {
                let report = self.obey(Order::Look).await;
                if wanted(&report) {
                    return report;
                }
                last = Some(report);
                sleep(Duration::from_millis(5)).await;
            }
        });
        match seen.await {
            Ok(report) => report,
            Err(_) => panic!("replica {}: not within {patience:?}: {what}; {last:#?}", self.0.id()),
        }
    }
}

//! A replica in a child process: the handle in the test.

use std::path::Path;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::commands::{Command, Load, Report, Setup};
use phalanx_testkit::server::ChildProcess;

/// The longest wait for a report: longer than any load of a test.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A replica running in a child process.
#[derive(Debug)]
pub struct ReplicaProcess(ChildProcess);

impl ReplicaProcess {
    /// Starts the program `env!("CARGO_BIN_EXE_replica")` with a setup.
    pub fn start(program: impl AsRef<Path>, setup: &Setup) -> Self {
        let setup = serde_json::to_string(setup).expect("setups serialize");
        Self(ChildProcess::start(program, &[&setup]))
    }

    /// Returns the process.
    pub fn process(&self) -> &ChildProcess {
        &self.0
    }

    /// Sends a command and waits for its report.
    pub async fn execute(&self, command: Command) -> Report {
        self.send_command(&command);
        self.recv_report().await
    }

    /// Sends a command. [`ReplicaProcess::recv_report`] returns its report.
    pub fn send_command(&self, command: &Command) {
        self.0.send(&serde_json::to_string(command).expect("commands serialize"));
    }

    /// Waits for the report of the oldest command without one.
    pub async fn recv_report(&self) -> Report {
        let line = self.0.recv_line(WAIT_TIMEOUT).await;
        let line = line.unwrap_or_else(|| panic!("replica {} exited without a report", self.0.id()));
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Starts a load.
    pub async fn start_load(&self, load: Load) -> Report {
        self.execute(Command::Start(load)).await
    }

    /// Runs a load and waits for its end.
    pub async fn run(&self, load: Load) -> Report {
        self.send_command(&Command::Start(load));
        self.send_command(&Command::Finish);
        self.recv_report().await;
        self.recv_report().await
    }

    /// Waits for a report that satisfies `wanted`. Panics with the last report after `max_wait`.
    pub async fn until(&self, max_wait: Duration, what: &str, wanted: impl Fn(&Report) -> bool) -> Report {
        let mut last = None;
        let seen = timeout(max_wait, async {
            loop {
                let report = self.execute(Command::Report).await;
                if wanted(&report) {
                    return report;
                }
                last = Some(report);
                sleep(Duration::from_millis(5)).await;
            }
        });
        match seen.await {
            Ok(report) => report,
            Err(_) => panic!("replica {}: not within {max_wait:?}: {what}; {last:#?}", self.0.id()),
        }
    }
}

//! The child process of the lifecycle tests: it starts through a lifecycle runtime, drains on a signal, and reports its
//! events line by line.
//!
//! Its only argument is its [`Role`] as JSON. It exits at the latest when its standard input is closed.

mod http_service;
mod lock_holder;
mod singleton_start;

use std::io::{Write, stdin, stdout};
use std::time::Duration;

use phalanx::{Policy, ResilienceModule};
use serde::{Deserialize, Serialize};

use crate::replica::Moment;

/// What the process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Serves HTTP calls until it has drained.
    Serve {
        /// Its fleet; none for an in-memory module.
        fleet: Option<Fleet>,
        /// Number of calls the process itself makes once it has started.
        callers: usize,
        /// Duration of a call.
        call: Duration,
        /// The drain window.
        drain_timeout: Duration,
    },
    /// Starts with a singleton step.
    Start {
        /// Its fleet.
        fleet: Fleet,
        /// Duration of the step.
        step: Duration,
        /// TTL of the step's lock.
        ttl: Duration,
        /// Longest wait for another replica's step, or for Redis.
        wait: Duration,
    },
    /// Acquires a lock and writes under it repeatedly.
    Hold {
        /// Its fleet.
        fleet: Fleet,
        /// TTL of the lock.
        ttl: Duration,
    },
}

/// The service of every process, and of tests that belong to its fleet: by default it is the name of the program.
pub const SERVICE: &str = "lifecycle";

/// The fleet a process belongs to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fleet {
    /// The URL of its Redis.
    pub url: String,
    /// Separates it from other fleets on the same Redis.
    pub environment: String,
}

/// An event of the process. It is reported with the [`Moment`] at which it happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ProcessEvent {
    /// It serves on this port.
    Listening(u16),
    /// It runs the singleton step under this fence.
    StepStarted(u64),
    /// The singleton step is done.
    StepDone,
    /// All steps have started.
    Ready,
    /// It failed to start, with this error.
    Failed(String),
    /// It is about to write under this fence; its lock check succeeded.
    Writing(u64),
    /// Its lock check reported the loss of the lock with this fence.
    LockLost(u64),
    /// It has drained and stopped.
    Drained {
        /// Calls in flight when the drain began.
        in_flight: u64,
        /// Calls left when the drain window ended.
        leftovers: u64,
        /// Time from the signal to the end of the last step.
        elapsed: Duration,
    },
}

/// Runs the process in its role.
pub async fn run(role: Role) {
    match role {
        Role::Serve { fleet, callers, call, drain_timeout } => {
            http_service::serve(fleet, callers, call, drain_timeout).await;
        }
        Role::Start { fleet, step, ttl, wait } => singleton_start::start(&fleet, step, ttl, wait).await,
        Role::Hold { fleet, ttl } => lock_holder::hold(&fleet, ttl).await,
    }
}

/// Exits the process when its standard input is closed.
pub fn exit_with_input() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut stdin().lock(), &mut std::io::sink());
        std::process::exit(0);
    });
}

fn report(event: ProcessEvent) {
    report_at(Moment::now(), event);
}

fn report_at(at: Moment, event: ProcessEvent) {
    let line = serde_json::to_string(&(at, event)).expect("events serialize");
    writeln!(stdout(), "{line}").expect("the parent reads standard output");
}

fn module(fleet: &Fleet) -> ResilienceModule {
    let client = redis::Client::open(fleet.url.as_str()).expect("a valid Redis URL");
    let builder = ResilienceModule::with_redis(client).service(SERVICE).environment(&fleet.environment);
    builder.expected_replicas(8).policy(policy()).build().expect("a valid module")
}

/// A policy that only has a timeout: these tests are about draining, not about the stages.
fn policy() -> Policy {
    Policy::named("work").timeout(Duration::from_secs(60))
}

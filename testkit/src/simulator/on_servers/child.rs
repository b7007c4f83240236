//! The process of one replica: calls as its plan says, writes what happens to its output, and takes faults from its input.

use std::io::BufRead;
use std::sync::Arc;

use phalanx_store_redis::RedisConnection;
use tokio::sync::mpsc;

use super::super::history::Recorder;
use super::super::plan::Plan;
use super::super::replica::{self, Replica, Start};
use super::monotonic_micros;

/// What the process of a replica is started with.
#[derive(Clone, Debug)]
pub struct ReplicaProcess {
    /// The plan.
    pub plan: Plan,
    /// Which replica.
    pub number: usize,
    /// How often it was started before.
    pub incarnation: u64,
    /// The address of Redis, through the network of this replica.
    pub url: String,
    /// When the run began, in microseconds of the system's monotonic clock, which all processes share.
    pub began: u64,
}

impl ReplicaProcess {
    /// Runs until the input ends. Lines of the input begin and end faults: `begin 3`, `end 3`.
    ///
    /// # Errors
    /// Returns that the runtime cannot be started, or that the address is not valid.
    pub fn run(self) -> Result<(), Box<dyn std::error::Error>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (sender, mut lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            let read = std::io::stdin().lock().lines().map_while(Result::ok);
            read.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        runtime.block_on(async {
            let passed = monotonic_micros().saturating_sub(self.began);
            let calls = ((self.number as u64) << 40) | (self.incarnation << 32);
            let plan = Arc::new(self.plan);
            let replica = Replica::start(Start {
                dependencies: replica::dependencies(&plan),
                plan: plan.clone(),
                number: self.number,
                incarnation: self.incarnation,
                connection: RedisConnection::from(redis::Client::open(self.url)?),
                recorder: Recorder::to_output(passed, calls),
                plant: None,
            });
            replica.start_load();
            while let Some(line) = lines.recv().await {
                let (what, fault) = line.split_once(' ').unwrap_or_default();
                if let Some(fault) = fault.parse().ok().and_then(|fault: usize| plan.faults.get(fault)) {
                    replica.apply(&fault.kind, what == "begin");
                }
            }
            Ok(())
        })
    }
}

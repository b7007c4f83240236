//! A process with a life of its own: it starts by a runtime, is told to go by a signal, and says line by line what
//! happens to it. Its only argument is its [`Role`] as JSON; it ends with its input, if not before.

mod holder;
mod serving;
mod starting;

use std::io::{Write, stdin, stdout};
use std::time::Duration;

use phalanx::{Policy, ResilienceModule};
use serde::{Deserialize, Serialize};

use crate::replica::Moment;

/// What a process is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Serves calls that take a while, until it has drained.
    Serve {
        /// Its fleet, if it has one.
        fleet: Option<Fleet>,
        /// How many calls it makes itself when it has started.
        callers: usize,
        /// How long a call takes.
        call: Duration,
        /// How long calls in flight may go on.
        drain_timeout: Duration,
    },
    /// Starts with a singleton step.
    Start {
        /// Its fleet.
        fleet: Fleet,
        /// How long the step takes.
        step: Duration,
        /// How long its lock is held without being renewed.
        ttl: Duration,
        /// How long it waits for others, or for Redis.
        wait: Duration,
    },
    /// Takes a lock and writes under it, again and again.
    Hold {
        /// Its fleet.
        fleet: Fleet,
        /// How long the lock is held without being renewed.
        ttl: Duration,
    },
}

/// Where a fleet is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fleet {
    /// Its Redis.
    pub url: String,
    /// What keeps it apart from others on the same Redis.
    pub environment: String,
}

/// What a process says, with the moment it happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Said {
    /// It serves there.
    Listening(u16),
    /// It runs the singleton step, under this fence.
    Began(u64),
    /// The singleton step is done.
    Done,
    /// Every step has started.
    Ready,
    /// It did not start, and why.
    Failed(String),
    /// It is about to write under this fence, which it holds as far as it knows.
    Writes(u64),
    /// It knows that it holds the lock no longer.
    Lost(u64),
    /// It has drained: how many calls were in flight, how many were left, and how long everything took.
    Ended {
        /// Calls in flight when the drain began.
        in_flight: u64,
        /// Calls that were left when the window was over.
        leftovers: u64,
        /// From the signal to the last step.
        elapsed: Duration,
    },
}

/// Lives as it is told.
pub async fn live(role: Role) {
    match role {
        Role::Serve { fleet, callers, call, drain_timeout } => {
            serving::serve(fleet, callers, call, drain_timeout).await;
        }
        Role::Start { fleet, step, ttl, wait } => starting::start(&fleet, step, ttl, wait).await,
        Role::Hold { fleet, ttl } => holder::hold(&fleet, ttl).await,
    }
}

/// Ends the process when its input ends.
pub fn end_with_input() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut stdin().lock(), &mut std::io::sink());
        std::process::exit(0);
    });
}

fn say(said: Said) {
    say_at(Moment::now(), said);
}

fn say_at(at: Moment, said: Said) {
    let line = serde_json::to_string(&(at, said)).expect("plain data");
    writeln!(stdout(), "{line}").expect("somebody who listens");
}

fn module(fleet: &Fleet) -> ResilienceModule {
    let client = redis::Client::open(fleet.url.as_str()).expect("a URL of Redis");
    let builder = ResilienceModule::with_redis(client).environment(&fleet.environment).policy(policy());
    builder.build().expect("a module in order")
}

/// A pass-through but for its timeout: what is drained is what counts here.
fn policy() -> Policy {
    Policy::named("work").timeout(Duration::from_secs(60))
}

//! The fleet simulator: replicas in virtual time over the shipped scripts and the shipped store, with faults.
//!
//! ```text
//!   seed ──► Plan ──► Fleet: replicas (SimProcess) ──► store-redis ──► RedisModel: the shipped Lua
//!              │         ▲ load          ▲ faults                          │
//!              │         └───────────────┴──── History ◄───────────────────┘
//!              └────────────────────────────────► oracles: one per invariant ──► Report
//! ```
//!
//! Everything that decides comes from the plan and its seed, on one thread, in virtual time: the same plan gives the same
//! history, byte for byte. A broken promise is shrunk to a short plan and printed with the command that replays it.

mod fleet;
mod history;
mod next_release;
#[cfg(feature = "servers")]
mod on_servers;
mod oracle;
mod plan;
mod plant;
mod process;
mod replica;
mod report;
mod shrink;

use std::time::Duration;

pub use self::history::{Answer, Entry, EntryKind, History, Script};
#[cfg(feature = "servers")]
pub use self::on_servers::{ReplicaProcess, play_on_servers};
pub use self::oracle::{Case, ORACLES, Oracle, Verdict};
pub use self::plan::{Fault, FaultKind, Load, Plan, Shape};
pub use self::plant::Plant;
pub use self::report::Report;
pub use self::shrink::shrink;

use self::fleet::Fleet;
use self::history::Recorder;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Everything that happened.
    pub history: History,
    /// Broken promises: the id of the oracle and what it found.
    pub broken: Vec<(&'static str, String)>,
    /// The names of the faults that had an effect, and how often.
    pub faults: std::collections::BTreeMap<&'static str, u64>,
    /// Scripts that the server has run.
    pub scripts: u64,
    /// The same, in each second.
    pub scripts_per_second: Vec<u64>,
}

/// Replicas × seconds from which on a run keeps only the scripts that changed a breaker, and checks only the oracles that
/// need no others.
const BRIEF_FROM: u64 = 50_000;
const BRIEF_ORACLES: [&str; 4] = ["I-18", "I-23", "I-25", "liveness"];

/// Plays a plan.
pub fn run(plan: &Plan) -> Run {
    run_with(plan, None)
}

/// Plays a plan with a planted fault.
pub fn run_with(plan: &Plan, plant: Option<Plant>) -> Run {
    run_beside(plan, plant, 0)
}

/// Plays a plan beside a number of other tasks on the runtime, which must make no difference.
pub fn run_beside(plan: &Plan, plant: Option<Plant>, others: usize) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime of one thread needs nothing from the system");
    let brief = plan.replicas as u64 * plan.seconds >= BRIEF_FROM;
    let ((history, scripts_per_second), effects) = runtime.block_on(async {
        for number in 0..others {
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(1 + number as u64)).await;
                    tokio::task::yield_now().await;
                }
            });
        }
        let recorder = Recorder::new(brief);
        let effects = Fleet::start(plan, &recorder, plant).play().await;
        (recorder.finish(), effects)
    });
    let case = Case::new(plan, &history, effects);
    let mut broken = case.check(if brief { &BRIEF_ORACLES } else { &[] });
    let faults = report::reached(&case);
    broken.extend(report::unreached(plan, &faults));
    Run { broken, faults, scripts: effects.scripts, scripts_per_second, history }
}

/// Returns a hint with the nearest of these names, if one is near.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let near = names.map(|known| (distance(name, known), known)).min();
    match near {
        Some((distance, known)) if distance <= 3.max(name.len() / 3) => format!("; did you mean {known:?}?"),
        _ => String::new(),
    }
}

/// The edit distance of two names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(128).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(128).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

//! The oracles: one function per invariant of `docs/guarantees.md`, over the history of a run.
//!
//! What an oracle excuses is stated in `docs/guarantees.md`, and excused only if it happened in the history.

mod breaker;
mod calls;
mod debt;
mod lock;
mod rate_limit;
mod slots;

use super::history::{Entry, EntryKind, History, Script};
use super::plan::{FaultKind, Plan};
use crate::redis_model::Effects;

/// An invariant: its number, its name and the function that checks it.
#[derive(Clone, Copy)]
pub struct Oracle {
    /// As in `docs/guarantees.md`.
    pub id: &'static str,
    /// What it promises, in a few words.
    pub name: &'static str,
    check: fn(&Case<'_>) -> Verdict,
}

/// Whether the promise was kept; what broke it otherwise.
pub type Verdict = Result<(), String>;

/// All oracles.
pub const ORACLES: &[Oracle] = &[
    Oracle { id: "I-1", name: "the fleet never over-admits", check: rate_limit::fleet_never_over_admits },
    Oracle {
        id: "I-2",
        name: "a clock that goes back mints nothing",
        check: rate_limit::clock_going_back_mints_nothing,
    },
    Oracle { id: "I-3", name: "no starvation when healthy", check: rate_limit::no_starvation },
    Oracle { id: "I-4", name: "at most K probes are leased", check: breaker::at_most_k_probes },
    Oracle { id: "I-5", name: "the probe of a dead holder is freed", check: breaker::dead_probe_is_freed },
    Oracle { id: "I-6", name: "a trip reaches every connected replica", check: breaker::trip_reaches_every_replica },
    Oracle { id: "I-7", name: "outcomes count only in their epoch", check: breaker::outcomes_count_in_their_epoch },
    Oracle { id: "I-8", name: "no breaker is wedged", check: breaker::no_wedge },
    Oracle { id: "I-9", name: "rejections and reads write nothing", check: rate_limit::rejections_write_nothing },
    Oracle { id: "I-13", name: "one holder, growing fences", check: lock::one_holder_at_a_time },
    Oracle { id: "I-14", name: "a holder knows that its lock is lost", check: lock::holder_knows_its_lease },
    Oracle { id: "I-17", name: "late executions are harmless", check: breaker::epochs_begin_once },
    Oracle { id: "I-18", name: "one outcome for every call", check: calls::one_outcome_per_call },
    Oracle {
        id: "I-20",
        name: "the scripts decide as the machines of core",
        check: rate_limit::scripts_equal_machines,
    },
    Oracle { id: "I-23", name: "retries stay within their budget", check: calls::retries_within_budget },
    Oracle { id: "I-24", name: "recovery without a herd", check: calls::no_herd },
    Oracle {
        id: "I-25",
        name: "what a replica knows as open stays closed to calls",
        check: breaker::known_open_rejects,
    },
    Oracle { id: "I-31", name: "leases are strict", check: rate_limit::leases_are_strict },
    Oracle { id: "I-40", name: "calls in flight stay within the cap", check: slots::calls_stay_within_the_cap },
    Oracle { id: "I-33", name: "debt is kept", check: debt::debt_is_kept },
    Oracle {
        id: "I-32",
        name: "several limits are charged together or not at all",
        check: rate_limit::several_limits_are_charged_together_or_not_at_all,
    },
    Oracle { id: "liveness", name: "traffic is back after the last fault", check: calls::traffic_is_back },
];

/// A run, as the oracles see it.
pub struct Case<'a> {
    /// What was planned.
    pub plan: &'a Plan,
    /// What happened.
    pub history: &'a History,
    pub(crate) effects: Effects,
    /// How much longer than in virtual time something may take, in microseconds.
    pub(crate) slack: u64,
    /// The times of scripts whose replies were not received, in microseconds: what they changed is not known.
    pub(crate) unheard: Vec<u64>,
    /// Faults that happened: begin and end in microseconds, and the number in the plan.
    faults: Vec<(u64, u64, usize)>,
}

impl<'a> Case<'a> {
    pub(crate) fn new(plan: &'a Plan, history: &'a History, effects: Effects) -> Self {
        let mut faults: Vec<(u64, u64, usize)> = Vec::new();
        for entry in &history.entries {
            match entry.kind {
                EntryKind::FaultBegins { fault } => faults.push((entry.at, u64::MAX, fault)),
                EntryKind::FaultEnds { fault } => {
                    if let Some(begun) = faults.iter_mut().find(|(_, _, number)| *number == fault) {
                        begun.1 = entry.at;
                    }
                }
                _ => {}
            }
        }
        Self { plan, history, effects, slack: 0, unheard: Vec::new(), faults }
    }

    /// Checks all oracles, or only those with these ids; returns what was broken, by the id of the oracle.
    pub(crate) fn check(&self, only: &[&str]) -> Vec<(&'static str, String)> {
        let wanted = ORACLES.iter().filter(|oracle| only.is_empty() || only.contains(&oracle.id));
        wanted.filter_map(|oracle| (oracle.check)(self).err().map(|broken| (oracle.id, broken))).collect()
    }

    /// Returns the faults that happened: begin and end in microseconds, and the number in the plan.
    pub(crate) fn faults(&self) -> &[(u64, u64, usize)] {
        &self.faults
    }

    /// Whether a fault of this kind was active between two times, in microseconds.
    fn any(&self, from: u64, to: u64, is: impl Fn(&FaultKind) -> bool) -> bool {
        self.faults
            .iter()
            .any(|(begin, end, number)| *begin <= to && *end >= from && is(&self.plan.faults[*number].kind))
    }

    /// Whether Redis was not healthy for any replica between two times.
    fn redis_troubled(&self, from: u64, to: u64) -> bool {
        self.any(from, to, |kind| {
            matches!(
                kind,
                FaultKind::StopRedis
                    | FaultKind::RestartEmpty
                    | FaultKind::RestartOld { .. }
                    | FaultKind::HangRedis
                    | FaultKind::SlowRedis { .. }
                    | FaultKind::LateReplies { .. }
                    | FaultKind::LoseReplies { .. }
                    | FaultKind::ExecuteLater { .. }
                    | FaultKind::RedisError { .. }
                    | FaultKind::FailOver { .. }
                    | FaultKind::StopMaster { .. }
                    | FaultKind::MoveSlots { .. }
                    | FaultKind::Partition { .. }
            )
        })
    }

    /// The times at which the server lost state, in microseconds.
    fn state_losses(&self) -> Vec<u64> {
        let loss = |(begin, end, number): &(u64, u64, usize)| match self.plan.faults[*number].kind {
            FaultKind::RestartEmpty | FaultKind::RestartOld { .. } => Some(*end),
            FaultKind::Flush | FaultKind::FailOver { .. } => Some(*begin),
            _ => None,
        };
        self.faults.iter().filter_map(loss).collect()
    }

    /// Whether one of these times is between two others. What happens on a real server happens a little later than it is
    /// written down.
    fn within(&self, times: &[u64], from: u64, to: u64) -> bool {
        times.iter().any(|time| *time + self.slack >= from && *time <= to)
    }

    /// The times at which the state of a key changed in a way that the history does not show.
    fn unknown_changes(&self) -> Vec<u64> {
        let mut times = self.state_losses();
        times.extend(&self.unheard);
        times
    }

    /// The times at which the server's clock was set or replaced.
    fn server_clock_steps(&self) -> Vec<u64> {
        let step = |(begin, _, number): &(u64, u64, usize)| match self.plan.faults[*number].kind {
            FaultKind::StepServerClock { .. } | FaultKind::FailOver { .. } => Some(*begin),
            _ => None,
        };
        self.faults.iter().filter_map(step).collect()
    }

    fn scripts(&self) -> impl Iterator<Item = (u64, &'a Script)> {
        let script = |entry: &'a Entry| match &entry.kind {
            EntryKind::Script(script) if !script.failed => Some((entry.at, script)),
            _ => None,
        };
        self.history.entries.iter().filter_map(script)
    }

    /// Times at which a replica's process started, with the replica.
    fn starts(&self) -> Vec<(u64, usize)> {
        let start = |entry: &Entry| match entry.kind {
            EntryKind::ProcessStarted { replica } => Some((entry.at, replica)),
            _ => None,
        };
        self.history.entries.iter().filter_map(start).collect()
    }
}

fn ms(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1_000.0)
}

//! What many runs found: faults that were reached, known defects that were met, and broken promises.

use std::collections::BTreeMap;
use std::fmt;

use phalanx_core::rejection::Source;

use super::oracle::Case;
use super::plan::{FaultKind, Plan};
use super::{Entry, EntryKind, ORACLES, Run};

/// The sum of many runs.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Runs.
    pub runs: u64,
    /// Calls that were made.
    pub calls: u64,
    /// Scripts that the server has run.
    pub scripts: u64,
    /// Faults that had an effect, by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// Broken promises by oracle: how often, the first seed, and what was found there.
    pub broken: BTreeMap<&'static str, (u64, u64, String)>,
}

impl Report {
    /// Adds the run of a seed.
    pub fn add(&mut self, seed: u64, run: &Run) {
        self.runs += 1;
        self.scripts += run.scripts;
        self.calls +=
            run.history.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::Started { .. })).count() as u64;
        for (name, count) in &run.faults {
            *self.faults.entry(name).or_default() += count;
        }
        for (id, found) in &run.broken {
            self.broken.entry(id).or_insert((0, seed, found.clone())).0 += 1;
        }
    }

    /// Adds another report.
    pub fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        self.calls += other.calls;
        self.scripts += other.scripts;
        for (name, count) in other.faults {
            *self.faults.entry(name).or_default() += count;
        }
        for (id, (count, seed, found)) in other.broken {
            let known = self.broken.entry(id).or_insert((0, seed, found.clone()));
            known.0 += count;
            if seed < known.1 {
                (known.1, known.2) = (seed, found);
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} runs, {} calls, {} scripts, {} oracles", self.runs, self.calls, self.scripts, ORACLES.len())?;
        writeln!(f, "\nfaults reached")?;
        for name in FaultKind::NAMES {
            writeln!(f, "  {name:<20} {:>9}", self.faults.get(name).copied().unwrap_or(0))?;
        }
        if self.broken.is_empty() {
            return writeln!(f, "\nevery promise was kept");
        }
        writeln!(f, "\nbroken promises")?;
        for (id, (count, seed, found)) in &self.broken {
            let name = ORACLES.iter().find(|oracle| oracle.id == *id).map_or("", |oracle| oracle.name);
            writeln!(f, "  {id} {name}: {count} runs, first seed {seed}: {found}")?;
        }
        Ok(())
    }
}

/// The faults of a plan that had no effect, as broken promises.
pub(super) fn unreached(plan: &Plan, reached: &BTreeMap<&'static str, u64>) -> Vec<(&'static str, String)> {
    let without = plan.faults.iter().filter(|fault| reached.get(fault.kind.name()).copied().unwrap_or(0) == 0);
    without.map(|fault| ("plan", format!("the fault {} was never reached", fault.kind.name()))).collect()
}

/// How many faults of each kind had an effect. A fault that nothing met, such as an outage without a call, tested nothing.
pub(super) fn reached(case: &Case<'_>) -> BTreeMap<&'static str, u64> {
    let mut reached: BTreeMap<&'static str, u64> = BTreeMap::new();
    for &(begin, end, number) in case.faults() {
        let kind = &case.plan.faults[number].kind;
        *reached.entry(kind.name()).or_default() += u64::from(had_effect(case, kind, begin, end));
    }
    reached
}

fn had_effect(case: &Case<'_>, kind: &FaultKind, begin: u64, end: u64) -> bool {
    let entries = &case.history.entries;
    let first = entries.partition_point(|entry| entry.at < begin);
    let last = entries.partition_point(|entry| entry.at <= end);
    let any = |is: &dyn Fn(&EntryKind) -> bool| entries[first..last].iter().any(|entry| is(&entry.kind));
    let called = |who: &dyn Fn(usize) -> bool, which: Option<&str>| {
        let which = which.map(|name| case.plan.policy(name));
        any(&|kind| {
            matches!(kind, EntryKind::Started { replica, policy, .. }
                if who(*replica) && which.is_none_or(|wanted| wanted == *policy))
        })
    };
    let script = || any(&|kind| matches!(kind, EntryKind::Script(_)));
    let effects = case.effects;
    match kind {
        FaultKind::KillReplica { replica } => {
            any(&|kind| matches!(kind, EntryKind::ProcessEnded { replica: ended } if ended == replica))
        }
        FaultKind::PauseReplica { replica } => {
            let called_before =
                entries[..first].iter().rev().take_while(|entry| entry.at + 2_000_000 > begin).any(
                    |entry| matches!(entry.kind, EntryKind::Started { replica: caller, .. } if caller == *replica),
                );
            // A real process stops a little later, and continues a little before that is written down.
            let (from, end) = (begin + case.slack / 10, end.saturating_sub(case.slack / 10));
            let called = |entry: &Entry| {
                matches!(entry.kind, EntryKind::Started { replica: caller, .. } if caller == *replica)
                    && entry.at > from
                    && entry.at < end
            };
            called_before && !entries[first..last].iter().any(called)
        }
        FaultKind::Partition { replicas } => called(&|replica| replica < *replicas, None),
        FaultKind::StopRedis
        | FaultKind::RestartEmpty
        | FaultKind::RestartOld { .. }
        | FaultKind::HangRedis
        | FaultKind::RedisError { .. }
        | FaultKind::StopMaster { .. } => called(&|_| true, None),
        FaultKind::LateReplies { .. } => effects.late_replies > 0,
        FaultKind::LoseReplies { .. } => effects.lost_replies > 0,
        FaultKind::ExecuteLater { .. } => effects.late_requests > 0,
        FaultKind::LosePushes => effects.lost_pushes > 0,
        FaultKind::DelayPushes { .. } => effects.late_pushes > 0,
        FaultKind::DoublePushes => effects.double_pushes > 0,
        // Of a moment: something used the state afterwards.
        FaultKind::FailOver { .. }
        | FaultKind::StepServerClock { .. }
        | FaultKind::Flush
        | FaultKind::FlushScripts
        | FaultKind::MoveSlots { .. } => {
            entries[first..].iter().any(|entry| matches!(entry.kind, EntryKind::Script(_)))
        }
        FaultKind::SlowRedis { .. } => script(),
        FaultKind::StepReplicaClock { replica, .. } => {
            let who =
                |entry: &Entry| matches!(entry.kind, EntryKind::Started { replica: caller, .. } if caller == *replica);
            entries[first..].iter().any(who)
        }
        FaultKind::DependencyFails { policy, .. } => {
            let failing = case.plan.policy(policy);
            any(&|kind| {
                matches!(kind, EntryKind::Finished { policy, answer, .. }
                    if *policy == failing && (answer.attempts > 1 || (!answer.ok && answer.rejected.is_none())))
            })
        }
        FaultKind::DependencySlow { policy, .. } => {
            let slow = case.plan.policy(policy);
            any(&|kind| matches!(kind, EntryKind::Admitted { policy, .. } if *policy == slow))
        }
        FaultKind::Retune { policy } => called(&|_| true, Some(policy)),
        FaultKind::MixedPolicies { replica } => called(&|caller| caller == *replica, None),
        FaultKind::NextRelease { replica } => {
            any(&|kind| matches!(kind, EntryKind::Script(script) if script.replica == *replica))
        }
        FaultKind::ForceOpen { policy, .. } => {
            let forced = case.plan.policy(policy);
            any(&|kind| matches!(kind, EntryKind::Overridden { policy, to: Some(_), .. } if *policy == forced))
        }
        FaultKind::Lever { policy, replica } => {
            let forced = case.plan.policy(policy);
            any(&|kind| {
                matches!(kind, EntryKind::Finished { replica: caller, policy, answer, .. }
                    if caller == replica && *policy == forced && answer.source == Source::Forced)
            })
        }
    }
}

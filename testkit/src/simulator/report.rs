//! What many runs found: faults that were reached, known defects that were met, and broken promises.

use std::collections::BTreeMap;
use std::fmt;

use super::oracle::{Allowances, Case};
use super::plan::FaultKind;
use super::{EntryKind, ORACLES, Run};

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
    /// Known defects that were met.
    pub allowed: Allowances,
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
        for (finding, count) in &run.allowed {
            *self.allowed.entry(finding).or_default() += count;
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
        for (finding, count) in other.allowed {
            *self.allowed.entry(finding).or_default() += count;
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
        if !self.allowed.is_empty() {
            writeln!(f, "\nknown defects met (each is an allowance of an oracle)")?;
            for (finding, count) in &self.allowed {
                writeln!(f, "  {count:>9}  {finding}")?;
            }
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

/// How often each fault of a run had an effect.
pub(super) fn reached(case: &Case<'_>) -> BTreeMap<&'static str, u64> {
    let mut reached: BTreeMap<&'static str, u64> = BTreeMap::new();
    let begun = case.history.entries.iter().filter_map(|entry| match entry.kind {
        EntryKind::FaultBegins { fault } => Some(&case.plan.faults[fault].kind),
        _ => None,
    });
    let effects = case.effects;
    for kind in begun {
        // A fault of the network counts if a message met it; if there was none to meet, nothing was tested.
        let met = match kind {
            FaultKind::LateReplies { .. } => effects.late_replies,
            FaultKind::LoseReplies { .. } => effects.lost_replies,
            FaultKind::ExecuteLater { .. } => effects.late_requests,
            FaultKind::LosePushes | FaultKind::DelayPushes { .. } | FaultKind::DoublePushes => 1,
            _ => 1,
        };
        *reached.entry(kind.name()).or_default() += u64::from(met > 0);
    }
    reached
}

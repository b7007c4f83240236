//! I-33: debt.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_core::rate_limit::Rate;

use super::super::history::{EntryKind, Script};
use super::rate_limit::{rate, stored, stored_leases};
use super::{Case, Verdict, ms};

/// How long before the end of a run the last charge is that must have arrived, in microseconds.
const ON_THE_WAY: u64 = 5_000_000;

/// What the server keeps of the charges of one replica.
#[derive(Default)]
struct Account {
    /// The permits that are charged; none after a loss of state, until they are known again.
    charged: Option<u64>,
    /// The most that was ever requested.
    requested: u64,
    at: u64,
    replica: usize,
}

/// A bucket as a script has stored it.
struct Stored {
    rate: Rate,
    level: f64,
    at: f64,
    leases: f64,
    /// When, in the history.
    stored_at: u64,
}

/// I-33: every charge takes from the level what its request has added and nothing twice, below zero too; replicas request no
/// more than was charged, and those that were never killed or without Redis all of it.
pub(super) fn debt_is_kept(case: &Case<'_>) -> Verdict {
    let losses = case.unknown_changes();
    let mut accounts: BTreeMap<usize, Account> = BTreeMap::new();
    let mut buckets: BTreeMap<usize, Stored> = BTreeMap::new();
    let mut charged: BTreeMap<usize, u64> = BTreeMap::new();
    let mut early: BTreeMap<usize, u64> = BTreeMap::new();
    let mut taken_back: BTreeMap<usize, u64> = BTreeMap::new();
    let (mut started, mut disturbed): (BTreeSet<usize>, BTreeSet<usize>) = Default::default();
    let end = case.plan.seconds * 1_000_000;
    for entry in &case.history.entries {
        match &entry.kind {
            EntryKind::Charged { replica, permits } => {
                *charged.entry(*replica).or_default() += u64::from(*permits);
                if entry.at + ON_THE_WAY <= end {
                    *early.entry(*replica).or_default() += u64::from(*permits);
                }
            }
            // At most these were taken back before they were sent.
            EntryKind::Discharged { replica, permits } => {
                *taken_back.entry(*replica).or_default() += u64::from(*permits);
            }
            EntryKind::ProcessStarted { replica } if started.insert(*replica) => {}
            EntryKind::ProcessStarted { replica } | EntryKind::Degraded { replica, .. } => {
                disturbed.insert(*replica);
            }
            EntryKind::Script(script) if script.name.starts_with("rate_limit") && !script.failed => {
                if script.name == "rate_limit_charge" {
                    let new = new_permits(case, &losses, &mut accounts, entry.at, script);
                    judge(case, &losses, buckets.get(&script.key), entry.at, script, new)?;
                }
                if let (Some(rate), Some((level, at)), true) = (rate(script), stored(script), script.writes > 0) {
                    let leases = stored_leases(script);
                    buckets.insert(script.key, Stored { rate, level, at, leases, stored_at: entry.at });
                }
            }
            _ => {}
        }
    }
    let mut sent: BTreeMap<usize, u64> = BTreeMap::new();
    for account in accounts.values() {
        *sent.entry(account.replica).or_default() += account.requested;
    }
    for (replica, charged) in &charged {
        let sent = sent.get(replica).copied().unwrap_or(0);
        let (taken_back, early) = (taken_back.get(replica).unwrap_or(&0), early.get(replica).unwrap_or(&0));
        if sent > *charged || !disturbed.contains(replica) && sent + taken_back < *early {
            return Err(format!(
                "replica {replica}: {sent} permits sent of {charged} that were charged, {early} of them early, and \
                 {taken_back} taken back"
            ));
        }
    }
    Ok(())
}

/// Returns the permits that a request adds to those that its replica has charged before, if these are known.
fn new_permits(
    case: &Case<'_>,
    losses: &[u64],
    accounts: &mut BTreeMap<usize, Account>,
    at: u64,
    script: &Script,
) -> Option<u64> {
    let [.., arrived, requested] = script.args[..] else { return None };
    let (arrived, requested) = (arrived as u64, requested as u64);
    let number = script.spec.first().map_or(0, |number| *number as usize);
    let new = || Account { charged: Some(0), at, ..Account::default() };
    let account = accounts.entry(number).or_insert_with(new);
    if case.within(losses, account.at, at) {
        account.charged = None;
    }
    let known = account.charged;
    account.requested = account.requested.max(requested);
    (account.at, account.replica) = (at, script.replica);
    account.charged = match known {
        Some(charged) => Some(charged.max(arrived).max(requested)),
        None => (requested >= account.requested).then_some(requested),
    };
    known.map(|charged| requested.saturating_sub(charged.max(arrived)))
}

/// Checks that a charge of so many permits leaves the level that it must.
fn judge(
    case: &Case<'_>,
    losses: &[u64],
    before: Option<&Stored>,
    at: u64,
    script: &Script,
    new: Option<u64>,
) -> Verdict {
    let (Some(rate), Some(before), Some(new)) = (rate(script), before, new) else { return Ok(()) };
    let known = before.rate == rate && before.leases == 0.0 && script.reply.get(2) == Some(&0);
    let passed = script.server as f64 - before.at;
    if !known || passed < 0.0 || case.within(losses, before.stored_at, at) {
        return Ok(());
    }
    let full = rate.capacity as f64;
    let expected = (before.level + passed * rate.gain as f64).min(full) - (new * rate.price) as f64;
    let level = script.reply.get(1).copied().unwrap_or(0) as f64;
    if (level - expected).abs() > 0.5 {
        return Err(format!(
            "key {}: {level} units after a charge of {new} permits at {}, {expected} expected",
            script.key,
            ms(at)
        ));
    }
    Ok(())
}

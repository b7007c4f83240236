//! I-13 and I-14: the lock.

use std::collections::BTreeMap;

use super::super::history::EntryKind;
use super::super::replica::LOCK_TTL;
use super::{Case, Verdict, ms};

/// I-13: after a replica acquired the lock, no earlier holder writes, and fences grow, unless the server lost state or its
/// clock was set in between.
pub(super) fn one_holder_at_a_time(case: &Case<'_>) -> Verdict {
    let mut disturbed = case.state_losses();
    disturbed.extend(case.server_clock_steps());
    // The latest holder: replica, fence, when it acquired.
    let mut latest: Option<(usize, u64, u64)> = None;
    let mut acquired: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    for entry in &case.history.entries {
        match entry.kind {
            EntryKind::LockAcquired { replica, fence } => {
                if let Some((_, last, since)) = latest
                    && fence <= last
                {
                    let lost = case.within(&disturbed, since.saturating_sub(5_000_000), entry.at);
                    if !lost {
                        return Err(format!("fence {fence} was granted after {last}, at {}", ms(entry.at)));
                    }
                    case.allow("review 1.11: fences go back after a loss of state");
                }
                acquired.insert((replica, fence), entry.at);
                latest = Some((replica, fence, entry.at));
            }
            EntryKind::LockWrite { replica, fence } => {
                let Some((holder, last, since)) = latest else { continue };
                if (holder, last) == (replica, fence) {
                    continue;
                }
                let own = acquired.get(&(replica, fence)).copied().unwrap_or(0);
                let just_now = entry.at < since + case.slack; // it may have been written down late
                let excused = just_now || case.within(&disturbed, own.saturating_sub(1), entry.at);
                if !excused {
                    return Err(format!(
                        "replica {replica} wrote with fence {fence} at {}, after replica {holder} acquired fence {last} at {}",
                        ms(entry.at),
                        ms(since)
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// I-14: a holder does not write later than its ttl after the server last confirmed its lock.
pub(super) fn holder_knows_its_lease(case: &Case<'_>) -> Verdict {
    let mut confirmed: BTreeMap<usize, u64> = BTreeMap::new();
    for entry in &case.history.entries {
        match &entry.kind {
            EntryKind::Script(script)
                if matches!(script.name, "lock_acquire" | "lock_renew") && script.reply.get(1) == Some(&1) =>
            {
                confirmed.insert(script.replica, entry.at);
            }
            EntryKind::LockWrite { replica, fence } => {
                let since = confirmed.get(replica).copied().unwrap_or(0);
                if entry.at > since + LOCK_TTL.as_micros() as u64 + case.slack {
                    return Err(format!(
                        "replica {replica} wrote with fence {fence} {} after the server last confirmed its lock",
                        ms(entry.at - since)
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

//! I-13 and I-14: the lock.

use std::collections::BTreeMap;

use super::super::history::EntryKind;
use super::super::replica::LOCK_TTL;
use super::{Case, Verdict, ms};

/// I-13: after a replica acquired the lock, no earlier holder writes, unless the server lost state or its clock was set in
/// between; and fences grow, unless both happened: only a replica that has seen the last fence could tell then.
pub(super) fn one_holder_at_a_time(case: &Case<'_>) -> Verdict {
    let (losses, steps) = (case.state_losses(), case.server_clock_steps());
    let disturbed = [losses.clone(), steps.clone()].concat();
    // The latest holder: replica, fence, when it acquired.
    let mut latest: Option<(usize, u64, u64)> = None;
    // When the server granted a fence to a replica: what the server loses before the reply arrives is lost too.
    let mut granted: BTreeMap<usize, u64> = BTreeMap::new();
    let mut acquired: BTreeMap<(usize, u64), u64> = BTreeMap::new();
    for entry in &case.history.entries {
        match entry.kind {
            EntryKind::Script(ref script) if script.name == "lock_acquire" && script.reply.get(1) == Some(&1) => {
                granted.insert(script.replica, entry.at);
            }
            EntryKind::LockAcquired { replica, fence } => {
                if let Some((_, last, since)) = latest
                    && fence <= last
                {
                    let from = since.saturating_sub(5_000_000);
                    if !case.within(&losses, from, entry.at) || !case.within(&steps, 0, entry.at) {
                        return Err(format!("fence {fence} was granted after {last}, at {}", ms(entry.at)));
                    }
                }
                acquired.insert((replica, fence), granted.get(&replica).map_or(entry.at, |at| entry.at.min(*at)));
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

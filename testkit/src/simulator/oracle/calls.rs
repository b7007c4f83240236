//! I-18, I-23, I-24 and liveness: calls.

use std::collections::BTreeMap;

use phalanx::RejectionCode;
use phalanx_core::rejection::Source;

use super::super::history::EntryKind;
use super::super::plan::FaultKind;
use super::{Case, Verdict, ms};

/// Calls that began this shortly before the end of a process are not expected to end.
const LONGEST_CALL: u64 = 5_000_000;

/// The longest that recovery may take after the last fault: reconnect and health checks, then the longest break and lease.
const RECOVERY: u64 = 10_000_000;

/// I-18: every call ends exactly once, and is admitted at most once, unless its process ended.
pub(super) fn one_outcome_per_call(case: &Case<'_>) -> Verdict {
    let end = case.plan.seconds * 1_000_000;
    let mut open: BTreeMap<u64, (u64, usize, bool)> = BTreeMap::new();
    for entry in &case.history.entries {
        match entry.kind {
            EntryKind::Started { call, replica, .. } => drop(open.insert(call, (entry.at, replica, false))),
            EntryKind::Admitted { call, .. } => match open.get_mut(&call) {
                Some((_, _, admitted @ false)) => *admitted = true,
                _ => return Err(format!("call {call} was admitted twice, or after its end, at {}", ms(entry.at))),
            },
            EntryKind::Finished { call, .. } | EntryKind::Dropped { call, .. } if open.remove(&call).is_none() => {
                return Err(format!("call {call} ended twice, at {}", ms(entry.at)));
            }
            EntryKind::ProcessEnded { replica } => open.retain(|_, (_, of, _)| *of != replica),
            _ => {}
        }
    }
    let paused = case.any(end - LONGEST_CALL, end, |kind| matches!(kind, FaultKind::PauseReplica { .. }));
    match open.iter().find(|(_, (at, ..))| at + LONGEST_CALL < end) {
        Some((call, (at, replica, _))) if !paused => {
            Err(format!("call {call} of replica {replica} began at {} and never ended", ms(*at)))
        }
        _ => Ok(()),
    }
}

/// I-23: attempts beyond the first are at most ratio × calls + min_per_second × seconds, in every process.
pub(super) fn retries_within_budget(case: &Case<'_>) -> Verdict {
    let mut counts: BTreeMap<(usize, usize), (u64, u64)> = BTreeMap::new();
    for entry in &case.history.entries {
        match &entry.kind {
            EntryKind::ProcessStarted { replica } => counts.retain(|(of, _), _| of != replica),
            EntryKind::Started { replica, policy, .. } => counts.entry((*replica, *policy)).or_default().0 += 1,
            EntryKind::Finished { replica, policy, answer, .. } => {
                let (calls, extra) = counts.entry((*replica, *policy)).or_default();
                *extra += u64::from(answer.attempts.saturating_sub(1));
                let Some(budget) = case.plan.policies[*policy].retry.as_ref().and_then(|retry| retry.budget) else {
                    continue;
                };
                // The budget holds in windows of nine to ten seconds, because its oldest slice leaves as a whole.
                let seconds = entry.at as f64 / 1e6 * 10.0 / 9.0 + 10.0;
                let most = budget.ratio * *calls as f64 * 10.0 / 9.0 + f64::from(budget.min_per_second) * seconds;
                if *extra as f64 > most + 1.0 {
                    return Err(format!(
                        "replica {replica}, policy {policy}: {extra} retries of {calls} calls at {}, {most:.0} allowed",
                        ms(entry.at)
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Scripts of a recovery that grow with the replicas and not with their calls: health checks, the numbers of the changes, and
/// what hung in the server's queue and is executed at once.
const RECONNECTS: u64 = 200;

/// I-24: in the first second after an outage, Redis is asked at most 1.2 times as often as in a steady second, and for what
/// a recovery needs.
pub(super) fn no_herd(case: &Case<'_>) -> Verdict {
    let mut seconds: BTreeMap<u64, u64> = BTreeMap::new();
    for (at, _) in case.scripts() {
        *seconds.entry(at / 1_000_000).or_default() += 1;
    }
    // Steady: the busiest second before the first fault.
    let first = case.plan.faults.iter().map(|fault| fault.at_ms).min().unwrap_or(u64::MAX) / 1_000;
    let Some(steady) = seconds.range(1..first).map(|(_, count)| *count).max() else { return Ok(()) };
    for (index, fault) in case.plan.faults.iter().enumerate() {
        if !matches!(
            fault.kind,
            FaultKind::StopRedis | FaultKind::HangRedis | FaultKind::RestartEmpty | FaultKind::RestartOld { .. }
        ) {
            continue;
        }
        let ended = fault.at_ms + fault.for_ms;
        let after = ended * 1_000..(ended + 1_000) * 1_000;
        let busy = case.scripts().filter(|(at, _)| after.contains(at)).count() as u64;
        if busy as f64 > 1.2 * steady as f64 + RECONNECTS as f64 {
            return Err(format!("fault {index}: {busy} scripts in the second after its end, {steady} in a steady one"));
        }
    }
    Ok(())
}

/// Liveness: from some seconds after the last fault on, every replica decides with the fleet again, and no breaker of a
/// healthy dependency rejects all calls.
pub(super) fn traffic_is_back(case: &Case<'_>) -> Verdict {
    let (from, end) = (case.plan.last_fault_ends() * 1_000 + RECOVERY, case.plan.seconds * 1_000_000);
    if from + 2_000_000 > end {
        return Ok(());
    }
    // Of each replica and policy: calls, calls rejected by a breaker, decisions of the fleet.
    let mut seen: BTreeMap<(usize, usize), [u64; 3]> = BTreeMap::new();
    for entry in case.history.entries.iter().filter(|entry| entry.at >= from) {
        if let EntryKind::Finished { replica, policy, answer, .. } = &entry.kind {
            let [calls, rejected, fleet] = seen.entry((*replica, *policy)).or_default();
            let by_breaker = matches!(
                answer.rejected,
                Some(RejectionCode::CircuitOpen | RejectionCode::ProbeQuota | RejectionCode::ForcedOpen)
            );
            *calls += 1;
            *rejected += u64::from(by_breaker);
            *fleet += u64::from(matches!(answer.source, Source::Fleet | Source::Leased));
        }
    }
    for ((replica, policy), [calls, rejected, fleet]) in seen {
        if calls < 10 {
            continue;
        }
        if rejected == calls {
            return Err(format!(
                "replica {replica}: all {calls} calls of policy {policy} after {} were rejected by the breaker",
                ms(from)
            ));
        }
        if fleet == 0 {
            return Err(format!(
                "replica {replica}: all {calls} calls of policy {policy} after {} were decided without Redis",
                ms(from)
            ));
        }
    }
    Ok(())
}

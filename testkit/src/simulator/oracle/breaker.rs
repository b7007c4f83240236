//! I-4 to I-8, I-17 and I-25: breakers.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_core::breaker::Phase;
use phalanx_core::rejection::Source;

use super::super::history::{EntryKind, Script};
use super::super::plan::FaultKind;
use super::{Case, Verdict, ms};

const OPEN: i64 = 2;
const HALF_OPEN: i64 = 3;

/// A stored breaker: what the oracles need of `include/breaker_state.lua`.
#[derive(Clone, Debug, PartialEq)]
struct Stored {
    phase: i64,
    epoch: i64,
    since: f64,
    ends: f64,
    overridden: i64,
    /// When each lease expires.
    leases: Vec<f64>,
}

fn stored(script: &Script) -> Option<Stored> {
    let w = &script.stored;
    if !script.name.starts_with("breaker") || w.len() < 17 || w[0] != 2.0 {
        return None;
    }
    let in_force = w[16] == 0.0 || w[16] > script.server as f64;
    let overridden = if in_force { w[15] as i64 } else { 0 };
    Some(Stored {
        phase: w[2] as i64,
        epoch: w[3] as i64,
        since: w[4],
        ends: w[5],
        overridden,
        leases: w[17..].to_vec(),
    })
}

/// The probes that the spec of this script allows at a time.
fn probes(script: &Script) -> usize {
    script.spec.get(10).map_or(1, |probes| *probes as usize)
}

/// The transitions in the reply: from, to, epoch.
fn transitions(script: &Script) -> Vec<(i64, i64, i64)> {
    let count = script.reply.get(8).copied().unwrap_or(0).max(0) as usize;
    let each = script.reply.get(9..).unwrap_or_default().chunks_exact(7).take(count);
    each.map(|transition| (transition[0], transition[1], transition[2])).collect()
}

/// The mode of an admit, and its two numbers.
fn admission(script: &Script) -> Option<(i64, i64, i64)> {
    let first = 9 + 7 * script.reply.get(8).copied()?.max(0) as usize;
    match script.reply.get(first..first + 3)? {
        [mode, a, b] => Some((*mode, *a, *b)),
        _ => None,
    }
}

/// I-4: never more live leases than the spec allows probes.
pub(super) fn at_most_k_probes(case: &Case<'_>) -> Verdict {
    let mut most: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, script) in case.scripts() {
        let Some(state) = stored(script) else { continue };
        let allowed = most.entry(script.key).or_default();
        *allowed = (*allowed).max(probes(script));
        let live = state.leases.iter().filter(|expires| **expires > script.server as f64).count();
        if live > *allowed {
            return Err(format!("key {}: {live} live leases, {allowed} allowed, at {}", script.key, ms(at)));
        }
    }
    Ok(())
}

/// I-5: an admit of a half-open breaker with a free probe is granted, so that the lease of a dead holder is free again when
/// it has expired.
pub(super) fn dead_probe_is_freed(case: &Case<'_>) -> Verdict {
    let losses = case.unknown_changes();
    let mut known: BTreeMap<usize, (u64, Stored)> = BTreeMap::new();
    for (at, script) in case.scripts() {
        if script.name == "breaker_admit"
            && let Some((before, former)) = known.get(&script.key)
            && !case.within(&losses, *before, at)
            && script.reply.get(7) == Some(&0)
            && former.phase == HALF_OPEN
            && former.overridden == 0
        {
            let live = former.leases.iter().filter(|expires| **expires > script.server as f64).count();
            let free = probes(script).saturating_sub(live);
            let asked = script.args.first().map_or(1, |n| *n as usize);
            if let Some((2, _, granted)) = admission(script)
                && (granted as usize) < free.min(asked)
            {
                return Err(format!(
                    "key {}: {granted} of {asked} probes granted with {free} free at {}",
                    script.key,
                    ms(at)
                ));
            }
        }
        if let Some(state) = stored(script) {
            known.insert(script.key, (at, state));
        }
    }
    Ok(())
}

/// I-8: an admit after the break is over is not rejected with `circuit_open`.
pub(super) fn no_wedge(case: &Case<'_>) -> Verdict {
    let losses = case.unknown_changes();
    let mut known: BTreeMap<usize, (u64, Stored)> = BTreeMap::new();
    for (at, script) in case.scripts() {
        if script.name == "breaker_admit"
            && let Some((before, former)) = known.get(&script.key)
            && !case.within(&losses, *before, at)
            && former.phase == OPEN
            && former.overridden == 0
            && script.server as f64 >= former.ends
            && let Some((1, 1, _)) = admission(script)
        {
            return Err(format!(
                "key {}: rejected {} after the end of the break",
                script.key,
                ms((script.server as f64 - former.ends) as u64)
            ));
        }
        if let Some(state) = stored(script) {
            known.insert(script.key, (at, state));
        }
    }
    Ok(())
}

/// I-7: outcomes of another epoch change nothing, and an epoch begins once.
pub(super) fn outcomes_count_in_their_epoch(case: &Case<'_>) -> Verdict {
    let losses = case.unknown_changes();
    let steps = case.server_clock_steps();
    let mut known: BTreeMap<usize, (u64, Stored)> = BTreeMap::new();
    for (at, script) in case.scripts() {
        let former = known
            .get(&script.key)
            .filter(|(before, _)| !case.within(&losses, *before, at) && !case.within(&steps, *before, at));
        if let Some((_, former)) = former
            && script.reply.get(7) == Some(&0)
        {
            let other_epoch = |epoch: f64| epoch as i64 != former.epoch;
            let only_stale = match script.name {
                // Live replicas, a time, a call, a window, the number of runs; of each run number, epoch, kind and more.
                "breaker_sync" => {
                    let runs = script.args.get(5..).unwrap_or_default();
                    !runs.is_empty() && runs.chunks_exact(6).all(|run| other_epoch(run[1]) && run[2] < 4.0)
                }
                "breaker_settle" => {
                    let ends = script.args.get(1..).unwrap_or_default();
                    !ends.is_empty() && ends.chunks_exact(3).all(|end| other_epoch(end[0]))
                }
                _ => false,
            };
            if only_stale && script.writes > 0 {
                return Err(format!(
                    "key {}: outcomes of another epoch than {} changed it at {}",
                    script.key,
                    former.epoch,
                    ms(at)
                ));
            }
            if let Some(state) = stored(script)
                && state.epoch == former.epoch
                && state.phase == former.phase
                && state.since != former.since
            {
                return Err(format!("key {}: epoch {} began twice, at {}", script.key, state.epoch, ms(at)));
            }
        }
        if let Some(state) = stored(script) {
            known.insert(script.key, (at, state));
        }
    }
    Ok(())
}

/// I-17: no epoch begins twice, whatever is executed late or twice.
pub(super) fn epochs_begin_once(case: &Case<'_>) -> Verdict {
    let losses = case.unknown_changes();
    let mut begun: BTreeMap<usize, (u64, BTreeSet<i64>)> = BTreeMap::new();
    for (at, script) in case.scripts().filter(|(_, script)| script.name.starts_with("breaker")) {
        let (last, epochs) = begun.entry(script.key).or_default();
        let restored = script.reply.get(7).is_some_and(|flags| flags & 5 != 0);
        if restored || case.within(&losses, *last, at) {
            epochs.clear();
        }
        *last = at;
        for (from, to, epoch) in transitions(script) {
            if !epochs.insert(epoch) {
                return Err(format!("key {}: epoch {epoch} began twice ({from} to {to}) at {}", script.key, ms(at)));
            }
        }
    }
    Ok(())
}

/// The policy of a breaker key, by its spec.
fn policy_of(case: &Case<'_>, script: &Script) -> Option<usize> {
    let (ratio, streak, least) = (*script.spec.first()?, *script.spec.get(1)?, *script.spec.get(5)?);
    case.plan.policies.iter().position(|policy| {
        policy.breaker.as_ref().is_some_and(|breaker| {
            (breaker.failure_ratio.unwrap_or(-1.0) - ratio).abs() < 1e-9
                && f64::from(breaker.consecutive_failures.unwrap_or(0)) == streak
                && f64::from(breaker.min_throughput) == least
        })
    })
}

/// I-6: after a trip, every replica that is connected rejects: within a push, or with its next heartbeat if pushes are lost.
pub(super) fn trip_reaches_every_replica(case: &Case<'_>) -> Verdict {
    let starts = case.starts();
    let degraded_calls: BTreeSet<u64> = case
        .history
        .entries
        .iter()
        .filter_map(|entry| match &entry.kind {
            EntryKind::Finished { call, answer, .. } if answer.source == Source::Degraded => Some(*call),
            _ => None,
        })
        .collect();
    // Every stretch in which a key was open at the server: policy, begin, end.
    let mut open: BTreeMap<usize, (usize, u64, u64)> = BTreeMap::new();
    let mut stretches: Vec<(usize, u64, u64)> = Vec::new();
    for (at, script) in case.scripts().filter(|(_, script)| script.name.starts_with("breaker")) {
        for (_, to, _) in transitions(script) {
            if let Some((policy, since, ends)) = open.remove(&script.key) {
                stretches.push((policy, since, at.min(ends)));
            }
            if to == OPEN
                && let Some(policy) = policy_of(case, script)
            {
                let break_for = script.spec.get(6).map_or(0, |micros| *micros as u64);
                open.insert(script.key, (policy, at, at + break_for));
            }
        }
    }
    stretches.extend(open.into_values());
    for (policy, since, until) in stretches {
        let pushes_troubled = case.any(since.saturating_sub(3_000_000), until, |kind| {
            matches!(kind, FaultKind::LosePushes | FaultKind::DelayPushes { .. })
        });
        let reach = if pushes_troubled { 1_100_000 } else { 100_000 };
        let (from, to) = (since + reach + case.slack, until.saturating_sub(1));
        let disturbed = case.redis_troubled(since.saturating_sub(3_000_000), to)
            || case.any(since.saturating_sub(3_000_000), to, |kind| {
                matches!(
                    kind,
                    FaultKind::ForceOpen { .. }
                        | FaultKind::Lever { .. }
                        | FaultKind::MixedPolicies { .. }
                        | FaultKind::NextRelease { .. }
                        | FaultKind::PauseReplica { .. }
                        | FaultKind::KillReplica { .. }
                        | FaultKind::Flush
                        | FaultKind::Retune { .. }
                        | FaultKind::StepServerClock { .. }
                        | FaultKind::StepReplicaClock { .. }
                )
            });
        if from >= to || disturbed {
            continue;
        }
        for entry in case.history.entries.iter().filter(|entry| entry.at > from && entry.at < to) {
            if let EntryKind::Admitted { replica, policy: called, call, .. } = entry.kind
                && called == policy
                && !degraded_calls.contains(&call)
                && !starts.iter().any(|(start, started)| *started == replica && *start + 2_000_000 > since)
            {
                return Err(format!(
                    "policy {policy} opened at {}; replica {replica} admitted a call at {}",
                    ms(since),
                    ms(entry.at)
                ));
            }
        }
    }
    Ok(())
}

/// I-25: a replica that knows its breaker to be open rejects until the break ends, whatever Redis has lost meanwhile.
pub(super) fn known_open_rejects(case: &Case<'_>) -> Verdict {
    let mut open: BTreeMap<(usize, usize), (u64, u64)> = BTreeMap::new();
    for entry in &case.history.entries {
        match &entry.kind {
            EntryKind::ProcessStarted { replica } => open.retain(|(known, _), _| known != replica),
            EntryKind::Transition { replica, policy, to, break_micros, .. } => {
                open.remove(&(*replica, *policy));
                if *to == Phase::Open && *break_micros > 0 {
                    open.insert((*replica, *policy), (entry.at, entry.at + break_micros * 9 / 10));
                }
            }
            EntryKind::Overridden { policy, .. } => open.retain(|(_, known), _| known != policy),
            EntryKind::Admitted { replica, policy, .. } => {
                if let Some((since, until)) = open.get(&(*replica, *policy))
                    && entry.at > *since
                    && entry.at < *until
                {
                    let moved = case.any(*since, entry.at, |kind| {
                        matches!(
                            kind,
                            FaultKind::StepServerClock { .. }
                                | FaultKind::StepReplicaClock { .. }
                                | FaultKind::FailOver { .. }
                                | FaultKind::MixedPolicies { .. }
                                | FaultKind::Retune { .. }
                                | FaultKind::NextRelease { .. }
                                | FaultKind::ForceOpen { .. }
                                | FaultKind::Lever { .. }
                        )
                    });
                    if moved {
                        continue;
                    }
                    return Err(format!(
                        "replica {replica}, policy {policy}: open since {}, a call was admitted at {}, {} before the end of the break",
                        ms(*since),
                        ms(entry.at),
                        ms(until - entry.at)
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

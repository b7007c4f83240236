//! I-1, I-2, I-3, I-9 and I-20: limits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::rate_limit::{Bucket, Rate, Take};
use phalanx_core::rejection::Source;

use super::super::history::{EntryKind, Script};
use super::{Case, Verdict, ms};

/// The rate in the arguments of a bucket script; the new one of a retune.
fn rate(script: &Script) -> Option<Rate> {
    let args = if script.name == "rate_limit_retune" { script.args.get(3..)? } else { &script.args };
    match args[..] {
        [gain, price, capacity, ..] if gain > 0.0 && price > 0.0 => {
            Some(Rate { gain: gain as u64, price: price as u64, capacity: capacity as u64 })
        }
        _ => None,
    }
}

/// The groups of an acquire: callers, permits a caller, microseconds a caller may wait, and how many were granted.
fn groups(script: &Script) -> Vec<(u64, u64, u64, u64)> {
    let group = |(index, args): (usize, &[f64])| {
        let granted = script.reply.get(3 + index).copied().unwrap_or(0).max(0) as u64;
        (args[0] as u64, args[1] as u64, args[2] as u64, granted)
    };
    script.args.get(5..).unwrap_or_default().chunks_exact(3).enumerate().map(group).collect()
}

fn granted_permits(script: &Script) -> u64 {
    groups(script).iter().map(|(_, permits, _, granted)| permits * granted).sum()
}

/// Permits that a replica has granted without Redis, and that this script charges.
fn charge(script: &Script) -> u64 {
    script.args.get(3).map_or(0, |permits| *permits as u64)
}

/// The most permits that a refund may return: what has not been refilled since they were due.
fn refunded_permits(script: &Script, rate: Rate) -> f64 {
    let refund = |args: &[f64]| {
        let refilled = (script.server as f64 - args[1]).max(0.0) * rate.gain as f64 / rate.price as f64;
        (args[0] - refilled).max(0.0)
    };
    script.args.get(4..).unwrap_or_default().chunks_exact(2).map(refund).sum()
}

/// I-1: in every window, the permits that the server granted are at most burst + rate × window, plus one burst for every
/// loss of state and forward step of its clock in it; no call is admitted by the fleet without a grant; and a replica
/// that decides without Redis stays within its share.
pub(super) fn fleet_never_over_admits(case: &Case<'_>) -> Verdict {
    #[derive(Default)]
    struct Window {
        /// Granted minus what the rate allows so far, and the least value of that before a grant.
        level: f64,
        least: f64,
        last: u64,
        burst: f64,
        rate: f64,
        gifts_taken: usize,
    }
    let mut gifts = case.state_losses();
    gifts.extend(case.server_clock_steps());
    gifts.sort_unstable();
    let mut keys: BTreeMap<usize, Window> = BTreeMap::new();
    for (at, script) in case.scripts().filter(|(_, script)| script.name.starts_with("rate_limit")) {
        let Some(rate) = rate(script) else { continue };
        let window = keys.entry(script.key).or_default();
        // With two policies side by side the higher one holds.
        window.burst = window.burst.max(rate.capacity as f64 / rate.price as f64);
        window.rate = window.rate.max(rate.gain as f64 / rate.price as f64);
        window.level -= window.rate * (at - window.last) as f64;
        window.last = at;
        while gifts.get(window.gifts_taken).is_some_and(|gift| *gift <= at) {
            window.gifts_taken += 1;
            window.level -= window.burst;
        }
        match script.name {
            "rate_limit_refund" => window.level -= refunded_permits(script, rate),
            "rate_limit_acquire" => {
                window.least = window.least.min(window.level);
                let ahead = groups(script).iter().map(|group| group.2).max().unwrap_or(0) as f64 * window.rate;
                window.level += granted_permits(script) as f64;
                let used = window.level - window.least;
                if used > window.burst + ahead + 1e-3 {
                    return Err(format!(
                        "key {}: {used:.2} permits beyond the rate in a window that ends at {}; the burst is {}",
                        script.key,
                        ms(at),
                        window.burst
                    ));
                }
            }
            _ => {}
        }
    }
    no_call_without_grant(case)?;
    degraded_within_share(case)
}

/// Calls of policies that have a limit and no breaker, so that the source of a decision is the limit's.
fn limit_only(case: &Case<'_>) -> BTreeSet<usize> {
    let policies = case.plan.policies.iter().enumerate();
    policies
        .filter(|(_, policy)| policy.rate_limit.is_some() && policy.breaker.is_none())
        .map(|(index, _)| index)
        .collect()
}

fn no_call_without_grant(case: &Case<'_>) -> Verdict {
    let limited = limit_only(case);
    // The keys of a policy: those whose rate is the policy's, or half of it.
    let mut sources: BTreeMap<u64, Source> = BTreeMap::new();
    for entry in &case.history.entries {
        if let EntryKind::Finished { call, answer, .. } = &entry.kind {
            sources.insert(*call, answer.source);
        }
    }
    let mut granted: BTreeMap<usize, u64> = BTreeMap::new();
    let mut admitted: BTreeMap<usize, u64> = BTreeMap::new();
    for entry in &case.history.entries {
        match &entry.kind {
            EntryKind::Script(script) if script.name == "rate_limit_acquire" && !script.failed => {
                let Some(rate) = rate(script) else { continue };
                let burst = rate.capacity / rate.price;
                for policy in &limited {
                    if case.plan.policies[*policy].rate_limit.as_ref().is_some_and(|limit| limit.capacity() == burst) {
                        *granted.entry(*policy).or_default() += granted_permits(script);
                    }
                }
            }
            EntryKind::Admitted { policy, call, cost, .. } if limited.contains(policy) => {
                if sources.get(call) == Some(&Source::Fleet) {
                    *admitted.entry(*policy).or_default() += u64::from(*cost);
                }
                let (used, had) =
                    (admitted.get(policy).copied().unwrap_or(0), granted.get(policy).copied().unwrap_or(0));
                if used > had {
                    return Err(format!("policy {policy}: {used} permits used and {had} granted at {}", ms(entry.at)));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// A replica that decides without Redis admits at most its share in an outage: (burst + rate × time) / replicas, by the
/// most replicas it has known, and nothing of the burst if it has known none. Single decisions without Redis are charged to
/// the fleet's bucket, so that they stay within the fleet's rate.
fn degraded_within_share(case: &Case<'_>) -> Verdict {
    /// How long before its answer a call began, in microseconds: a replica that knows nothing starts empty then.
    const CALL: f64 = 100_000.0;
    struct Replica {
        /// The most live replicas that it has known.
        live: u32,
        down: bool,
        /// Per policy: used beyond the rate, and its least value.
        windows: BTreeMap<usize, (f64, f64, u64)>,
    }
    let limited = limit_only(case);
    let mut sources: BTreeMap<u64, Source> = BTreeMap::new();
    for entry in &case.history.entries {
        if let EntryKind::Finished { call, answer, .. } = &entry.kind {
            sources.insert(*call, answer.source);
        }
    }
    let new = || Replica { live: 0, down: false, windows: BTreeMap::new() };
    let mut replicas: Vec<Replica> = (0..case.plan.replicas).map(|_| new()).collect();
    for entry in &case.history.entries {
        match &entry.kind {
            EntryKind::ProcessStarted { replica } => replicas[*replica] = new(),
            EntryKind::Replicas { replica, live } => {
                let state = &mut replicas[*replica];
                // A first count gives the twin a level that it did not have.
                if state.live == 0 {
                    state.windows.clear();
                }
                state.live = state.live.max(*live);
            }
            EntryKind::Degraded { replica, .. } | EntryKind::Recovered { replica } => {
                let state = &mut replicas[*replica];
                state.down = matches!(entry.kind, EntryKind::Degraded { .. });
                // What was taken before was charged, or is missing in the new twin.
                state.windows.clear();
            }
            EntryKind::Admitted { replica, policy, call, cost } if limited.contains(policy) => {
                if sources.get(call) != Some(&Source::Degraded) {
                    continue;
                }
                let state = &mut replicas[*replica];
                let Some(limit) = &case.plan.policies[*policy].rate_limit else { continue };
                let fleet_rate = limit.permits as f64 / limit.per.as_micros() as f64;
                let share = f64::from(state.live.max(1));
                let (rate, burst) = match (state.down, state.live) {
                    (_, 0) => (fleet_rate, fleet_rate * CALL),
                    (true, _) => (fleet_rate / share, (limit.capacity() as f64 / share).floor().max(1.0)),
                    (false, _) => (fleet_rate, limit.capacity() as f64),
                };
                // A cost above the share is granted when the share is full.
                let burst = burst + f64::from(*cost);
                let (level, least, last) = state.windows.entry(*policy).or_insert((0.0, 0.0, entry.at));
                *level -= rate * (entry.at - *last) as f64;
                *last = entry.at;
                *least = least.min(*level);
                *level += f64::from(*cost);
                if *level - *least > burst + 1e-3 {
                    return Err(format!(
                        "replica {replica} admitted {:.1} permits beyond its share's rate without Redis at {}; its share of the burst is {burst}",
                        *level - *least,
                        ms(entry.at)
                    ));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The level and the time that a bucket script has stored.
fn stored(script: &Script) -> Option<(f64, f64)> {
    match script.stored[..] {
        [2.0, level, at, ..] => Some((level, at)),
        _ => None,
    }
}

/// The units of abandoned places that a bucket script has stored: behind the level, the rate and the leases.
fn stored_abandoned(script: &Script) -> f64 {
    script.stored.get(15).copied().unwrap_or(0.0)
}

/// I-2: between two stored states of a bucket, the level rises at most by the gain of the time between them, which is
/// none if the clock went back.
pub(super) fn clock_going_back_mints_nothing(case: &Case<'_>) -> Verdict {
    let losses = case.unknown_changes();
    let mut known: BTreeMap<usize, (u64, Rate, f64, f64, f64)> = BTreeMap::new();
    for (at, script) in case.scripts().filter(|(_, script)| script.name.starts_with("rate_limit")) {
        let (Some(rate), Some((level, stored_at))) = (rate(script), stored(script)) else { continue };
        if script.writes == 0 {
            continue;
        }
        let former = known.insert(script.key, (at, rate, level, stored_at, stored_abandoned(script)));
        let Some((before, old_rate, old_level, old_at, abandoned)) = former else { continue };
        let lost = case.within(&losses, before, at);
        let repaired = script.reply.get(2).is_some_and(|flags| flags % 2 == 1);
        if lost || repaired || old_rate != rate || script.name == "rate_limit_retune" {
            continue;
        }
        let price = rate.price as f64;
        let (taken, returned) = match script.name {
            "rate_limit_acquire" => (granted_permits(script) as f64 * price, 0.0),
            // The last refund of a crowd returns the places of those who left before.
            "rate_limit_refund" => (0.0, refunded_permits(script, rate) * price + abandoned),
            _ => (0.0, 0.0),
        };
        let minted = level - old_level + taken - returned;
        let earned = rate.gain as f64 * (stored_at - old_at).max(0.0);
        if minted > earned + 0.5 {
            return Err(format!(
                "key {}: {:.3} permits minted and {:.3} earned at {}",
                script.key,
                minted / price,
                earned / price,
                ms(at)
            ));
        }
    }
    Ok(())
}

/// I-3: a caller is granted if the level suffices, and a bucket that was left alone for long enough is full.
pub(super) fn no_starvation(case: &Case<'_>) -> Verdict {
    let losses = case.unknown_changes();
    let steps = case.server_clock_steps();
    let mut known: BTreeMap<usize, (u64, Rate, f64, f64)> = BTreeMap::new();
    for (at, script) in case.scripts().filter(|(_, script)| script.name.starts_with("rate_limit")) {
        let Some(rate) = rate(script) else { continue };
        if script.name == "rate_limit_acquire" {
            let mut level = script.reply.get(1).copied().unwrap_or(0);
            if let Some((before, old_rate, old_level, old_at)) = known.get(&script.key) {
                let undisturbed = *old_rate == rate
                    && charge(script) == 0
                    && !case.within(&losses, *before, at)
                    && !case.within(&steps, *before, at)
                    && script.reply.get(2) == Some(&0);
                let passed = script.server as f64 - old_at;
                let expected = (old_level + passed * rate.gain as f64).min(rate.capacity as f64);
                if undisturbed && passed >= 0.0 && (level as f64) < expected - 0.5 {
                    return Err(format!("key {}: {level} units at {}, {expected:.0} expected", script.key, ms(at)));
                }
            }
            for (callers, permits, _, granted) in groups(script) {
                let need = (permits * rate.price) as i64;
                if callers > 0 && need <= level && need <= rate.capacity as i64 && granted == 0 {
                    return Err(format!(
                        "key {}: rejected with {level} units and a need of {need} at {}",
                        script.key,
                        ms(at)
                    ));
                }
                level -= need * granted as i64;
            }
        }
        if let (Some((level, stored_at)), true) = (stored(script), script.writes > 0) {
            known.insert(script.key, (at, rate, level, stored_at));
        }
    }
    Ok(())
}

/// I-9: a rejected acquire or admit, and every read, writes nothing.
pub(super) fn rejections_write_nothing(case: &Case<'_>) -> Verdict {
    let stepped = case.server_clock_steps();
    for (at, script) in case.scripts().filter(|(_, script)| script.writes > 0) {
        // A clock that stepped back by more than a second is anchored anew, by whatever script comes first on a key.
        if stepped.iter().any(|step| *step <= at) {
            return Ok(());
        }
        let rejected = match script.name {
            "rate_limit_peek" | "breaker_inspect" | "lock_completed" => true,
            "rate_limit_acquire" => {
                script.reply.get(2) == Some(&0) && granted_permits(script) == 0 && charge(script) == 0
            }
            "breaker_admit" => {
                let transitions = script.reply.get(8).copied().unwrap_or(0);
                let mode = script.reply.get(9 + 7 * transitions.max(0) as usize);
                script.reply.get(7) == Some(&0) && transitions == 0 && mode == Some(&1)
            }
            _ => false,
        };
        if rejected {
            return Err(format!("{} rejected and wrote at {}: {:?}", script.name, ms(at), script.reply));
        }
    }
    Ok(())
}

/// I-20: every acquire and refund of a bucket gives the reply of core's machine on the same times.
pub(super) fn scripts_equal_machines(case: &Case<'_>) -> Verdict {
    let (losses, steps) = (case.unknown_changes(), case.server_clock_steps());
    let mut machines: BTreeMap<usize, (u64, Rate, Bucket)> = BTreeMap::new();
    let mut skipped: BTreeSet<usize> = BTreeSet::new();
    for (at, script) in case.scripts().filter(|(_, script)| script.name.starts_with("rate_limit")) {
        let Some(rate) = rate(script) else { continue };
        let now = Time::from_micros(script.server);
        let (last, known, machine) = machines.entry(script.key).or_insert((at, rate, Bucket::full(now, rate)));
        // After a loss of state or with a second rate, the stored level is not known from the history.
        let lost = case.within(&losses, *last, at);
        if lost || *known != rate || script.reply.get(2) != Some(&0) || script.name == "rate_limit_retune" {
            skipped.insert(script.key);
        }
        // A rejection is not stored, so a script that finds its clock set back forgets what was earned since the last
        // grant, and the machine does not: at most the refill between two grants.
        if case.within(&steps, *last, at) && skipped.insert(script.key) {
            case.allow("I-20: a clock that is set back costs the refill since the last grant, in Redis only");
        }
        *last = at;
        if skipped.contains(&script.key) {
            continue;
        }
        match script.name {
            "rate_limit_acquire" => {
                // A charge is a reservation that is not asked whether it fits, down to a debt of one capacity.
                let charged = (charge(script) * rate.price).min(rate.capacity);
                if charged > 0 {
                    machine.available(now, rate);
                    let permits = u32::try_from(charged / rate.price).unwrap_or(u32::MAX);
                    let fits = machine.level(rate).units - charged as i64 >= -(rate.capacity as i64);
                    let whole = charged % rate.price == 0;
                    let charged = fits && whole && {
                        let take = machine.take(now, rate, permits, Duration::MAX);
                        matches!(take, Take::Granted { .. })
                    };
                    if !charged {
                        skipped.insert(script.key);
                        continue;
                    }
                }
                for (callers, permits, wait, granted) in groups(script) {
                    let taken = |_: &u64| {
                        let take = machine.take(now, rate, permits as u32, Duration::from_micros(wait));
                        matches!(take, Take::Granted { .. })
                    };
                    let expected = (0..callers).take_while(taken).count() as u64;
                    if expected != granted {
                        return Err(format!(
                            "key {}: {granted} of {callers} granted, core's machine grants {expected}, at {}",
                            script.key,
                            ms(at)
                        ));
                    }
                }
            }
            "rate_limit_refund" => {
                for refund in script.args.get(4..).unwrap_or_default().chunks_exact(2) {
                    machine.refund(now, rate, refund[0] as u32, Time::from_micros(refund[1] as u64));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

//! I-1, I-2, I-3, I-9, I-20, I-31 and I-32: limits.

mod several;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::rate_limit::{Bucket, Consistency, Rate, RateLimitSpec, Take};
use phalanx_core::rejection::Source;

pub(super) use self::several::several_limits_are_charged_together_or_not_at_all;
use super::super::history::{EntryKind, Script};
use super::super::plan::FaultKind;
use super::{Case, Verdict, ms};

/// The script on several buckets, which has an entry for each.
const ALL: &str = "rate_limit_acquire_all";

/// The rate in the arguments of a bucket script; the new one of a retune.
pub(super) fn rate(script: &Script) -> Option<Rate> {
    let args = match script.name {
        "rate_limit_retune" => script.args.get(3..)?,
        ALL => script.args.get(4 * script.place.0..)?,
        _ => &script.args,
    };
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
    if script.name == ALL {
        return several::granted_permits(script);
    }
    groups(script).iter().map(|(_, permits, _, granted)| permits * granted).sum()
}

/// Permits that a replica has granted without Redis, and that this script charges.
fn charge(script: &Script) -> u64 {
    script.args.get(4 * script.place.0 + 3).map_or(0, |permits| *permits as u64)
}

/// The longest that a caller of an acquire may wait, in microseconds.
fn longest_wait(script: &Script) -> u64 {
    if script.name == ALL {
        return several::longest_wait(script);
    }
    groups(script).iter().map(|group| group.2).max().unwrap_or(0)
}

/// The blocks that a lease closes: the end of the lease, the size and the permits that were not spent.
fn closed_blocks(script: &Script) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
    let blocks = script.args.get(5..).unwrap_or_default().chunks_exact(3);
    blocks.map(|args| (args[0] as u64, args[1] as u64, args[2] as u64))
}

/// The most permits that the blocks which a lease closes may give back.
fn closed_permits(script: &Script) -> f64 {
    closed_blocks(script).map(|(_, _, unspent)| unspent as f64).sum()
}

/// The permits that a lease has drawn.
fn drawn_permits(script: &Script) -> u64 {
    script.reply.get(3).map_or(0, |permits| (*permits).max(0) as u64)
}

/// The leased permits that a bucket script has stored.
pub(super) fn stored_leases(script: &Script) -> f64 {
    script.stored.get(6..14).unwrap_or_default().iter().sum()
}

/// The most permits that a refund may return: what has not been refilled since they were due.
fn refunded_permits(script: &Script, rate: Rate) -> f64 {
    let refund = |args: &[f64]| {
        let refilled = (script.server as f64 - args[1]).max(0.0) * rate.gain as f64 / rate.price as f64;
        (args[0] - refilled).max(0.0)
    };
    script.args.get(4..).unwrap_or_default().chunks_exact(2).map(refund).sum()
}

/// I-1: in every window, the permits that the server granted are at most burst + rate × window, plus one burst, and the permits
/// that callers were waiting for, for every loss of state and forward step of its clock in it; no call is admitted by the fleet without a grant; and a replica
/// that decides without Redis stays within its share.
pub(super) fn fleet_never_over_admits(case: &Case<'_>) -> Verdict {
    let mut keys: BTreeMap<usize, Window> = BTreeMap::new();
    let gifts = gifts(case);
    for (at, script) in case.scripts().filter(|(_, script)| script.name.starts_with("rate_limit")) {
        let Some(rate) = rate(script) else { continue };
        let window = keys.entry(script.key).or_default();
        window.see(rate);
        window.advance(at, &gifts);
        match script.name {
            "rate_limit_refund" => window.level -= refunded_permits(script, rate),
            "rate_limit_acquire" | ALL => {
                let ahead = longest_wait(script) as f64 * window.rate;
                window.ahead = window.ahead.max(ahead);
                let used = window.take(granted_permits(script) as f64);
                window.check(used, ahead, script.key, at)?;
            }
            // A block counts as granted when it is drawn, and what comes back of it does not.
            "rate_limit_lease" => {
                window.level -= closed_permits(script);
                let used = window.take(drawn_permits(script) as f64);
                window.check(used, 0.0, script.key, at)?;
            }
            _ => {}
        }
    }
    no_call_without_grant(case)?;
    degraded_within_share(case)
}

/// The permits granted in windows of any length.
#[derive(Default)]
struct Window {
    /// Granted minus what the rate allows so far, and the least value of that before a grant.
    level: f64,
    least: f64,
    last: u64,
    burst: f64,
    rate: f64,
    /// The most permits for which callers were let wait: those too are there when the bucket is full again.
    ahead: f64,
    gifts_taken: usize,
    /// A window that begins so long after a gift, or earlier, holds it: what was leased before a loss of state is spent
    /// after it, beside the bucket that is full again.
    leased_for: u64,
    last_gift: Option<u64>,
}

impl Window {
    /// Takes over the rate of a script. With two policies side by side the higher one holds.
    fn see(&mut self, rate: Rate) {
        self.burst = self.burst.max(rate.capacity as f64 / rate.price as f64);
        self.rate = self.rate.max(rate.gain as f64 / rate.price as f64);
    }

    fn advance(&mut self, at: u64, gifts: &[u64]) {
        self.level -= self.rate * (at - self.last) as f64;
        self.last = at;
        while let Some(gift) = gifts.get(self.gifts_taken).filter(|gift| **gift <= at) {
            self.gifts_taken += 1;
            self.level -= self.burst + self.ahead;
            self.last_gift = Some(*gift);
        }
    }

    /// Returns the most permits beyond the rate that a window which ends now holds.
    fn take(&mut self, permits: f64) -> f64 {
        if self.last_gift.is_none_or(|gift| self.last > gift + self.leased_for) {
            self.least = self.least.min(self.level);
        }
        self.level += permits;
        self.level - self.least
    }

    fn check(&self, used: f64, ahead: f64, key: usize, at: u64) -> Verdict {
        if used > self.burst + ahead + 1e-3 {
            return Err(format!(
                "key {key}: {used:.2} permits beyond the rate in a window that ends at {}; the burst is {}",
                ms(at),
                self.burst
            ));
        }
        Ok(())
    }
}

/// The times at which a bucket may have become full: each allows one burst more.
fn gifts(case: &Case<'_>) -> Vec<u64> {
    let mut gifts = case.state_losses();
    gifts.extend(case.server_clock_steps());
    gifts.sort_unstable();
    gifts
}

/// Where the decision about each call was made.
fn sources(case: &Case<'_>) -> BTreeMap<u64, Source> {
    let finished = case.history.entries.iter().filter_map(|entry| match &entry.kind {
        EntryKind::Finished { call, answer, .. } => Some((*call, answer.source)),
        _ => None,
    });
    finished.collect()
}

/// I-31: of a leased limit, in every window, the permits that the server has granted to calls and those that replicas have
/// granted of their blocks are together at most burst + rate × window, plus one burst for every loss of state and forward
/// step of the server's clock in it, or at most a lease before it; and replicas grant no more of blocks than the server has leased.
pub(super) fn leases_are_strict(case: &Case<'_>) -> Verdict {
    let (sources, gifts) = (sources(case), gifts(case));
    let leased = |policy: &usize| {
        let limit = case.plan.policies[*policy].rate_limit.as_ref();
        limit.filter(|limit| limit.consistency == Consistency::Leased).map(|limit| (*policy, limit.capacity()))
    };
    for (of, capacity) in limit_only(case).iter().filter_map(leased) {
        let (mut window, mut drawn, mut spent) = (Window::default(), 0, 0);
        for entry in &case.history.entries {
            match &entry.kind {
                EntryKind::Script(script) if script.name.starts_with("rate_limit") && !script.failed => {
                    let Some(rate) = rate(script).filter(|rate| rate.capacity / rate.price == capacity) else {
                        continue;
                    };
                    window.see(rate);
                    window.leased_for = rate.lease_time().as_micros() as u64;
                    window.advance(entry.at, &gifts);
                    match script.name {
                        "rate_limit_refund" => window.level -= refunded_permits(script, rate),
                        "rate_limit_lease" => drawn += drawn_permits(script),
                        "rate_limit_acquire" => {
                            let used = window.take(granted_permits(script) as f64);
                            window.check(used, 0.0, script.key, entry.at)?;
                        }
                        _ => {}
                    }
                }
                EntryKind::Admitted { policy, call, cost, .. }
                    if *policy == of && sources.get(call) == Some(&Source::Leased) =>
                {
                    spent += u64::from(*cost);
                    window.advance(entry.at, &gifts);
                    let used = window.take(f64::from(*cost));
                    window.check(used, 0.0, of, entry.at)?;
                    if spent > drawn {
                        return Err(format!(
                            "policy {of}: {spent} permits spent and {drawn} leased at {}",
                            ms(entry.at)
                        ));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
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
    let sources = sources(case);
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

/// Permits a microsecond.
fn rate_of(limit: &RateLimitSpec) -> f64 {
    limit.permits as f64 / limit.per.as_micros() as f64
}

/// The rate and the burst of a replica without Redis that is degraded, or has only missed a reply, and knows so many live
/// ones.
fn share_of(limit: &RateLimitSpec, (down, live): (bool, u32)) -> (f64, f64) {
    let share = f64::from(live.max(1));
    match (down, live) {
        (true, 1..) => (rate_of(limit) / share, (limit.capacity() as f64 / share).floor().max(1.0)),
        _ => (rate_of(limit), limit.capacity() as f64),
    }
}

/// A replica that decides without Redis admits at most its share in an outage: (burst + rate × time) / replicas, by the
/// most replicas it has known. If it has known none, it admits no more than its rate since its process or the outage began:
/// it starts empty. Single decisions without Redis are charged to the fleet's bucket, so that they stay within the fleet's
/// rate. A replica whose own clock jumps forward has the permits of that time, at most its share of the burst.
fn degraded_within_share(case: &Case<'_>) -> Verdict {
    /// How long before its answer a call began, in microseconds: a replica that knows nothing starts empty then.
    const CALL: f64 = 100_000.0;
    struct Replica {
        /// The most live replicas that it has known.
        live: u32,
        down: bool,
        /// Policies that Redis has decided since: of a Cluster, only other masters are down.
        served: BTreeSet<usize>,
        /// Since when it can have earned permits if it has known none.
        empty_at: u64,
        /// Per policy: used beyond the rate, and its least value.
        windows: BTreeMap<usize, (f64, f64, u64)>,
    }
    let limited = limit_only(case);
    let sources = sources(case);
    let new = |empty_at| Replica { live: 0, down: false, served: BTreeSet::new(), empty_at, windows: BTreeMap::new() };
    let mut replicas: Vec<Replica> = (0..case.plan.replicas).map(|_| new(0)).collect();
    for entry in &case.history.entries {
        match &entry.kind {
            EntryKind::ProcessStarted { replica } => replicas[*replica] = new(entry.at),
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
                state.served.clear();
                state.empty_at = entry.at;
                // What was taken before was charged, or is missing in the new twin.
                state.windows.clear();
            }
            EntryKind::FaultBegins { fault } => {
                if let FaultKind::StepReplicaClock { replica, by_ms: by_ms @ 1.. } = &case.plan.faults[*fault].kind {
                    let state = &mut replicas[*replica];
                    let known = (state.down, state.live);
                    for (policy, (level, ..)) in &mut state.windows {
                        let Some(limit) = &case.plan.policies[*policy].rate_limit else { continue };
                        let (rate, burst) = share_of(limit, known);
                        *level -= (rate * (*by_ms as f64 * 1_000.0)).min(burst);
                    }
                }
            }
            EntryKind::Admitted { replica, policy, call, cost } if limited.contains(policy) => {
                let state = &mut replicas[*replica];
                match sources.get(call) {
                    Some(Source::Degraded) => {}
                    Some(Source::Fleet) if case.plan.masters > 1 => {
                        state.served.insert(*policy);
                        continue;
                    }
                    _ => continue,
                }
                let Some(limit) = &case.plan.policies[*policy].rate_limit else { continue };
                let down = state.down && !state.served.contains(policy);
                let (rate, burst) = share_of(limit, (down, state.live));
                let begins = if state.live == 0 { state.empty_at } else { entry.at };
                // A cost above the share is granted when the share is full.
                let burst = burst + f64::from(*cost);
                let (level, least, last) = state.windows.entry(*policy).or_insert((0.0, 0.0, begins));
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
                if state.live == 0 && *level > rate_of(limit) * CALL + f64::from(*cost) + 1e-3 {
                    return Err(format!(
                        "replica {replica} has known no other and admitted {level:.1} permits more than its rate since {} at {}",
                        ms(state.empty_at),
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
pub(super) fn stored(script: &Script) -> Option<(f64, f64)> {
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
        let repaired = script.reply.get(2 * script.place.0 + 2).is_some_and(|flags| flags % 2 == 1);
        if lost || repaired || old_rate != rate || script.name == "rate_limit_retune" {
            continue;
        }
        let price = rate.price as f64;
        let (taken, returned) = match script.name {
            "rate_limit_acquire" | ALL => (granted_permits(script) as f64 * price, 0.0),
            // The last refund of a crowd returns the places of those who left before.
            "rate_limit_refund" => (0.0, refunded_permits(script, rate) * price + abandoned),
            "rate_limit_lease" => (drawn_permits(script) as f64 * price, closed_permits(script) * price),
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
    let mut known: BTreeMap<usize, (u64, Rate, f64, f64, f64)> = BTreeMap::new();
    for (at, script) in case.scripts().filter(|(_, script)| script.name.starts_with("rate_limit")) {
        let Some(rate) = rate(script) else { continue };
        if script.name == "rate_limit_acquire" {
            let mut level = script.reply.get(1).copied().unwrap_or(0);
            if let Some((before, old_rate, old_level, old_at, leased)) = known.get(&script.key) {
                let undisturbed = *old_rate == rate
                    && charge(script) == 0
                    && !case.within(&losses, *before, at)
                    && !case.within(&steps, *before, at)
                    && script.reply.get(2) == Some(&0);
                let passed = script.server as f64 - old_at;
                // The refill leaves room for leased permits, at most until now.
                let most = (rate.capacity as f64 - leased * rate.price as f64).max(*old_level);
                let expected = (old_level + passed * rate.gain as f64).min(most);
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
            known.insert(script.key, (at, rate, level, stored_at, stored_leases(script)));
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
            "rate_limit_acquire" | ALL => {
                // A cost for which leases leave no room pauses draws.
                let pauses = script.stored.get(17).is_some_and(|pause| *pause > 0.0);
                script.reply.get(2 * script.place.0 + 2) == Some(&0)
                    && granted_permits(script) == 0
                    && charge(script) == 0
                    && !pauses
            }
            "rate_limit_lease" => {
                script.reply.get(2) == Some(&0) && drawn_permits(script) == 0 && script.args.get(4) == Some(&0.0)
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

/// I-20: every acquire, refund and draw of a bucket gives the reply of core's machine on the same times. As a rejection
/// writes nothing, the machine continues from what the last script has stored.
pub(super) fn scripts_equal_machines(case: &Case<'_>) -> Verdict {
    let losses = case.unknown_changes();
    let mut machines: BTreeMap<usize, (u64, Rate, Bucket)> = BTreeMap::new();
    let mut skipped: BTreeSet<usize> = BTreeSet::new();
    for (at, script) in case.scripts().filter(|(_, script)| script.name.starts_with("rate_limit")) {
        let Some(rate) = rate(script) else { continue };
        let now = Time::from_micros(script.server);
        let (last, known, stored) = machines.entry(script.key).or_insert((at, rate, Bucket::full(now, rate)));
        // After a loss of state or with a second rate, the stored level is not known from the history.
        let lost = case.within(&losses, *last, at) || script.name == ALL;
        if lost || *known != rate || script.reply.get(2) != Some(&0) || script.name == "rate_limit_retune" {
            skipped.insert(script.key);
        }
        *last = at;
        if skipped.contains(&script.key) {
            continue;
        }
        let mut machine = *stored;
        match script.name {
            "rate_limit_acquire" => {
                // A charge is not asked whether it fits, down to a debt of one capacity.
                let charged = (charge(script) * rate.price).min(rate.capacity);
                if charged > 0 {
                    machine.available(now, rate);
                    let permits = u32::try_from(charged / rate.price).unwrap_or(u32::MAX);
                    let fits = machine.level(rate).units - charged as i64 >= -(rate.capacity as i64);
                    let whole = charged % rate.price == 0;
                    if !fits || !whole {
                        skipped.insert(script.key);
                        continue;
                    }
                    machine.charge(now, rate, permits.into());
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
            // How much of a charge is new is judged by I-33.
            "rate_limit_charge" => {
                machine.available(now, rate);
                let charged = machine.level(rate).units - script.reply.get(1).copied().unwrap_or(0);
                let most = (script.args.get(4).unwrap_or(&0.0) - script.args.get(3).unwrap_or(&0.0)).max(0.0);
                if charged < 0 || charged % rate.price as i64 != 0 || charged as f64 > most * rate.price as f64 {
                    return Err(format!("key {}: {charged} units charged at {}", script.key, ms(at)));
                }
                machine.charge(now, rate, charged as u64 / rate.price);
            }
            "rate_limit_lease" => {
                for (ends, size, unspent) in closed_blocks(script) {
                    machine.close(now, rate, Time::from_micros(ends), size, unspent);
                }
                let want = script.args.get(3).map_or(0, |want| *want as u64);
                let (drawn, level) = (machine.draw(now, rate, want).permits, machine.level(rate).units);
                if drawn != drawn_permits(script) || script.reply.get(1) != Some(&level) {
                    return Err(format!(
                        "key {}: {} of {want} leased and {:?} left, core's machine leases {drawn} and leaves {level}, at {}",
                        script.key,
                        drawn_permits(script),
                        script.reply.get(1),
                        ms(at)
                    ));
                }
            }
            _ => {}
        }
        if script.writes > 0 {
            *stored = machine;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use phalanx::RejectionCode;

    use super::super::super::history::{Answer, Entry, History};
    use super::super::super::plan::Plan;
    use super::*;
    use crate::redis_model::Effects;

    /// Twenty permits at once, and forty a second.
    const PLAN: &str = "seed = 1\nreplicas = 1\nseconds = 20\n[[policies]]\nname = \"limited\"\n\
                        [policies.rate_limit]\npermits = 40\nper = \"1s\"\nburst = 20\n";

    /// A process that starts at one second without Redis, knows no other replica, and admits calls of two permits: how many
    /// at which second.
    fn without_redis(admitted: &[(f64, u64)]) -> Verdict {
        judged(PLAN, &[], admitted)
    }

    /// The same, with a fault that begins at some second.
    fn judged(plan: &str, faults: &[f64], admitted: &[(f64, u64)]) -> Verdict {
        let micros = |second: f64| (second * 1e6) as u64;
        let mut entries = vec![
            Entry { at: micros(1.0), kind: EntryKind::ProcessStarted { replica: 0 } },
            Entry { at: micros(1.005), kind: EntryKind::Degraded { replica: 0, reason: "refused".to_owned() } },
        ];
        let answer = Answer {
            ok: true,
            rejected: None::<RejectionCode>,
            source: Source::Degraded,
            attempts: 1,
            hedges: 0,
            probe: false,
        };
        let mut next = 0;
        for (second, calls) in admitted {
            for call in next..next + calls {
                let at = micros(*second);
                entries.push(Entry { at, kind: EntryKind::Admitted { replica: 0, policy: 0, call, cost: 2 } });
                let kind = EntryKind::Finished { replica: 0, policy: 0, call, answer: answer.clone() };
                entries.push(Entry { at, kind });
            }
            next += calls;
        }
        for (fault, second) in faults.iter().enumerate() {
            entries.push(Entry { at: micros(*second), kind: EntryKind::FaultBegins { fault } });
        }
        entries.sort_by_key(|entry| entry.at);
        let (plan, history) = (Plan::parse(plan).unwrap(), History { entries });
        degraded_within_share(&Case::new(&plan, &history, Effects::default()))
    }

    #[test]
    fn a_replica_that_has_known_no_other_may_use_what_it_has_earned_since_it_started() {
        assert_eq!(without_redis(&[(3.3, 10)]), Ok(()), "seed 105: idle for 2.3 seconds, then a whole burst");
        assert_eq!(without_redis(&[(1.255, 5), (1.755, 10)]), Ok(()));
    }

    #[test]
    fn a_replica_that_has_known_no_other_has_nothing_of_the_burst_at_first() {
        assert!(without_redis(&[(1.01, 4)]).unwrap_err().contains("has known no other"));
        assert!(without_redis(&[(1.255, 9)]).is_err(), "ten permits are earned, four more belong to the call's time");
    }

    #[test]
    fn a_replica_that_has_known_no_other_never_has_more_than_the_burst() {
        assert!(without_redis(&[(9.0, 12)]).unwrap_err().contains("its share of the burst"));
        assert!(without_redis(&[(9.0, 10), (9.1, 4)]).is_err());
    }

    #[test]
    fn a_replica_whose_own_clock_jumps_forward_has_the_permits_of_that_time_and_at_most_one_burst() {
        let jump = |by_ms: i64| {
            format!(
                "{PLAN}[[faults]]\nat_ms = 9000\nfor_ms = 1\nfault = \"step_replica_clock\"\nreplica = 0\nby_ms = {by_ms}\n"
            )
        };
        let judged = |by_ms, calls| judged(&jump(by_ms), &[9.0], &[(8.999, 10), (9.001, calls)]);
        assert_eq!((judged(250, 5), judged(9_000, 10)), (Ok(()), Ok(())));
        assert!(judged(250, 7).is_err(), "ten permits of the jump, two in excess");
        assert!(judged(9_000, 12).is_err(), "more than one burst");
        assert!(judged(-250, 3).is_err(), "a jump back gives nothing");
    }

    #[test]
    fn what_was_leased_before_a_loss_of_state_may_be_spent_for_a_lease_after_it_and_no_longer() {
        // Twenty at once, and one a millisecond; the state is lost at one second.
        let spent = |leased_for, late: u64| {
            let mut window = Window { leased_for, ..Window::default() };
            window.see(Rate { gain: 1, price: 1_000, capacity: 20_000 });
            let gifts = [1_000_000];
            window.advance(1_000_000 + late, &gifts);
            window.take(14.0);
            let used = window.take(20.0);
            window.check(used, 0.0, 0, 1_000_000 + late)
        };
        assert_eq!(spent(60_000, 10_000), Ok(()));
        assert!(spent(0, 10_000).is_err(), "of a limit that is exact");
        assert!(spent(60_000, 60_001).is_err(), "later than a lease");
    }

    #[test]
    fn of_a_cluster_a_policy_that_redis_still_decides_is_not_judged_by_the_share_of_a_replica_alone() {
        let judged = |masters: usize, served: Source| {
            let answer = |source| Answer { ok: true, rejected: None, source, attempts: 1, hedges: 0, probe: false };
            let mut entries = vec![
                Entry { at: 0, kind: EntryKind::ProcessStarted { replica: 0 } },
                Entry { at: 1, kind: EntryKind::Replicas { replica: 0, live: 5 } },
                Entry { at: 2, kind: EntryKind::Degraded { replica: 0, reason: "refused".to_owned() } },
            ];
            for call in 0..12 {
                let source = if call == 0 { served } else { Source::Degraded };
                entries
                    .push(Entry { at: 3 + call, kind: EntryKind::Admitted { replica: 0, policy: 0, call, cost: 1 } });
                let kind = EntryKind::Finished { replica: 0, policy: 0, call, answer: answer(source) };
                entries.push(Entry { at: 3 + call, kind });
            }
            let plan =
                Plan::parse(&PLAN.replace("replicas = 1", &format!("replicas = 1\nmasters = {masters}"))).unwrap();
            degraded_within_share(&Case::new(&plan, &History { entries }, Effects::default()))
        };
        assert_eq!(judged(3, Source::Fleet), Ok(()));
        assert!(judged(3, Source::Degraded).is_err(), "its own master is down");
        assert!(judged(1, Source::Fleet).is_err(), "the only master is down");
    }
}

//! I-40: the concurrency of the fleet.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_core::rejection::Source;
use phalanx_core::slots::share::LEASE;

use super::super::history::{EntryKind, Script};
use super::{Case, Verdict, ms};

/// What a run looks like at one moment.
#[derive(Default)]
struct Moment {
    /// Calls in flight, with their replica.
    in_flight: BTreeMap<u64, usize>,
    /// Those among them that were without a share at some time.
    excused: BTreeSet<u64>,
    /// Until when the share of each replica is recorded.
    recorded_until: BTreeMap<usize, u64>,
    /// The holder that each replica is, and those of processes that have ended.
    holders: BTreeMap<usize, u64>,
    ended: BTreeSet<u64>,
}

impl Moment {
    fn has_share(&self, replica: usize, at: u64) -> bool {
        self.recorded_until.get(&replica).is_some_and(|until| *until > at)
    }

    /// Excuses the calls of replicas whose shares have lapsed.
    fn excuse(&mut self, at: u64) {
        let lapsed: Vec<u64> = self
            .in_flight
            .iter()
            .filter(|(call, replica)| !self.excused.contains(call) && !self.has_share(**replica, at))
            .map(|(call, _)| *call)
            .collect();
        self.excused.extend(lapsed);
    }

    /// A share is recorded.
    fn record(&mut self, at: u64, script: &Script) {
        let [_, flags, held, ..] = script.reply[..] else { return };
        let id = script.args.get(1).copied().unwrap_or(0.0) as u64;
        if flags & 2 != 0 || self.ended.contains(&id) {
            return;
        }
        self.excuse(at);
        self.holders.insert(script.replica, id);
        let until = if held > 0 { at + LEASE.as_micros() as u64 } else { 0 };
        self.recorded_until.insert(script.replica, until);
    }
}

/// I-40: calls in flight on all replicas are within the cap, apart from those that were without a recorded share: their replica was
/// suspended or cut off past its lease, or decided without Redis, or the server lost its data or its clock was set. If
/// such calls made it more than the cap, a replica has counted some.
pub(super) fn calls_stay_within_the_cap(case: &Case<'_>) -> Verdict {
    let cap_of = |policy: &phalanx::Policy| policy.bulkhead.and_then(|spec| spec.fleet_max_concurrency);
    let capped = case.plan.policies.iter().position(|policy| cap_of(policy).is_some());
    let Some((capped, cap)) = capped.and_then(|at| Some((at, cap_of(&case.plan.policies[at])? as usize))) else {
        return Ok(());
    };
    let mut voids = [case.unknown_changes(), case.server_clock_steps()].concat();
    voids.sort_unstable();
    let mut voids = voids.into_iter().peekable();
    let mut void_until = 0;
    let degraded = decided_without_redis(case, capped);
    let (mut moment, mut exceeded, mut counted, mut killed) = (Moment::default(), None, false, false);
    for entry in &case.history.entries {
        let at = entry.at;
        while let Some(void) = voids.next_if(|void| *void <= at) {
            moment.recorded_until.clear();
            moment.excuse(at);
            void_until = void + case.slack;
        }
        match &entry.kind {
            EntryKind::Script(script) if script.name == "slots_share" && !script.failed && at >= void_until => {
                moment.record(at, script);
            }
            EntryKind::Admitted { replica, policy, call, .. } if *policy == capped => {
                moment.in_flight.insert(*call, *replica);
                moment.excuse(at);
                if degraded.contains(call) {
                    moment.excused.insert(*call);
                }
                let others = moment.in_flight.len() - moment.excused.len();
                if others > cap {
                    return Err(format!("{others} calls with a share were in flight at {}, the cap is {cap}", ms(at)));
                }
                if moment.in_flight.len() > cap {
                    exceeded.get_or_insert((at, moment.in_flight.len()));
                }
            }
            EntryKind::Finished { call, .. } | EntryKind::Dropped { call, .. } => {
                moment.in_flight.remove(call);
                moment.excused.remove(call);
            }
            EntryKind::ProcessEnded { replica } => {
                killed = true;
                moment.in_flight.retain(|_, of| of != replica);
                let left: BTreeSet<u64> = moment.in_flight.keys().copied().collect();
                moment.excused.retain(|call| left.contains(call));
                moment.recorded_until.remove(replica);
                moment.ended.extend(moment.holders.remove(replica));
            }
            EntryKind::ShareLapsed { .. } => counted = true,
            _ => {}
        }
    }
    match exceeded {
        Some((at, calls)) if !counted && !killed => {
            Err(format!("{calls} calls were in flight at {}, the cap is {cap}, and no replica has counted any", ms(at)))
        }
        _ => Ok(()),
    }
}

/// The calls that were decided without Redis, or dropped before that is known.
fn decided_without_redis(case: &Case<'_>, capped: usize) -> BTreeSet<u64> {
    let decided = case.history.entries.iter().filter_map(|entry| match &entry.kind {
        EntryKind::Finished { call, policy, answer, .. } if *policy == capped => {
            (answer.source == Source::Degraded).then_some(*call)
        }
        EntryKind::Dropped { call, policy, .. } if *policy == capped => {
            case.redis_troubled(entry.at.saturating_sub(5_000_000), entry.at).then_some(*call)
        }
        _ => None,
    });
    decided.collect()
}

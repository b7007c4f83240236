//! Planted faults: one defect for each oracle, to show that the oracle finds it.
//!
//! A plant in a script replaces a line of the shipped source; it panics if the line is gone, so that a change of the scripts
//! cannot make a plant harmless unnoticed.

use std::sync::OnceLock;

use phalanx_lua::{ALL, Script};

use super::plan::{Fault, FaultKind, Load, Plan, Shape};

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A bucket refills twice as fast (I-1).
    BucketOverfills,
    /// A clock that goes back mints as if it had gone forward (I-2).
    ClockBackMints,
    /// An acquire is rejected with the last permit left (I-3).
    LastPermitStays,
    /// One probe too many is leased (I-4).
    OneProbeTooMany,
    /// Expired leases still count (I-5).
    LeasesNeverExpire,
    /// Trips are neither published nor returned to polls (I-6).
    TripsStaySecret,
    /// Outcomes of any epoch count (I-7).
    EpochsAreIgnored,
    /// A break never ends (I-8).
    BreaksNeverEnd,
    /// A rejected acquire writes (I-9).
    RejectionsWrite,
    /// A lock is granted although another owner holds it (I-13).
    LockIsShared,
    /// A holder's clock stands still, so that it never finds its lock lost (I-14).
    LockClockStandsStill,
    /// A settled probe keeps its lease, and an epoch can begin twice (I-17).
    EpochsRepeat,
    /// Some calls never end (I-18).
    LosesCalls,
    /// The scripts round down to even permits (I-20).
    OddPermitsStay,
    /// Retries have no budget (I-23).
    RetriesWithoutBudget,
    /// After a fault, every replica polls everything over and over (I-24).
    EverythingIsPolled,
    /// A poll returns an open breaker as closed (I-25).
    PollsForget,
    /// The refill leaves no room for leased permits (I-31).
    LeasesTakeNoRoom,
    /// A block that is closed is credited in full, with what was spent of it (I-31).
    BlocksComeBackWhole,
    /// Shares of other replicas take no room (I-40).
    SharesTakeNoRoom,
    /// A charge takes only what is there (I-33).
    DebtIsForgiven,
    /// A charge whose reply was lost is charged again (I-33).
    ChargesRepeat,
    /// A caller that one of several limits rejects is charged in the first of them (I-32).
    RejectionsCharge,
    /// A replica that was cut off stays cut off (liveness).
    PartitionsStay,
}

impl Plant {
    /// All plants, with the oracle that must find each.
    pub const ALL: [(Self, &'static str); 24] = [
        (Self::BucketOverfills, "I-1"),
        (Self::ClockBackMints, "I-2"),
        (Self::LastPermitStays, "I-3"),
        (Self::OneProbeTooMany, "I-4"),
        (Self::LeasesNeverExpire, "I-5"),
        (Self::TripsStaySecret, "I-6"),
        (Self::EpochsAreIgnored, "I-7"),
        (Self::BreaksNeverEnd, "I-8"),
        (Self::RejectionsWrite, "I-9"),
        (Self::LockIsShared, "I-13"),
        (Self::LockClockStandsStill, "I-14"),
        (Self::EpochsRepeat, "I-17"),
        (Self::LosesCalls, "I-18"),
        (Self::OddPermitsStay, "I-20"),
        (Self::RetriesWithoutBudget, "I-23"),
        (Self::EverythingIsPolled, "I-24"),
        (Self::PollsForget, "I-25"),
        (Self::LeasesTakeNoRoom, "I-31"),
        (Self::BlocksComeBackWhole, "I-31"),
        (Self::SharesTakeNoRoom, "I-40"),
        (Self::DebtIsForgiven, "I-33"),
        (Self::ChargesRepeat, "I-33"),
        (Self::RejectionsCharge, "I-32"),
        (Self::PartitionsStay, "liveness"),
    ];

    /// Makes the plan of a seed, with what this fault needs to show.
    ///
    /// By chance the holder of a probe is hardly ever cut off before its outcome arrives. So for leases that never expire the
    /// operations of one policy become slow, its breaker trips, and some replicas are cut off about when the probe is in
    /// flight.
    pub fn plan(self, seed: u64) -> Plan {
        let mut plan = Plan::of_seed(seed);
        if self == Self::BlocksComeBackWhole {
            // What is minted shows only while the limit is used up all the time.
            let all = (0..plan.replicas).map(Some);
            let first = plan.loads.iter().find(|load| load.policy == "leased").cloned();
            let more = first.into_iter().flat_map(|load| {
                all.clone().map(move |replica| Load {
                    replica,
                    shape: Shape::Bursts,
                    per_second: 120.0,
                    ..load.clone()
                })
            });
            let more: Vec<_> = more.collect();
            plan.loads.extend(more);
        }
        if self == Self::DebtIsForgiven {
            // In debt are limits only whose calls come at once.
            for load in plan.loads.iter_mut().filter(|load| load.settled) {
                (load.shape, load.per_second) = (Shape::Bursts, 75.0);
            }
        }
        if self == Self::EpochsAreIgnored {
            // A replica that starts while Redis is late decides calls before it knows an epoch, and sends their outcomes later.
            let faults = [
                (5_000, 20_000, FaultKind::DependencyFails { policy: "whole".to_owned(), share: 0.35 }),
                (8_000, 2_000, FaultKind::KillReplica { replica: 0 }),
                (9_000 + seed * 100 % 1_500, 4_000, FaultKind::ExecuteLater { every: 2, by_ms: 266 }),
            ];
            plan.faults.extend(faults.map(|(at_ms, for_ms, kind)| Fault { at_ms, for_ms, kind }));
            plan.faults.sort_by_key(|fault| fault.at_ms);
        }
        if self == Self::LeasesNeverExpire {
            let policy = || "ratio".to_owned();
            let faults = [
                (3_000, 6_000, FaultKind::DependencyFails { policy: policy(), share: 1.0 }),
                (3_000, 12_000, FaultKind::DependencySlow { policy: policy(), by_ms: 500 }),
                (9_000 + seed * 100 % 1_500, 4_000, FaultKind::Partition { replicas: 3 }),
            ];
            plan.faults.extend(faults.map(|(at_ms, for_ms, kind)| Fault { at_ms, for_ms, kind }));
            plan.faults.sort_by_key(|fault| fault.at_ms);
        }
        plan
    }

    /// The lines that are replaced in scripts.
    fn edits(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::BucketOverfills => &[(
                "level = level + math.min((now - at) * old_gain, old_capacity - level)",
                "level = level + math.min(2 * (now - at) * old_gain, old_capacity - level)",
            )],
            Self::ClockBackMints => &[(
                "if now >= at or anew then at = now end",
                "if now < at then level = math.min(old_capacity, level + (at - now) * old_gain) end at = now",
            )],
            Self::LastPermitStays => &[(
                "granted = math.max(0, math.min(math.floor((level + debt) / need), count))",
                "granted = math.max(0, math.min(math.floor((level + debt) / need) - 1, count))",
            )],
            Self::OneProbeTooMany => &[(
                "local most = math.min(spec.half_open_max_calls, MAX_LEASES)",
                "local most = math.min(spec.half_open_max_calls + 1, MAX_LEASES)",
            )],
            Self::LeasesNeverExpire => &[("if held.expires > s.now and not unheard then", "if not unheard then")],
            Self::TripsStaySecret => &[
                ("redis.pcall('PUBLISH', ARGV[3], text)", "text"),
                (
                    "    s.clock, s.phase, s.epoch, left(s), s.override, ramping(s), s.escalation, s.flags, #s.transitions,",
                    "    s.clock, #s.transitions > 0 and s.phase or 1, s.epoch, left(s), s.override, ramping(s), s.escalation, s.flags, #s.transitions,",
                ),
            ],
            Self::EpochsAreIgnored => &[("if calls == 0 or epoch ~= s.epoch or s.phase", "if calls == 0 or s.phase")],
            Self::BreaksNeverEnd => &[(
                "if s.phase == OPEN and s.now >= s.ends then",
                "if s.phase == OPEN and s.now >= s.ends + 600000000 then",
            )],
            Self::RejectionsWrite => &[("dirty = dirty or granted > 0", "dirty = true")],
            Self::LockIsShared => &[(
                "if lock and now < lock.at + lock.ttl then",
                "if lock and now < lock.at + lock.ttl and lock.owner == owner then",
            )],
            // In the fleet, not in a script.
            Self::LockClockStandsStill
            | Self::LosesCalls
            | Self::RetriesWithoutBudget
            | Self::EverythingIsPolled
            | Self::PartitionsStay => &[],
            Self::EpochsRepeat => &[(
                "s.phase, s.epoch, s.since, s.slow_since, s.proven, s.leases = phase, s.epoch + 1,",
                "s.phase, s.epoch, s.since, s.slow_since, s.proven, s.leases = phase, s.epoch + (s.epoch % 2),",
            )],
            Self::OddPermitsStay => &[(
                "granted = math.max(0, math.min(math.floor((level + debt) / need), count))",
                "granted = math.max(0, math.min(math.floor((level + debt) / need), count)) if level > need and level < 2 * need then granted = 0 end",
            )],
            Self::LeasesTakeNoRoom => {
                &[("local room = capacity - leased_permits(numbers) * price - level", "local room = capacity - level")]
            }
            Self::BlocksComeBackWhole => &[(
                "local credit = math.min(math.min(unspent, size) * price, MAX_UNITS)",
                "local credit = math.min(size * price, MAX_UNITS)",
            )],
            Self::SharesTakeNoRoom => &[(
                "local share = math.min(want, math.max(0, cap - others), fair_part(wants, cap, asks))",
                "local share = math.min(want, cap)",
            )],
            Self::DebtIsForgiven => {
                &[("math.max(level - units, -MAX_UNITS), true", "math.max(level - units, math.min(level, 0)), true")]
            }
            Self::ChargesRepeat => &[("math.max(stored, tonumber(ARGV[4]))", "tonumber(ARGV[4])")],
            Self::RejectionsCharge => &[(
                "if granted > 0 and need > 0 then",
                "if limit == 1 and granted < count and need <= bucket.level then bucket.level, bucket.dirty = bucket.level - need, true end if granted > 0 and need > 0 then",
            )],
            Self::PollsForget => &[(
                "    s.clock, s.phase, s.epoch, left(s), s.override, ramping(s), s.escalation, s.flags, #s.transitions,",
                "    s.clock, #s.transitions > 0 and s.phase or 1, s.epoch, left(s), s.override, ramping(s), s.escalation, s.flags, #s.transitions,",
            )],
        }
    }

    /// The scripts with this fault; `None` if it is not in a script.
    pub(crate) fn scripts(self) -> Option<&'static [Script]> {
        static EDITED: OnceLock<Vec<(Plant, &'static [Script])>> = OnceLock::new();
        let edited = EDITED.get_or_init(|| {
            let in_scripts = Self::ALL.iter().filter(|(plant, _)| !plant.edits().is_empty());
            in_scripts.map(|(plant, _)| (*plant, edited(plant.edits()))).collect()
        });
        edited.iter().find(|(plant, _)| *plant == self).map(|(_, scripts)| *scripts)
    }
}

/// Replaces text in all scripts that contain it. The result lives as long as the process, as sources do.
fn edited(edits: &[(&str, &str)]) -> &'static [Script] {
    let mut scripts = Vec::new();
    for script in ALL {
        let mut source = script.source.to_owned();
        for (from, to) in edits {
            source = source.replace(from, to);
        }
        if source != script.source {
            scripts.push(Script { source: Box::leak(source.into_boxed_str()), ..*script });
        }
    }
    for (from, _) in edits {
        assert!(ALL.iter().any(|script| script.source.contains(from)), "no script contains {from:?}");
    }
    Box::leak(scripts.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_that_a_plant_replaces_is_in_a_script() {
        let edits = Plant::ALL.iter().flat_map(|(plant, _)| plant.edits().iter().map(move |edit| (plant, edit.0)));
        let gone: Vec<_> = edits.filter(|(_, line)| !ALL.iter().any(|script| script.source.contains(line))).collect();
        assert!(gone.is_empty(), "these lines are in no script: {gone:#?}");
    }
}

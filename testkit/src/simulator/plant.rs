//! Planted faults: one defect for each oracle, to show that the oracle finds it.
//!
//! A plant in a script replaces a line of the shipped source; it panics if the line is gone, so that a change of the scripts
//! cannot make a plant harmless unnoticed.

use std::sync::OnceLock;

use phalanx_lua::{ALL, Script};

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A bucket refills to twice its capacity (I-1).
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
    /// A replica that was cut off stays cut off (liveness).
    PartitionsStay,
}

impl Plant {
    /// All plants, with the oracle that must find each.
    pub const ALL: [(Self, &'static str); 18] = [
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
        (Self::PartitionsStay, "liveness"),
    ];

    /// The lines that are replaced in scripts.
    fn edits(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::BucketOverfills => &[(
                "level = level + math.min((now - at) * old_gain, old_capacity - level) end",
                "level = level + math.min(2 * (now - at) * old_gain, old_capacity - level) end",
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
                ("redis.call('PUBLISH', ARGV[3], ARGV[4] .. text .. ' ' .. entry_text(s))", "local _ = text"),
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
                "if fence and now < at + held_for then",
                "if fence and now < at + held_for and holder == owner then",
            )],
            // In the fleet, not in a script.
            Self::LockClockStandsStill
            | Self::LosesCalls
            | Self::RetriesWithoutBudget
            | Self::EverythingIsPolled
            | Self::PartitionsStay => &[],
            Self::EpochsRepeat => &[(
                "s.phase, s.epoch, s.since, s.streak, s.slow_since, s.proven, s.leases = phase, s.epoch + 1,",
                "s.phase, s.epoch, s.since, s.streak, s.slow_since, s.proven, s.leases = phase, s.epoch + (s.epoch % 2),",
            )],
            Self::OddPermitsStay => &[(
                "granted = math.max(0, math.min(math.floor((level + debt) / need), count))",
                "granted = math.max(0, math.min(math.floor((level + debt) / need), count)) if level > need and level < 2 * need then granted = 0 end",
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

//! I-32: several limits in one decision.

use super::super::super::history::Script;
use super::super::{Case, Verdict, ms};
use super::{ALL, stored};

/// A group of callers: how many there were, of each limit its bucket, the permits and the longest wait, how many were granted, and
/// which limit rejected the next, from 1.
struct Group {
    callers: u64,
    limits: Vec<(usize, u64, u64)>,
    granted: u64,
    named: usize,
}

fn groups(script: &Script) -> Vec<Group> {
    let buckets = script.place.1;
    let mut args = script.args.get(4 * buckets + 1..).unwrap_or_default();
    let replies = script.reply.get(1 + 2 * buckets..).unwrap_or_default().chunks_exact(2);
    let mut groups = Vec::new();
    for reply in replies {
        let [callers, count, rest @ ..] = args else { break };
        let (limits, others) = rest.split_at((3 * *count as usize).min(rest.len()));
        let limits =
            limits.chunks_exact(3).map(|limit| ((limit[0] as usize).max(1) - 1, limit[1] as u64, limit[2] as u64));
        groups.push(Group {
            callers: *callers as u64,
            limits: limits.collect(),
            granted: reply[0].max(0) as u64,
            named: reply[1].max(0) as usize,
        });
        args = others;
    }
    groups
}

/// The permits that a script has granted from the bucket of its entry.
pub(super) fn granted_permits(script: &Script) -> u64 {
    let own = |group: &Group| {
        let of = group.limits.iter().filter(|(bucket, ..)| *bucket == script.place.0);
        group.granted * of.map(|(_, permits, _)| permits).sum::<u64>()
    };
    groups(script).iter().map(own).sum()
}

/// The longest that a caller of the bucket of an entry may wait, in microseconds.
pub(super) fn longest_wait(script: &Script) -> u64 {
    let limits = groups(script).into_iter().flat_map(|group| group.limits);
    limits.filter(|(bucket, ..)| *bucket == script.place.0).map(|(.., wait)| wait).max().unwrap_or(0)
}

/// I-32: what is taken from each bucket is the cost of the callers that were granted, and nothing else; and a caller is
/// rejected only if the limit that is named lacks its permits.
pub(in crate::simulator::oracle) fn several_limits_are_charged_together_or_not_at_all(case: &Case<'_>) -> Verdict {
    for (at, script) in case.scripts().filter(|(_, script)| script.name == ALL) {
        let (place, buckets) = script.place;
        let rate = |bucket: usize| {
            let number = |offset| script.args.get(4 * bucket + offset).map_or(1, |number: &f64| *number as i64);
            (number(0), number(1), number(2))
        };
        let mut levels: Vec<i64> =
            (0..buckets).map(|bucket| script.reply.get(1 + 2 * bucket).copied().unwrap_or(0)).collect();
        let before = levels.get(place).copied().unwrap_or(0);
        for group in groups(script) {
            for (bucket, permits, _) in &group.limits {
                levels[*bucket] -= (group.granted * permits) as i64 * rate(*bucket).1;
            }
            if group.granted >= group.callers {
                continue;
            }
            let Some((bucket, permits, wait)) = group.named.checked_sub(1).and_then(|limit| group.limits.get(limit))
            else {
                return Err(format!("{} of {} granted and no limit named at {}", group.granted, group.callers, ms(at)));
            };
            let (gain, price, capacity) = rate(*bucket);
            let (need, debt) = (*permits as i64 * price, (*wait as i64).saturating_mul(gain));
            if need <= capacity && levels[*bucket].saturating_add(debt) >= need {
                return Err(format!(
                    "key {}: the limit that is named had {} units for a need of {need} at {}",
                    script.key,
                    levels[*bucket],
                    ms(at)
                ));
            }
        }
        let after = levels.get(place).copied().unwrap_or(0);
        if let (Some((level, _)), true) = (stored(script), script.writes > 0)
            && level as i64 != after
        {
            return Err(format!(
                "key {}: {level} units stored at {}, of {before} before, where the callers that were granted leave {after}",
                script.key,
                ms(at)
            ));
        }
        if script.writes == 0 && after != before {
            return Err(format!("key {}: callers were granted and nothing was charged at {}", script.key, ms(at)));
        }
    }
    Ok(())
}

//! The slots of a fleet: how many calls all replicas together may have in flight.
//!
//! ```text
//!   replica: SlotShare ── keep, want, number ──► SlotTable: held and until of each holder
//!      calls ◄── share, for one lease ──────────┘  (Redis, or the reference of a test)
//! ```
//!
//! A holder has a share of the cap for one lease, as an absolute value: nothing is added or subtracted, so a request that is
//! repeated changes nothing, and a holder that dies is gone when its lease is. [`SlotTable`] grants shares; `share.rs` is what
//! a replica does with its own.
//!
//! `lua/scripts/slots_share.lua` is the port of [`SlotTable`].

pub mod share;

use std::time::Duration;

use crate::clock::Time;

/// The most holders of one key.
pub const MAX_HOLDERS: usize = 256;

/// The longest lease: no holder may end later.
const MAX_LEASE: Duration = Duration::from_secs(10);

/// How long a holder that got nothing is remembered with what it wants: that part of its lease.
const UNMET_PART: u32 = 3;

/// A share above what is wanted is granted to a holder with callers, while less than this part of the cap is held.
const SPARE_BELOW: u64 = 2;
/// That much of what is wanted.
const SPARE_PART: u64 = 4;

/// The request of one holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRequest {
    /// Higher than that of the request before.
    pub number: u64,
    /// What the holder may be using: it is recorded in any case.
    pub keep: u32,
    /// What it wants to hold.
    pub want: u32,
    /// Whether callers wait for it.
    pub is_asking: bool,
}

/// The reply to a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareReply {
    /// What is recorded: at least what the holder keeps.
    pub held: u32,
    /// What the holder may use from now on.
    pub share: u32,
    /// What was recorded before; 0 for a holder that is new, or whose lease was over.
    pub recorded: u32,
    /// A later request was executed before: nothing was changed.
    pub is_late: bool,
    /// What all holders hold.
    pub total: u64,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    id: u64,
    held: u32,
    want: u32,
    number: u64,
    until: Time,
}

/// The shares of all holders.
#[derive(Clone, Debug, Default)]
pub struct SlotTable {
    holders: Vec<Holder>,
}

impl SlotTable {
    /// Renews, grants or takes back the share of a holder.
    pub fn share(&mut self, now: Time, cap: u32, lease: Duration, id: u64, request: &ShareRequest) -> ShareReply {
        let mut holders = self.live(now);
        let total = |holders: &[Holder]| holders.iter().map(|holder| u64::from(holder.held)).sum::<u64>();
        let own = holders.iter().position(|holder| holder.id == id);
        let mut recorded = 0;
        if let Some(own) = own {
            let Holder { held, number, .. } = holders[own];
            if request.number <= number {
                let is_late = request.number < number;
                return ShareReply { held, share: held, recorded: held, is_late, total: total(&holders) };
            }
            holders.remove(own);
            recorded = held;
        }
        let others = total(&holders);
        if holders.len() >= MAX_HOLDERS {
            return ShareReply { held: 0, share: 0, recorded, is_late: false, total: others };
        }
        let share = grant(&holders, cap, others, request);
        let held = share.max(request.keep);
        let remains = held > 0 || request.want > 0;
        if remains {
            let lease = lease.min(MAX_LEASE);
            let until = now.after(if held > 0 { lease } else { lease / UNMET_PART });
            holders.push(Holder { id, held, want: request.want, number: request.number, until });
        }
        if remains || own.is_some() {
            self.holders = holders;
        }
        ShareReply { held, share, recorded, is_late: false, total: others + u64::from(held) }
    }

    /// Returns the holders whose leases are not over. No lease ends later than the longest, unless the clock stepped back.
    fn live(&self, now: Time) -> Vec<Holder> {
        let latest = now.after(MAX_LEASE);
        let live = self.holders.iter().filter(|holder| holder.until > now);
        live.map(|holder| Holder { until: holder.until.min(latest), ..*holder }).collect()
    }
}

/// Returns the share of a holder beside what the others hold.
fn grant(holders: &[Holder], cap: u32, others: u64, request: &ShareRequest) -> u32 {
    let (cap, want) = (u64::from(cap), u64::from(request.want));
    let mut wants: Vec<u64> = holders.iter().map(|holder| u64::from(holder.want)).collect();
    wants.push(want);
    let wanted: u64 = wants.iter().sum();
    let most = fair_part(&mut wants, cap, request.is_asking);
    let mut share = want.min(cap.saturating_sub(others)).min(most);
    if request.is_asking && share == want && wanted <= cap {
        let room = (cap / SPARE_BELOW).saturating_sub(others + share);
        share += want.div_ceil(SPARE_PART).min(room);
    }
    u32::try_from(share).unwrap_or(u32::MAX)
}

/// Returns the most that one holder may have where more is wanted than there is: what is left when all that want less are
/// served, divided by the others (max-min fairness). Rounded up for a holder with callers, and down for one that only renews:
/// so what is left over, or a cap below the number of holders, goes round.
fn fair_part(wants: &mut [u64], cap: u64, is_asking: bool) -> u64 {
    wants.sort_unstable();
    let mut left = cap;
    for (served, want) in wants.iter().enumerate() {
        let sharers = (wants.len() - served) as u64;
        if want * sharers > left {
            return if is_asking { left.div_ceil(sharers) } else { left / sharers };
        }
        left -= want;
    }
    cap
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(3);

    fn at(millis: u64) -> Time {
        Time::from_micros(millis * 1_000)
    }

    /// A table with a cap, at one time.
    struct Fleet {
        table: SlotTable,
        cap: u32,
        now: Time,
        number: u64,
    }

    impl Fleet {
        fn new(cap: u32) -> Self {
            Self { table: SlotTable::default(), cap, now: at(1_000), number: 0 }
        }

        fn send(&mut self, id: u64, keep: u32, want: u32, is_asking: bool) -> ShareReply {
            self.number += 1;
            let request = ShareRequest { number: self.number, keep, want, is_asking };
            self.table.share(self.now, self.cap, LEASE, id, &request)
        }

        fn ask(&mut self, id: u64, keep: u32, want: u32) -> u32 {
            self.send(id, keep, want, true).share
        }

        fn renew(&mut self, id: u64, keep: u32, want: u32) -> u32 {
            self.send(id, keep, want, false).share
        }
    }

    #[test]
    fn shares_together_never_exceed_the_cap() {
        let mut fleet = Fleet::new(10);
        assert_eq!(fleet.ask(1, 0, 7), 7);
        assert_eq!(fleet.ask(2, 0, 2), 2);
        assert_eq!(fleet.ask(3, 0, 9), 1);
        assert_eq!(fleet.send(4, 0, 1, true), ShareReply { held: 0, share: 0, recorded: 0, is_late: false, total: 10 });
    }

    #[test]
    fn a_quarter_more_is_granted_while_less_than_half_is_held() {
        let mut fleet = Fleet::new(20);
        assert_eq!(fleet.ask(1, 0, 4), 5);
        assert_eq!(fleet.ask(2, 0, 4), 5);
        assert_eq!(fleet.ask(3, 0, 4), 4, "half is held");
        assert_eq!(fleet.renew(1, 5, 4), 4, "and is handed back");
        assert_eq!(Fleet::new(2).ask(1, 0, 1), 1);
    }

    #[test]
    fn what_is_handed_back_is_there_for_the_others() {
        let mut fleet = Fleet::new(10);
        fleet.ask(1, 0, 10);
        assert_eq!(fleet.ask(2, 0, 3), 0);
        assert_eq!(fleet.renew(1, 6, 6), 6);
        assert_eq!(fleet.ask(2, 0, 3), 3);
        assert_eq!(fleet.send(1, 0, 0, false).total, 3, "all of it");
        assert_eq!(fleet.ask(2, 3, 10), 10);
    }

    #[test]
    fn what_a_holder_keeps_is_recorded_whatever_the_cap() {
        let mut fleet = Fleet::new(10);
        fleet.ask(1, 0, 10);
        let kept = fleet.send(2, 4, 4, false);
        assert_eq!((kept.held, kept.share, kept.recorded, kept.total), (4, 0, 0, 14));
        assert_eq!(fleet.ask(1, 10, 11), 6, "there is room for six beside the four");
    }

    #[test]
    fn a_holder_above_its_fair_part_gives_way() {
        let mut fleet = Fleet::new(10);
        fleet.ask(1, 0, 10);
        assert_eq!(fleet.ask(2, 0, 8), 0, "remembered with what it wants");
        let renewed = fleet.send(1, 10, 10, false);
        assert_eq!((renewed.held, renewed.share), (10, 5), "calls in flight stay recorded");
        assert_eq!(fleet.send(1, 5, 10, false).held, 5);
        assert_eq!(fleet.ask(2, 0, 8), 5);
        assert_eq!(fleet.ask(3, 0, 2), 0);
        assert_eq!(fleet.renew(1, 5, 10), 4, "who wants little is served first");
    }

    #[test]
    fn a_cap_below_the_number_of_holders_goes_round() {
        let mut fleet = Fleet::new(1);
        assert_eq!(fleet.ask(1, 0, 1), 1);
        assert_eq!(fleet.ask(2, 0, 1), 0);
        assert_eq!(fleet.renew(1, 1, 1), 0);
        assert_eq!(fleet.renew(1, 0, 1), 0);
        assert_eq!(fleet.ask(2, 0, 1), 1);
    }

    #[test]
    fn a_request_that_is_repeated_changes_nothing_and_a_late_one_neither() {
        let mut fleet = Fleet::new(10);
        let ask = ShareRequest { number: 1, keep: 0, want: 6, is_asking: true };
        let first = fleet.table.share(fleet.now, 10, LEASE, 1, &ask);
        fleet.number = 1;
        assert_eq!(fleet.ask(2, 0, 9), 4);
        let again = fleet.table.share(fleet.now, 10, LEASE, 1, &ask);
        assert_eq!((again.held, again.share, again.is_late, again.total), (first.held, first.share, false, 10));
        fleet.renew(1, 2, 2);
        let late = fleet.table.share(fleet.now, 10, LEASE, 1, &ask);
        assert_eq!((late.held, late.is_late), (2, true));
    }

    #[test]
    fn the_share_of_a_dead_holder_returns_after_its_lease() {
        let mut fleet = Fleet::new(10);
        fleet.ask(1, 0, 10);
        fleet.now = at(3_999);
        assert_eq!(fleet.ask(2, 0, 1), 0);
        fleet.now = at(4_000);
        assert_eq!(fleet.ask(2, 0, 10), 10);
        let back = fleet.send(1, 10, 10, false);
        assert_eq!((back.recorded, back.held, back.total), (0, 10, 20));
    }

    #[test]
    fn what_a_holder_wanted_in_vain_is_forgotten_sooner() {
        let mut fleet = Fleet::new(4);
        fleet.ask(1, 0, 4);
        assert_eq!(fleet.ask(2, 0, 1), 0);
        fleet.now = at(1_999);
        assert_eq!(fleet.ask(1, 0, 4), 3, "a slot is free for the other one");
        fleet.now = at(2_000);
        assert_eq!(fleet.ask(1, 3, 4), 4);
    }

    #[test]
    fn a_clock_that_steps_back_keeps_no_share_for_long() {
        let mut fleet = Fleet::new(10);
        fleet.now = at(10_000_000);
        fleet.ask(1, 0, 10);
        fleet.now = at(5_000);
        assert_eq!(fleet.ask(2, 0, 1), 0);
        fleet.now = at(15_000);
        assert_eq!(fleet.ask(2, 0, 10), 10);
    }

    #[test]
    fn holders_are_bounded() {
        let mut fleet = Fleet::new(1_000);
        for id in 0..MAX_HOLDERS as u64 {
            assert!(fleet.ask(id, 0, 1) > 0);
        }
        assert_eq!(fleet.send(1_000, 3, 3, true).held, 0);
        assert!(fleet.ask(7, 1, 2) > 0);
        fleet.renew(8, 0, 0);
        assert!(fleet.ask(1_000, 3, 3) > 0);
    }
}

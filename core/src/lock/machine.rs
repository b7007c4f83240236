//! The state machine of one lock. It takes the time as an argument; `lua/scripts/lock_*.lua` are its ports.

use std::collections::HashMap;
use std::time::Duration;

use super::{Acquired, MAX_TTL};
use crate::clock::Time;

/// If the clock steps back by more than this, the holder's ttl is counted from the new time.
const MAX_BACKSTEP: Duration = Duration::from_secs(1);

/// One lock and its marks.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    holder: Option<Holder>,
    last_fence: u64,
    /// The completed work, by version.
    marks: HashMap<String, Mark>,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    fence: u64,
    until: Time,
    /// How long it is kept after it was last read.
    keep: Duration,
}

#[derive(Clone, Debug)]
struct Holder {
    fence: u64,
    at: Time,
    ttl: Duration,
    owner: String,
}

impl Holder {
    fn until(&self) -> Time {
        self.at.after(self.ttl)
    }
}

impl Lock {
    /// Acquires the lock if it is free or this owner holds it. `seen` is the highest fence that the caller has seen: a
    /// holder whose fence is higher has lost the reply to an earlier request, and gets that fence. Any other grant has a
    /// fence of its own, so that a late release under an earlier one does not free the lock.
    pub fn acquire(&mut self, now: Time, owner: &str, ttl: Duration, seen: u64) -> Acquired {
        let ttl = ttl.min(MAX_TTL);
        if let Some(holder) = self.holder.as_mut().filter(|holder| now < holder.until()) {
            if holder.owner != owner {
                if holder.at.since(now) > MAX_BACKSTEP {
                    holder.at = now; // so that a waiter waits for one ttl at most
                }
                return Acquired::Taken { fence: holder.fence, left: holder.until().since(now) };
            }
            if holder.fence > seen {
                (holder.at, holder.ttl) = (now, ttl);
                return Acquired::Held { fence: holder.fence };
            }
        }
        // Fences follow the clock and what the caller has seen, so that they still grow after a store has lost its data.
        let fence = now.as_micros().max(self.last_fence + 1).max(seen.saturating_add(1));
        self.last_fence = fence;
        self.holder = Some(Holder { fence, at: now, ttl, owner: owner.to_owned() });
        Acquired::Held { fence }
    }

    /// Extends the lock by another `ttl`; returns whether it was held.
    pub fn renew(&mut self, now: Time, owner: &str, fence: u64, ttl: Duration) -> bool {
        let Some(holder) = self.held_by(owner, fence).filter(|holder| now < holder.until()) else { return false };
        (holder.at, holder.ttl) = (now, ttl.min(MAX_TTL));
        true
    }

    /// Releases the lock; returns whether it was held.
    pub fn release(&mut self, now: Time, owner: &str, fence: u64) -> bool {
        let held = self.held_by(owner, fence).map(|holder| now < holder.until());
        if held.is_some() {
            self.holder = None;
        }
        held.unwrap_or(false)
    }

    /// Releases the lock if this owner holds it, under any fence; returns whether it was held.
    pub fn withdraw(&mut self, now: Time, owner: &str) -> bool {
        let held = self.holder.as_ref().filter(|holder| holder.owner == owner).map(|holder| holder.fence);
        held.is_some_and(|fence| self.release(now, owner, fence))
    }

    /// Returns the highest fence that was granted; 0 if there was none.
    pub const fn last_fence(&self) -> u64 {
        self.last_fence
    }

    /// Marks the work of this version as completed and releases the lock; returns whether it was held.
    pub fn complete(&mut self, now: Time, owner: &str, fence: u64, version: &str, keep: Duration) -> bool {
        let held = self.release(now, owner, fence);
        if held {
            let keep = keep.min(MAX_TTL);
            self.marks.retain(|_, mark| now < mark.until);
            self.marks.insert(version.to_owned(), Mark { fence, until: now.after(keep), keep });
        }
        held
    }

    /// Returns the fence under which the work of this version was last completed, and keeps its mark for another time.
    pub fn completed(&mut self, now: Time, version: &str) -> Option<u64> {
        let mark = self.marks.get_mut(version).filter(|mark| now < mark.until)?;
        mark.until = now.after(mark.keep);
        Some(mark.fence)
    }

    fn held_by(&mut self, owner: &str, fence: u64) -> Option<&mut Holder> {
        self.holder.as_mut().filter(|holder| holder.owner == owner && holder.fence == fence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn fence_of(acquired: Acquired) -> u64 {
        match acquired {
            Acquired::Held { fence } | Acquired::Taken { fence, .. } => fence,
        }
    }

    #[test]
    fn an_owner_that_lost_a_reply_gets_the_same_fence_and_one_that_has_seen_it_a_new_one() {
        let (mut lock, now) = (Lock::default(), Time::from_micros(1_000));
        let first = fence_of(lock.acquire(now, "a", TTL, 0));
        assert_eq!(lock.acquire(now, "a", TTL, first - 1), Acquired::Held { fence: first });
        assert_eq!(lock.acquire(now, "a", TTL, first), Acquired::Held { fence: first + 1 });
        assert!(!lock.release(now, "a", first), "the late release of the first grant");
        assert!(lock.renew(now, "a", first + 1, TTL));
    }

    #[test]
    fn a_lock_is_released_as_held_until_the_microsecond_of_its_end() {
        for (later, was_held) in [(TTL - Duration::from_micros(1), true), (TTL, false), (2 * TTL, false)] {
            let (mut lock, now) = (Lock::default(), Time::from_micros(1_000));
            let fence = fence_of(lock.acquire(now, "a", TTL, 0));
            assert_eq!(lock.release(now.after(later), "a", fence), was_held, "after {later:?}");
            assert!(!lock.release(now, "a", fence), "it is free");
        }
    }

    #[test]
    fn a_fence_is_higher_than_the_one_that_its_caller_has_seen() {
        let mut lock = Lock::default();
        assert_eq!(lock.acquire(Time::from_micros(5), "a", TTL, 900), Acquired::Held { fence: 901 });
    }
}

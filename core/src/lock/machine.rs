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
    /// By version: the fence under which the work was completed, and when the mark expires.
    marks: HashMap<String, (u64, Time)>,
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
    /// Acquires the lock if it is free, or extends it if this owner holds it.
    pub fn acquire(&mut self, now: Time, owner: &str, ttl: Duration) -> Acquired {
        let ttl = ttl.min(MAX_TTL);
        if let Some(holder) = self.holder.as_mut().filter(|holder| now < holder.until()) {
            if holder.owner == owner {
                (holder.at, holder.ttl) = (now, ttl);
                return Acquired::Held { fence: holder.fence };
            }
            if holder.at.since(now) > MAX_BACKSTEP {
                holder.at = now; // so that a waiter waits for one ttl at most
            }
            return Acquired::Taken { fence: holder.fence, left: holder.until().since(now) };
        }
        // Fences follow the clock, so that they still grow after a store has lost its data.
        let fence = now.as_micros().max(self.last_fence + 1);
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

    /// Marks the work of this version as completed and releases the lock; returns whether it was held.
    pub fn complete(&mut self, now: Time, owner: &str, fence: u64, version: &str, keep: Duration) -> bool {
        let held = self.release(now, owner, fence);
        if held {
            self.marks.retain(|_, (_, until)| now < *until);
            self.marks.insert(version.to_owned(), (fence, now.after(keep.min(MAX_TTL))));
        }
        held
    }

    /// Returns the fence under which the work of this version was last completed.
    pub fn completed(&self, now: Time, version: &str) -> Option<u64> {
        self.marks.get(version).filter(|(_, until)| now < *until).map(|(fence, _)| *fence)
    }

    fn held_by(&mut self, owner: &str, fence: u64) -> Option<&mut Holder> {
        self.holder.as_mut().filter(|holder| holder.owner == owner && holder.fence == fence)
    }
}

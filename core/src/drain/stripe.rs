//! One stripe of a gate: the count of calls that entered through it, whether it still admits calls, and the wakers of the
//! calls that wait.
//!
//! Count and state are one atomic word, so a call is either counted before the gate drains or sees that it drains, and a
//! rejection writes nothing. A call leaves the stripe it entered, on whatever thread it ends: no count is ever negative,
//! and no call is in flight when all counts are zero.

use std::sync::atomic::AtomicU32;
use std::task::Waker;

use crate::sync::{AtomicU64, Mutex, Ordering};

/// Calls from outside are rejected.
const DRAINING_BIT: u64 = 1 << 63;
/// Nested calls are rejected, too.
const CLOSED_BIT: u64 = 1 << 62;
const COUNT_MASK: u64 = CLOSED_BIT - 1;

/// The waker slot of a call that has not waited yet.
pub(super) const NO_WAKER: u32 = u32::MAX;

/// One stripe.
#[derive(Debug)]
pub(super) struct Stripe {
    word: AtomicU64,
    wakers: Mutex<Wakers>,
}

/// The wakers of calls that wait, by slot. Slots are reused: once that many calls have waited together, nothing is
/// allocated any more.
#[derive(Debug, Default)]
struct Wakers {
    cancelled: bool,
    slots: Vec<Option<Waker>>,
    free: Vec<u32>,
}

impl Stripe {
    pub(super) fn new() -> Self {
        Self { word: AtomicU64::new(0), wakers: Mutex::new(Wakers::default()) }
    }

    /// Counts a call in; false if it is rejected.
    #[inline]
    pub(super) fn enter(&self, nested: bool) -> bool {
        let rejecting = if nested { CLOSED_BIT } else { DRAINING_BIT };
        let mut found = self.word.load(Ordering::Relaxed);
        while found & rejecting == 0 {
            match self.word.compare_exchange_weak(found, found + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => found = now,
            }
        }
        false
    }

    /// Counts a call out. Returns whether it was the last one of a draining stripe.
    #[inline]
    pub(super) fn leave(&self) -> bool {
        let found = self.word.fetch_sub(1, Ordering::AcqRel);
        found & DRAINING_BIT != 0 && found & COUNT_MASK == 1
    }

    /// Rejects calls from outside from now on.
    pub(super) fn drain(&self) {
        self.word.fetch_or(DRAINING_BIT, Ordering::AcqRel);
    }

    /// Rejects all calls from now on.
    pub(super) fn close(&self) {
        self.word.fetch_or(DRAINING_BIT | CLOSED_BIT, Ordering::AcqRel);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.word.load(Ordering::Acquire) & DRAINING_BIT != 0
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.word.load(Ordering::Acquire) & COUNT_MASK
    }

    /// Whether the call is cancelled; if not, stores its waker for [`cancel`](Self::cancel).
    pub(super) fn poll_cancelled(&self, waker_slot: &AtomicU32, waker: &Waker) -> bool {
        let mut wakers = self.wakers.lock();
        if wakers.cancelled {
            return true;
        }
        let slot = waker_slot.load(Ordering::Relaxed);
        match wakers.slots.get_mut(slot as usize) {
            Some(Some(stored)) => stored.clone_from(waker), // does nothing if it wakes the same task
            _ => waker_slot.store(wakers.insert(waker.clone()), Ordering::Relaxed),
        }
        false
    }

    /// Releases the waker slot, if the call has one.
    #[inline]
    pub(super) fn release_waker(&self, slot: u32) {
        if slot != NO_WAKER {
            let waker = self.wakers.lock().remove(slot);
            drop(waker); // not under the lock: dropping the last waker of a task drops the task
        }
    }

    /// Cancels the calls of this stripe: wakes those that wait, and rejects those that poll later.
    pub(super) fn cancel(&self) {
        let wakers: Vec<_> = {
            let mut wakers = self.wakers.lock();
            wakers.cancelled = true;
            wakers.slots.iter_mut().filter_map(Option::take).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Wakers {
    fn insert(&mut self, waker: Waker) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(waker);
            return slot;
        }
        self.slots.push(Some(waker));
        // So that `remove` never allocates.
        self.free.reserve(self.slots.len());
        (self.slots.len() - 1) as u32
    }

    fn remove(&mut self, slot: u32) -> Option<Waker> {
        self.free.push(slot);
        self.slots.get_mut(slot as usize).and_then(Option::take)
    }
}

#[cfg(all(test, phalanx_model))]
#[path = "models.rs"]
mod models;

//! One stripe of a gate: how many calls came in through it, whether it still lets calls in, and the wakers of those that
//! wait.
//!
//! Count and door are one word, so that a call is either counted before the door shuts or sees it shut; there is no
//! moment in between, and a rejection writes nothing. A call leaves through the stripe it came in by, whatever thread it
//! ends on, so no count is ever negative and "all are zero" means what it says.

use std::sync::atomic::AtomicU32;
use std::task::Waker;

use crate::sync::{AtomicU64, Mutex, Ordering};

/// The door is shut for calls from outside.
const DRAINING: u64 = 1 << 63;
/// And for calls inside others too.
const CLOSED: u64 = 1 << 62;
const COUNT: u64 = CLOSED - 1;

/// No bed: the call has not had to wait.
pub(super) const AWAKE: u32 = u32::MAX;

/// One stripe.
#[derive(Debug)]
pub(super) struct Stripe {
    word: AtomicU64,
    sleepers: Mutex<Sleepers>,
}

/// Calls that wait, by bed. Beds are used again: nothing is allocated once as many have waited together.
#[derive(Debug, Default)]
struct Sleepers {
    cancelled: bool,
    beds: Vec<Option<Waker>>,
    free: Vec<u32>,
}

impl Stripe {
    pub(super) fn new() -> Self {
        Self { word: AtomicU64::new(0), sleepers: Mutex::new(Sleepers::default()) }
    }

    /// Counts a call in, if the door is open to it.
    #[inline]
    pub(super) fn enter(&self, nested: bool) -> bool {
        let shut = if nested { CLOSED } else { DRAINING };
        let mut found = self.word.load(Ordering::Relaxed);
        while found & shut == 0 {
            match self.word.compare_exchange_weak(found, found + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => found = now,
            }
        }
        false
    }

    /// Counts a call out. Whether it was the last, and somebody may be waiting for that.
    #[inline]
    pub(super) fn leave(&self) -> bool {
        let found = self.word.fetch_sub(1, Ordering::AcqRel);
        found & DRAINING != 0 && found & COUNT == 1
    }

    /// Shuts the door to calls from outside.
    pub(super) fn drain(&self) {
        self.word.fetch_or(DRAINING, Ordering::AcqRel);
    }

    /// Shuts the door to everybody.
    pub(super) fn close(&self) {
        self.word.fetch_or(DRAINING | CLOSED, Ordering::AcqRel);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.word.load(Ordering::Acquire) & DRAINING != 0
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.word.load(Ordering::Acquire) & COUNT
    }

    /// Remembers whom to wake when the call is cancelled; true if it is.
    pub(super) fn sleep(&self, bed: &AtomicU32, waker: &Waker) -> bool {
        let mut sleepers = self.sleepers.lock();
        if sleepers.cancelled {
            return true;
        }
        let number = bed.load(Ordering::Relaxed);
        match sleepers.beds.get_mut(number as usize) {
            Some(Some(known)) => known.clone_from(waker), // nothing is done if it is the same
            _ => bed.store(sleepers.lie_down(waker.clone()), Ordering::Relaxed),
        }
        false
    }

    /// Gives the bed back, if the call had one.
    #[inline]
    pub(super) fn wake_up(&self, bed: u32) {
        if bed != AWAKE {
            let waker = self.sleepers.lock().get_up(bed);
            drop(waker); // not under the lock: the last one of a task drops the task
        }
    }

    /// Wakes all who wait, to learn that they are cancelled; who comes to wait later learns it at once.
    pub(super) fn cancel(&self) {
        let wakers: Vec<_> = {
            let mut sleepers = self.sleepers.lock();
            sleepers.cancelled = true;
            sleepers.beds.iter_mut().filter_map(Option::take).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Sleepers {
    fn lie_down(&mut self, waker: Waker) -> u32 {
        if let Some(bed) = self.free.pop() {
            self.beds[bed as usize] = Some(waker);
            return bed;
        }
        self.beds.push(Some(waker));
        // So that a bed given back finds room in the list of free ones.
        self.free.reserve(self.beds.len());
        (self.beds.len() - 1) as u32
    }

    fn get_up(&mut self, bed: u32) -> Option<Waker> {
        self.free.push(bed);
        self.beds.get_mut(bed as usize).and_then(Option::take)
    }
}

#[cfg(all(test, phalanx_model))]
#[path = "models.rs"]
mod models;

//! The bulkhead: limits the calls in flight, and queues callers that wait for a slot.
//!
//! All kinds of limits share one implementation, whose state is one word:
//!
//! ```text
//!   63      62 ……………… 32   31 ……………… 0
//!   queued  limit          slots in use
//! ```
//!
//! While the queue is empty, taking a slot is one compare-and-swap and giving it back one subtraction. A caller that finds
//! no slot takes the lock of the queue, sets `queued`, checks once more and only then waits. From then on a call that gives
//! its slot back sees the flag and hands the slot to the next waiter under the lock, so that no new caller overtakes and
//! no wake-up is lost. The limit is part of the same word, so that no call is admitted by a limit that has just changed. A
//! lower limit evicts no call; a higher one serves waiters at once.

pub mod aimd;
pub mod gradient;
pub mod limit;
#[cfg(all(test, phalanx_model))]
mod models;
mod queue;
#[cfg(all(test, not(phalanx_model)))]
mod sim;
pub mod spec;
#[cfg(all(test, not(phalanx_model)))]
mod tests;

use std::task::{Poll, Waker};
use std::time::Duration;

pub use self::aimd::LimitChange;
pub use self::limit::Completion;
use self::limit::Limiter;
pub use self::queue::{Arrival, WaiterId};
use self::queue::{Next, Queue, Wake};
pub use self::spec::{AdaptiveSpec, BulkheadSpec, GradientSpec};
use crate::clock::{Clock, Time};
use crate::rejection::RejectionCode;
use crate::sync::{AtomicU64, Mutex, Ordering};

const QUEUED: u64 = 1 << 63;
const LIMIT_SHIFT: u32 = 32;
const SLOTS: u64 = (1 << LIMIT_SHIFT) - 1;
/// The largest limit that the word can hold.
pub(crate) const MAX_LIMIT: u32 = u32::MAX >> 1;

/// The result of entering a bulkhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The call has a slot.
    Entered,
    /// The call waits in the queue. It is rejected at this time: the caller sets a timer and then calls
    /// [`Bulkhead::give_up`].
    Waiting(WaiterId, Time),
}

/// The state of a bulkhead at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BulkheadView {
    /// The current limit of calls in flight.
    pub limit: u32,
    /// Calls in flight. May exceed the limit for a while after it was lowered.
    pub in_use: u32,
    /// Callers that wait for a slot.
    pub waiting: u32,
}

impl BulkheadView {
    /// Returns the free slots.
    pub const fn available_slots(&self) -> u32 {
        self.limit.saturating_sub(self.in_use)
    }
}

/// A bulkhead. Threads share it by reference.
///
/// Slots are counted and have no guards here: a call that entered must [`leave`](Self::leave), and one that waits must
/// [`poll`](Self::poll) until it has a verdict, [`give_up`](Self::give_up) or [`abandon`](Self::abandon).
#[derive(Debug)]
pub struct Bulkhead {
    word: AtomicU64,
    queue: Mutex<Queue>,
    limiter: Mutex<Limiter>,
}

const fn in_use(word: u64) -> u64 {
    word & SLOTS
}

const fn limit(word: u64) -> u64 {
    (word & !QUEUED) >> LIMIT_SHIFT
}

impl Bulkhead {
    /// Creates an empty bulkhead.
    pub fn new(spec: &BulkheadSpec) -> Self {
        let limiter = Limiter::new(spec);
        Self {
            word: AtomicU64::new(u64::from(limiter.limit()) << LIMIT_SHIFT),
            queue: Mutex::new(Queue::new(spec)),
            limiter: Mutex::new(limiter),
        }
    }

    /// Takes over another spec. Calls and waiters stay, and so does an adapted limit if its kind stays the same.
    pub fn retune(&self, spec: &BulkheadSpec, clock: &Clock) {
        self.queue.lock().retune(spec);
        let mut limiter = self.limiter.lock();
        limiter.retune(spec);
        let grown = self.set_limit(limiter.limit());
        drop(limiter);
        if grown {
            self.hand_out(clock);
        }
    }

    /// Takes a slot, if one is free and the queue is empty.
    #[inline]
    pub fn try_enter(&self) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & QUEUED != 0 || in_use(word) >= limit(word) {
                return false;
            }
            match self.word.compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(newer) => word = newer,
            }
        }
    }

    /// Takes a slot, or joins the queue.
    ///
    /// # Errors
    /// `bulkhead_full`: the queue is full too, and holds no less critical waiter to displace.
    #[cold]
    pub fn enter(&self, arrival: Arrival) -> Result<Entry, RejectionCode> {
        let (entry, displaced) = {
            let mut queue = self.queue.lock();
            // Set first: a slot that is given back from here on goes to the queue.
            let word = self.word.fetch_or(QUEUED, Ordering::AcqRel);
            if queue.is_empty() && in_use(word) < limit(word) {
                self.word.fetch_add(1, Ordering::Relaxed);
                self.word.fetch_and(!QUEUED, Ordering::Release);
                return Ok(Entry::Entered);
            }
            let Some((waiter, due, displaced)) = queue.push(arrival) else {
                self.clear_flag_if_empty(&queue);
                return Err(RejectionCode::BulkheadFull);
            };
            (Entry::Waiting(waiter, due), displaced)
        };
        if let Some(displaced) = displaced {
            displaced.wake();
        }
        Ok(entry)
    }

    /// Returns whether a waiter has its slot or was rejected. After a verdict the id is no longer valid.
    pub fn poll(&self, waiter: WaiterId, waker: &Waker) -> Poll<Result<(), RejectionCode>> {
        // Wakers are dropped outside the lock: dropping the last one drops a task, which may use this bulkhead.
        let (verdict, _waker) = self.queue.lock().poll(waiter, waker);
        verdict.map_or(Poll::Pending, Poll::Ready)
    }

    /// Ends the wait when the waiter's timer fires. Returns `Ok` if it got its slot meanwhile.
    ///
    /// # Errors
    /// The code of the rejection that was due.
    pub fn give_up(&self, waiter: WaiterId) -> Result<(), RejectionCode> {
        let (verdict, _waker) = {
            let mut queue = self.queue.lock();
            let left = queue.leave(waiter);
            self.clear_flag_if_empty(&queue);
            left
        };
        verdict
    }

    /// Ends the wait of a caller that was dropped. A slot that it got meanwhile goes to the next waiter.
    pub fn abandon(&self, waiter: WaiterId, clock: &Clock) {
        if self.give_up(waiter).is_ok() {
            self.leave(clock);
        }
    }

    /// Gives a slot back, to the next waiter if there is one.
    #[inline]
    pub fn leave(&self, clock: &Clock) {
        let before = self.word.fetch_sub(1, Ordering::AcqRel);
        if before & QUEUED != 0 {
            self.hand_out(clock);
        }
    }

    /// Adapts the limit to one completion.
    pub fn observe(&self, done: &Completion, clock: &Clock) -> Option<LimitChange> {
        self.adapt(clock, |limiter| limiter.observe(done))
    }

    /// Adapts the limit to a quantile of the latency, if it is configured with one.
    pub fn judge(&self, now: Time, quantile: Option<Duration>, clock: &Clock) -> Option<LimitChange> {
        self.adapt(clock, |limiter| limiter.judge(now, quantile))
    }

    /// Returns since when latencies count for the next quantile.
    pub fn measured_since(&self) -> Time {
        self.limiter.lock().measured_since()
    }

    /// Returns the slots in use.
    #[inline]
    pub fn in_use(&self) -> u32 {
        in_use(self.word.load(Ordering::Relaxed)) as u32
    }

    /// Returns the state.
    pub fn view(&self) -> BulkheadView {
        let waiting = self.queue.lock().len() as u32;
        let word = self.word.load(Ordering::Acquire);
        BulkheadView { limit: limit(word) as u32, in_use: in_use(word) as u32, waiting }
    }

    fn adapt(&self, clock: &Clock, adapt: impl FnOnce(&mut Limiter) -> Option<LimitChange>) -> Option<LimitChange> {
        let (lowered, grown) = {
            let mut limiter = self.limiter.lock();
            let lowered = adapt(&mut limiter);
            (lowered, self.set_limit(limiter.limit()))
        };
        if grown {
            self.hand_out(clock);
        }
        lowered
    }

    /// Under the limiter's lock. Returns whether there may be slots for waiters now.
    fn set_limit(&self, new: u32) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let old = limit(word);
        let new = u64::from(new.min(MAX_LIMIT));
        if new == old {
            return false;
        }
        // These bits change only under the lock, so adding the difference sets them.
        let before = if new > old {
            self.word.fetch_add((new - old) << LIMIT_SHIFT, Ordering::AcqRel)
        } else {
            self.word.fetch_sub((old - new) << LIMIT_SHIFT, Ordering::AcqRel)
        };
        new > old && before & QUEUED != 0
    }

    /// Hands free slots to waiters.
    #[cold]
    fn hand_out(&self, clock: &Clock) {
        let now = clock.now();
        while let Some(wake) = self.serve_one(now) {
            wake.wake();
        }
    }

    fn serve_one(&self, now: Time) -> Option<Wake> {
        let mut queue = self.queue.lock();
        let word = self.word.load(Ordering::Acquire);
        if self.clear_flag_if_empty(&queue) || in_use(word) >= limit(word) {
            return None;
        }
        match queue.pop(now)? {
            Next::Served(wake) => {
                // While the flag is set, no other thread takes slots.
                self.word.fetch_add(1, Ordering::Relaxed);
                Some(wake)
            }
            Next::Shed(wake) => Some(wake),
        }
    }

    /// Under the queue's lock, without which the flag never changes.
    fn clear_flag_if_empty(&self, queue: &Queue) -> bool {
        let empty = queue.is_empty();
        if empty {
            self.word.fetch_and(!QUEUED, Ordering::Release);
        }
        empty
    }
}

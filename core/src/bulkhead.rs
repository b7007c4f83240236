//! Bulkheads: how many calls are under way at a time, and who waits for a slot.
//!
//! One admission machine for all kinds of limits. Its state is one word:
//!
//! ```text
//!   63      62 ……………… 32   31 ……………… 0
//!   queued  limit          slots in use
//! ```
//!
//! Taking a slot is one compare-and-swap, giving it back one subtraction, as long as nobody waits. Whoever finds no
//! slot takes the lock of the queue, raises `queued`, looks once more and only then waits; from then on whoever gives a
//! slot back sees the flag and hands it over under the lock, in the queue's order, so no newcomer overtakes and no
//! wake-up is lost. The limit lies in the same word, so that no newcomer is admitted on a limit that has just changed; a
//! lower one evicts nobody (nor the waiter who is being served meanwhile), a higher one serves waiters at once.

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
/// The largest limit the word can hold.
pub(crate) const MOST: u32 = u32::MAX >> 1;

/// What asking for a slot came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The slot is there.
    Entered,
    /// A place in the queue; it is rejected at that moment, and its holder has to see to it with a timer.
    Waiting(WaiterId, Time),
}

/// What can be seen of a bulkhead from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BulkheadView {
    /// Calls at a time, as of now.
    pub limit: u32,
    /// Calls under way. More than the limit for a while after that was lowered.
    pub in_use: u32,
    /// Callers that wait for a slot.
    pub waiting: u32,
}

impl BulkheadView {
    /// Slots that could be taken now.
    pub const fn available_slots(&self) -> u32 {
        self.limit.saturating_sub(self.in_use)
    }
}

/// The machine. Shared by reference; every method takes `&self`.
///
/// Slots are numbers here, not guards: whoever entered must [`leave`](Self::leave), whoever waits must
/// [`poll`](Self::poll), [`give_up`](Self::give_up) or [`abandon`](Self::abandon) his place.
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
    /// An empty bulkhead.
    pub fn new(spec: &BulkheadSpec) -> Self {
        let limiter = Limiter::new(spec);
        Self {
            word: AtomicU64::new(u64::from(limiter.limit()) << LIMIT_SHIFT),
            queue: Mutex::new(Queue::new(spec)),
            limiter: Mutex::new(limiter),
        }
    }

    /// Follows another spec: slots in use and waiters stay, a limit that was learned stays if its kind does.
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

    /// Takes a slot, if one is free and nobody waits for it.
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

    /// Takes a slot, or a place in the queue for one.
    ///
    /// # Errors
    /// `bulkhead_full`: the queue has no place either, for somebody like this.
    #[cold]
    pub fn enter(&self, who: Arrival) -> Result<Entry, RejectionCode> {
        let (entry, displaced) = {
            let mut queue = self.queue.lock();
            // Raised first: a slot given back from here on is given to the queue.
            let word = self.word.fetch_or(QUEUED, Ordering::AcqRel);
            if queue.is_empty() && in_use(word) < limit(word) {
                self.word.fetch_add(1, Ordering::Relaxed);
                self.word.fetch_and(!QUEUED, Ordering::Release);
                return Ok(Entry::Entered);
            }
            let Some((place, due, displaced)) = queue.push(who) else {
                self.lower_flag_if_empty(&queue);
                return Err(RejectionCode::BulkheadFull);
            };
            (Entry::Waiting(place, due), displaced)
        };
        if let Some(displaced) = displaced {
            displaced.wake();
        }
        Ok(entry)
    }

    /// Whether a waiter has his slot, or was rejected. His place is gone with the answer.
    pub fn poll(&self, place: WaiterId, waker: &Waker) -> Poll<Result<(), RejectionCode>> {
        // Here and below, a waker is dropped outside the lock: with the last one goes a task, which may come back here.
        let (verdict, _waker) = self.queue.lock().poll(place, waker);
        verdict.map_or(Poll::Pending, Poll::Ready)
    }

    /// A waiter's own timer rang: he has his slot after all, or goes for the reason that was due.
    ///
    /// # Errors
    /// Why he is rejected.
    pub fn give_up(&self, place: WaiterId) -> Result<(), RejectionCode> {
        let (verdict, _waker) = {
            let mut queue = self.queue.lock();
            let left = queue.leave(place);
            self.lower_flag_if_empty(&queue);
            left
        };
        verdict
    }

    /// A waiter is not there any more. A slot that was his already goes to the next.
    pub fn abandon(&self, place: WaiterId, clock: &Clock) {
        if self.give_up(place).is_ok() {
            self.leave(clock);
        }
    }

    /// Gives a slot back: to the next waiter, if there is one.
    #[inline]
    pub fn leave(&self, clock: &Clock) {
        let before = self.word.fetch_sub(1, Ordering::AcqRel);
        if before & QUEUED != 0 {
            self.hand_out(clock);
        }
    }

    /// Lets one completion move the limit.
    pub fn observe(&self, done: &Completion, clock: &Clock) -> Option<LimitChange> {
        self.learn(clock, |limiter| limiter.observe(done))
    }

    /// Lets the latency's quantile move the limit; for a limit that is judged by one.
    pub fn judge(&self, now: Time, quantile: Option<Duration>, clock: &Clock) -> Option<LimitChange> {
        self.learn(clock, |limiter| limiter.judge(now, quantile))
    }

    /// Since when latencies count for the next judgement.
    pub fn measured_since(&self) -> Time {
        self.limiter.lock().measured_since()
    }

    /// Slots in use now.
    #[inline]
    pub fn in_use(&self) -> u32 {
        in_use(self.word.load(Ordering::Relaxed)) as u32
    }

    /// What can be seen from outside.
    pub fn view(&self) -> BulkheadView {
        let waiting = self.queue.lock().len() as u32;
        let word = self.word.load(Ordering::Acquire);
        BulkheadView { limit: limit(word) as u32, in_use: in_use(word) as u32, waiting }
    }

    fn learn(&self, clock: &Clock, lesson: impl FnOnce(&mut Limiter) -> Option<LimitChange>) -> Option<LimitChange> {
        let (told, grown) = {
            let mut limiter = self.limiter.lock();
            let told = lesson(&mut limiter);
            (told, self.set_limit(limiter.limit()))
        };
        if grown {
            self.hand_out(clock);
        }
        told
    }

    /// Under the limiter's lock. True if waiters may have slots now that they had not.
    fn set_limit(&self, new: u32) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        let old = limit(word);
        let new = u64::from(new.min(MOST));
        if new == old {
            return false;
        }
        // Only holders of the lock change these bits, so adding the difference sets them.
        let before = if new > old {
            self.word.fetch_add((new - old) << LIMIT_SHIFT, Ordering::AcqRel)
        } else {
            self.word.fetch_sub((old - new) << LIMIT_SHIFT, Ordering::AcqRel)
        };
        new > old && before & QUEUED != 0
    }

    /// Serves waiters while there are slots.
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
        if self.lower_flag_if_empty(&queue) || in_use(word) >= limit(word) {
            return None;
        }
        match queue.pop(now)? {
            Next::Served(wake) => {
                // While the flag is up nobody else takes slots.
                self.word.fetch_add(1, Ordering::Relaxed);
                Some(wake)
            }
            Next::Shed(wake) => Some(wake),
        }
    }

    /// Under the queue's lock, which is the only place where the flag changes.
    fn lower_flag_if_empty(&self, queue: &Queue) -> bool {
        let empty = queue.is_empty();
        if empty {
            self.word.fetch_and(!QUEUED, Ordering::Release);
        }
        empty
    }
}

//! The fast path of a breaker: what is decided from atomics, without a lock and without Redis.
//!
//! * **closed**: one load admits the call. A success is counted in the thread's own stripe and recorded later, in a
//!   batch, because successes never trip a breaker.
//! * **open**: the same load and a comparison with the end of the break reject the call.
//!
//! The breaker behind it (a [`Breaker`](super::Breaker) under a lock, or the fleet's state in Redis) publishes the answer
//! with [`FastPath::publish`] and takes the counted successes with [`FastPath::drain`]. Slices are those of the clock that
//! `now` comes from.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::successes::{Batch, SuccessCounters};
use super::{Admission, BreakerSpec, Sample, Ticket};
use crate::clock::Time;
use crate::estimate::ring::slice_micros;
use crate::kind::Outcome;
use crate::rejection::RejectionCode;

/// The lowest bits of the word hold the answer; the epoch is above them.
const ANSWER_BITS: u32 = 2;
const ASK: u64 = 0;
const CLOSED: u64 = 1;
const OPEN: u64 = 2;

/// What the fast path answers until the next [`FastPath::publish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastAnswer {
    /// The breaker has to be asked.
    Ask,
    /// Every call is admitted.
    Closed,
    /// Every call before this moment is rejected.
    Open(Time),
}

/// What the fast path did with the outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Counted it, or ignored one that does not count.
    Done,
    /// Counted it and took out what the thread's stripe held before; the caller must record that with the breaker.
    Flushed(Successes),
    /// Nothing: the caller must record it with the breaker.
    Forward,
}

/// Successes of one slice of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Successes {
    /// The slice of the window, by the clock of the fast path.
    pub slice: u64,
    /// The number of successes.
    pub count: u64,
    batch: Batch,
}

impl Successes {
    /// Returns whether they are of this epoch.
    pub const fn belong_to(&self, epoch: u64) -> bool {
        self.batch.belongs_to(epoch)
    }
}

/// The fast path of one breaker.
#[derive(Debug)]
pub struct FastPath {
    /// The epoch and one of `ASK`, `CLOSED`, `OPEN`.
    word: AtomicU64,
    /// When the break is over, in microseconds; meaningful while the answer is `OPEN`.
    until: AtomicU64,
    /// The length of a slice of the window, in microseconds.
    slice: AtomicU64,
    /// The current slice and its end, in microseconds: comparing with them is cheaper than dividing.
    current: AtomicU64,
    current_until: AtomicU64,
    /// From how many microseconds on a call is slow.
    slow: AtomicU64,
    successes: SuccessCounters,
    /// Held while the current slice or the length of a slice changes.
    changing: Mutex<()>,
}

impl FastPath {
    /// Creates a fast path that answers [`FastAnswer::Ask`].
    pub fn new(spec: &BreakerSpec) -> Self {
        let path = Self {
            word: AtomicU64::new(ASK),
            until: AtomicU64::new(0),
            slice: AtomicU64::new(1),
            current: AtomicU64::new(0),
            current_until: AtomicU64::new(0),
            slow: AtomicU64::new(u64::MAX),
            successes: SuccessCounters::new(),
            changing: Mutex::new(()),
        };
        path.retune(spec);
        path
    }

    /// Takes over another spec. Successes must have been [drained](Self::drain) before, because slices change their
    /// length.
    pub fn retune(&self, spec: &BreakerSpec) {
        let _changing = self.changing.lock();
        let slow = spec.slow_call_threshold.map_or(u64::MAX, |slow| slow.as_micros() as u64);
        self.slow.store(slow, Ordering::Relaxed);
        self.slice.store(slice_micros(spec.sampling_window), Ordering::Relaxed);
        self.current_until.store(0, Ordering::Relaxed);
        self.current.store(0, Ordering::Relaxed);
    }

    /// Sets the answer from now on.
    pub fn publish(&self, epoch: u64, answer: FastAnswer) {
        let bits = match answer {
            FastAnswer::Ask => ASK,
            FastAnswer::Closed => CLOSED,
            FastAnswer::Open(until) => {
                self.until.store(until.as_micros(), Ordering::Relaxed);
                OPEN
            }
        };
        self.word.store(epoch << ANSWER_BITS | bits, Ordering::Release);
    }

    /// Admits or rejects a call; none if the breaker has to be asked.
    #[inline]
    pub fn admit(&self, now: Time) -> Option<Admission> {
        let word = self.word.load(Ordering::Acquire);
        match word & ((1 << ANSWER_BITS) - 1) {
            CLOSED => Some(Admission::Admitted(Ticket { epoch: word >> ANSWER_BITS, lease: None })),
            OPEN => {
                let until = Time::from_micros(self.until.load(Ordering::Relaxed));
                (now < until).then_some(Admission::Rejected { code: RejectionCode::CircuitOpen, until })
            }
            _ => None,
        }
    }

    /// Counts the outcome of an admitted call, if that needs no breaker.
    #[inline]
    pub fn record(&self, now: Time, ticket: Ticket, sample: Sample) -> Recorded {
        let slow = self.slow.load(Ordering::Relaxed);
        let quick = slow == u64::MAX || sample.latency.as_micros() < u128::from(slow);
        let closed = self.word.load(Ordering::Acquire) == ticket.epoch << ANSWER_BITS | CLOSED;
        match sample.outcome {
            Outcome::Neutral | Outcome::Cancelled if ticket.lease.is_none() => Recorded::Done,
            Outcome::Success if quick && closed => {
                let slice = self.slice_at(now);
                match self.successes.add(ticket.epoch, slice) {
                    None => Recorded::Done,
                    Some(batch) => Recorded::Flushed(self.successes(batch, now)),
                }
            }
            _ => Recorded::Forward,
        }
    }

    /// Takes out all counted successes.
    pub fn drain(&self, now: Time) -> impl Iterator<Item = Successes> {
        self.successes.drain().map(move |batch| self.successes(batch, now))
    }

    /// Returns the length of a slice, in microseconds.
    pub fn slice_micros(&self) -> u64 {
        self.slice.load(Ordering::Relaxed)
    }

    /// Returns the slice that `now` belongs to.
    pub fn slice_of(&self, now: Time) -> u64 {
        now.as_micros() / self.slice_micros()
    }

    fn successes(&self, batch: Batch, now: Time) -> Successes {
        Successes { slice: batch.slice(self.slice_of(now)), count: batch.count, batch }
    }

    /// Returns the slice to count in. A thread whose reading of the clock is a little old counts into the newer slice, as
    /// the breaker does.
    #[inline]
    fn slice_at(&self, now: Time) -> u64 {
        if now.as_micros() < self.current_until.load(Ordering::Acquire) {
            return self.current.load(Ordering::Relaxed);
        }
        self.next_slice(now)
    }

    /// Locked, so that no slice is numbered by a length that has just changed.
    #[cold]
    fn next_slice(&self, now: Time) -> u64 {
        let _changing = self.changing.lock();
        let length = self.slice.load(Ordering::Relaxed);
        let slice = (now.as_micros() / length).max(self.current.load(Ordering::Relaxed));
        self.current.store(slice, Ordering::Relaxed);
        self.current_until.store((slice + 1).saturating_mul(length), Ordering::Release);
        slice
    }
}

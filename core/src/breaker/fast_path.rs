//! The front of a circuit: what threads meet before anybody is asked.
//!
//! In its two common states nobody needs to be:
//!
//! * **closed**: one load of the gate admits; a success goes into the thread's own stripe and is told later, in a
//!   batch, because successes never trip a circuit;
//! * **open**: the same load and a look at the end of the break reject.
//!
//! What stands behind a front (a machine, or the fleet's state in Redis) says by [`FastPath::show`] what the gate shows,
//! and takes what the stripes hold by [`FastPath::drain`]. Slices are those of the clock that `now` comes from.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Admission, BreakerSpec, Sample, Ticket};
use crate::clock::Time;
use crate::estimate::ring::slice_micros;
use crate::kind::Outcome;
use crate::rejection::RejectionCode;

use super::successes::{Batch, Stripes};

/// What the gate says; the epoch stands above these bits.
const GATE_BITS: u32 = 2;
const ASK: u64 = 0;
const CLOSED: u64 = 1;
const OPEN: u64 = 2;

/// What a front can answer by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastAnswer {
    /// Somebody has to be asked.
    Ask,
    /// Every call passes.
    Closed,
    /// No call passes before this moment.
    Open(Time),
}

/// What became of a sample at the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It is counted, or counts for nothing.
    Here,
    /// It is counted; what the thread's stripe held before is handed over and must be told.
    HandedOver(Successes),
    /// It is not: whoever stands behind must hear of it.
    NotHere,
}

/// Successes of one slice of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Successes {
    /// The slice they fell into, in the front's clock.
    pub slice: u64,
    /// How many.
    pub count: u64,
    batch: Batch,
}

impl Successes {
    /// Whether they are of this epoch.
    pub const fn belong_to(&self, epoch: u64) -> bool {
        self.batch.belongs_to(epoch)
    }
}

/// The front.
#[derive(Debug)]
pub struct FastPath {
    /// The epoch and one of `ASK`, `CLOSED`, `OPEN`.
    gate: AtomicU64,
    /// When the break is over, in microseconds; meaningful while the gate says `OPEN`.
    until: AtomicU64,
    /// The length of a slice of the window, in microseconds.
    slice: AtomicU64,
    /// The present slice and its end, in microseconds: looking them up is cheaper than dividing.
    present: AtomicU64,
    present_until: AtomicU64,
    /// From how many microseconds on a call is slow.
    slow: AtomicU64,
    stripes: Stripes,
    turning: Mutex<()>,
}

impl FastPath {
    /// A front that answers nothing yet.
    pub fn new(spec: &BreakerSpec) -> Self {
        let front = Self {
            gate: AtomicU64::new(ASK),
            until: AtomicU64::new(0),
            slice: AtomicU64::new(1),
            present: AtomicU64::new(0),
            present_until: AtomicU64::new(0),
            slow: AtomicU64::new(u64::MAX),
            stripes: Stripes::new(),
            turning: Mutex::new(()),
        };
        front.tune(spec);
        front
    }

    /// Follows another spec. What the stripes hold must have been drained: slices change their length.
    pub fn tune(&self, spec: &BreakerSpec) {
        let _turning = self.turning.lock();
        let slow = spec.slow_call_threshold.map_or(u64::MAX, |slow| slow.as_micros() as u64);
        self.slow.store(slow, Ordering::Relaxed);
        self.slice.store(slice_micros(spec.sampling_window), Ordering::Relaxed);
        self.present_until.store(0, Ordering::Relaxed);
        self.present.store(0, Ordering::Relaxed);
    }

    /// What the gate shows from now on.
    pub fn show(&self, epoch: u64, shown: FastAnswer) {
        let says = match shown {
            FastAnswer::Ask => ASK,
            FastAnswer::Closed => CLOSED,
            FastAnswer::Open(until) => {
                self.until.store(until.as_micros(), Ordering::Relaxed);
                OPEN
            }
        };
        self.gate.store(epoch << GATE_BITS | says, Ordering::Release);
    }

    /// The answer of the two common states; none if somebody has to be asked.
    #[inline]
    pub fn admit(&self, now: Time) -> Option<Admission> {
        let gate = self.gate.load(Ordering::Acquire);
        match gate & ((1 << GATE_BITS) - 1) {
            CLOSED => Some(Admission::Admitted(Ticket { epoch: gate >> GATE_BITS, lease: None })),
            OPEN => {
                let until = Time::from_micros(self.until.load(Ordering::Relaxed));
                (now < until).then_some(Admission::Rejected { code: RejectionCode::CircuitOpen, until })
            }
            _ => None,
        }
    }

    /// Counts what became of an admitted call, if that can be done here.
    #[inline]
    pub fn record(&self, now: Time, ticket: Ticket, sample: Sample) -> Recorded {
        let slow = self.slow.load(Ordering::Relaxed);
        let quick = slow == u64::MAX || sample.latency.as_micros() < u128::from(slow);
        let closed = self.gate.load(Ordering::Acquire) == ticket.epoch << GATE_BITS | CLOSED;
        match sample.outcome {
            Outcome::Neutral | Outcome::Cancelled if ticket.lease.is_none() => Recorded::Here,
            Outcome::Success if quick && closed => {
                let slice = self.slice_at(now);
                match self.stripes.add(ticket.epoch, slice) {
                    None => Recorded::Here,
                    Some(batch) => Recorded::HandedOver(self.successes(batch, now)),
                }
            }
            _ => Recorded::NotHere,
        }
    }

    /// Takes everything out of the stripes.
    pub fn drain(&self, now: Time) -> impl Iterator<Item = Successes> {
        self.stripes.drain().map(move |batch| self.successes(batch, now))
    }

    /// The length of a slice, in microseconds.
    pub fn slice_micros(&self) -> u64 {
        self.slice.load(Ordering::Relaxed)
    }

    /// The slice that `now` belongs to.
    pub fn slice_of(&self, now: Time) -> u64 {
        now.as_micros() / self.slice_micros()
    }

    fn successes(&self, batch: Batch, now: Time) -> Successes {
        Successes { slice: batch.slice(self.slice_of(now)), count: batch.count, batch }
    }

    /// The slice that is filling. A thread whose reading of the clock is a little old counts into the newer slice, as
    /// the machine does.
    #[inline]
    fn slice_at(&self, now: Time) -> u64 {
        if now.as_micros() < self.present_until.load(Ordering::Acquire) {
            return self.present.load(Ordering::Relaxed);
        }
        self.turn_slice(now)
    }

    /// Under a lock, so that a slice is never counted in a length that has just changed.
    #[cold]
    fn turn_slice(&self, now: Time) -> u64 {
        let _turning = self.turning.lock();
        let length = self.slice.load(Ordering::Relaxed);
        let slice = (now.as_micros() / length).max(self.present.load(Ordering::Relaxed));
        self.present.store(slice, Ordering::Relaxed);
        self.present_until.store((slice + 1).saturating_mul(length), Ordering::Release);
        slice
    }
}

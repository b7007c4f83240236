//! A circuit that threads share without queueing.
//!
//! The machine stands behind a lock, but in its two common states nobody needs it:
//!
//! * **closed**: one load of [`BreakerCell::gate`] admits; a success goes into the thread's own stripe and reaches the
//!   machine later, in a batch, because successes never trip a circuit;
//! * **open**: the same load and a look at the end of the break refuse.
//!
//! Bad news, trial calls, ramps and operators' words take the lock, tell the machine first what the stripes hold, and
//! publish its new state. For one thread the answers are exactly the bare machine's (a property test says so).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use phalanx_core::breaker::{Admission, Breaker, BreakerSpec, BreakerView, Forced, Phase, Sample, Ticket, Transition};
use phalanx_core::clock::{Clock, Time};
use phalanx_core::estimate::ring::slice_micros;
use phalanx_core::kind::Outcome;
use phalanx_core::rejection::{Code, Source};
use phalanx_core::rng::Rng;
use phalanx_core::store::Answer;
use phalanx_core::table::{Entry, Worth};

use crate::line::Line;
use crate::stripes::{Batch, Stripes};

/// What the gate says; the epoch stands above these bits.
const GATE_BITS: u32 = 2;
const ASK: u64 = 0;
const CLOSED: u64 = 1;
const OPEN: u64 = 2;

/// One key's circuit.
#[derive(Debug)]
pub struct BreakerCell {
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
    clock: Clock,
    rng: Rng,
    machine: Line<Mutex<Machine>>,
}

#[derive(Debug)]
struct Machine {
    breaker: Breaker,
    spec: BreakerSpec,
}

impl BreakerCell {
    /// A closed circuit that has seen nothing.
    pub fn new(clock: Clock, spec: &BreakerSpec, rng: Rng) -> Self {
        let breaker = Breaker::new(clock.now(), spec);
        let cell = Self {
            gate: AtomicU64::new(ASK),
            until: AtomicU64::new(0),
            slice: AtomicU64::new(1),
            present: AtomicU64::new(0),
            present_until: AtomicU64::new(0),
            slow: AtomicU64::new(u64::MAX),
            stripes: Stripes::new(),
            clock,
            rng,
            machine: Line(Mutex::new(Machine { breaker, spec: spec.clone() })),
        };
        cell.tune(spec);
        cell.publish(&cell.machine.0.lock().breaker);
        cell
    }

    /// Follows another spec from now on.
    pub fn retune(&self, spec: &BreakerSpec) {
        let now = self.clock.now();
        let mut machine = self.machine.0.lock();
        if machine.spec == *spec {
            return;
        }
        self.tell_successes(&mut machine, now);
        let old = std::mem::replace(&mut machine.spec, spec.clone());
        machine.breaker.retune(&old, spec);
        self.tune(spec);
        self.publish(&machine.breaker);
    }

    /// The answer of the two common states; none if the machine has to be asked.
    #[inline]
    pub fn admit_now(&self, now: Time) -> Option<Answer> {
        let gate = self.gate.load(Ordering::Acquire);
        let admission = match gate & ((1 << GATE_BITS) - 1) {
            CLOSED => Admission::Admitted(Ticket { epoch: gate >> GATE_BITS, lease: None }),
            OPEN => {
                let until = Time::from_micros(self.until.load(Ordering::Relaxed));
                if now >= until {
                    return None;
                }
                Admission::Refused { code: Code::CircuitOpen, until }
            }
            _ => return None,
        };
        Some(Answer { admission, source: Source::Local })
    }

    /// Records what became of an admitted call.
    #[inline]
    pub fn record(&self, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        let slow = self.slow.load(Ordering::Relaxed);
        let quick = slow == u64::MAX || sample.latency.as_micros() < u128::from(slow);
        let closed = self.gate.load(Ordering::Acquire) == ticket.epoch << GATE_BITS | CLOSED;
        match sample.outcome {
            Outcome::Neutral | Outcome::Cancelled if ticket.lease.is_none() => None,
            Outcome::Success if quick && closed => {
                let slice = self.slice_at(now);
                if let Some(batch) = self.stripes.add(ticket.epoch, slice) {
                    let mut machine = self.machine.0.lock();
                    tell(&mut machine.breaker, batch, self.near(now));
                }
                None
            }
            _ => self.record_by_machine(now, ticket, sample),
        }
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

    /// Under the machine's lock, so that a slice is never counted in a length that has just changed.
    #[cold]
    fn turn_slice(&self, now: Time) -> u64 {
        let _machine = self.machine.0.lock();
        let length = self.slice.load(Ordering::Relaxed);
        let slice = (now.as_micros() / length).max(self.present.load(Ordering::Relaxed));
        self.present.store(slice, Ordering::Relaxed);
        self.present_until.store((slice + 1).saturating_mul(length), Ordering::Release);
        slice
    }

    #[cold]
    fn record_by_machine(&self, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        self.with_machine(now, |Machine { breaker, spec }| breaker.record(now, spec, ticket, sample, self.rng.unit()))
    }

    /// Tells the latency's quantile.
    pub fn observe_quantile(&self, now: Time, value: Option<Duration>) -> Option<Transition> {
        self.with_machine(now, |Machine { breaker, spec }| breaker.observe_quantile(now, spec, value, self.rng.unit()))
    }

    /// Puts an operator's word above the phase, or takes it away.
    pub fn force(&self, forced: Option<Forced>) {
        let now = self.clock.now();
        self.with_machine(now, |machine| machine.breaker.force(forced));
    }

    /// Back to a closed circuit that has seen nothing.
    pub fn reset(&self, now: Time) -> Option<Transition> {
        self.with_machine(now, |Machine { breaker, spec }| breaker.reset(now, spec))
    }

    /// What can be seen from outside.
    pub fn inspect(&self, now: Time) -> BreakerView {
        self.with_machine(now, |machine| machine.breaker.inspect(now))
    }

    /// Asks the machine.
    #[cold]
    pub fn admit(&self, now: Time) -> (Answer, Option<Transition>) {
        self.with_machine(now, |Machine { breaker, spec }| {
            let (admission, transition) = breaker.admit(now, spec);
            let source = match breaker.forced() {
                None => Source::Local,
                Some(Forced::MetricsOnly) => Source::Shadow,
                Some(_) => Source::Forced,
            };
            (Answer { admission, source }, transition)
        })
    }

    fn with_machine<T>(&self, now: Time, work: impl FnOnce(&mut Machine) -> T) -> T {
        let mut machine = self.machine.0.lock();
        self.tell_successes(&mut machine, now);
        let done = work(&mut machine);
        self.publish(&machine.breaker);
        done
    }

    fn tell_successes(&self, machine: &mut Machine, now: Time) {
        for batch in self.stripes.drain() {
            tell(&mut machine.breaker, batch, self.near(now));
        }
    }

    fn near(&self, now: Time) -> u64 {
        now.as_micros() / self.slice.load(Ordering::Relaxed)
    }

    fn tune(&self, spec: &BreakerSpec) {
        let slow = spec.slow_call_threshold.map_or(u64::MAX, |slow| slow.as_micros() as u64);
        self.slow.store(slow, Ordering::Relaxed);
        self.slice.store(slice_micros(spec.sampling_window), Ordering::Relaxed);
        self.present_until.store(0, Ordering::Relaxed);
        self.present.store(0, Ordering::Relaxed);
    }

    fn publish(&self, breaker: &Breaker) {
        let says = match breaker.phase() {
            Phase::Closed if breaker.admits_all() => CLOSED,
            Phase::Open if breaker.forced().is_none() => OPEN,
            _ => ASK,
        };
        self.until.store(breaker.until().as_micros(), Ordering::Relaxed);
        self.gate.store(breaker.epoch() << GATE_BITS | says, Ordering::Release);
    }
}

fn tell(breaker: &mut Breaker, batch: Batch, near: u64) {
    let (epoch, slice) = (breaker.epoch(), batch.slice(near));
    // A slice far ahead was counted in the slices of another window, just before that changed: it means nothing now,
    // and would carry the present window off into the future.
    let of_this_window = slice <= near.saturating_add(1);
    if batch.belongs_to(epoch) && of_this_window {
        breaker.record_successes(epoch, slice, batch.count);
    }
}

impl Entry for BreakerCell {
    fn worth(&self) -> Worth {
        let now = self.clock.now();
        self.with_machine(now, |machine| {
            let breaker = &mut machine.breaker;
            // A break that is long over is worth no more than what a closed circuit has learned: only a call ends it,
            // and for a dependency that is gone for good there will be none.
            let probed = breaker.inspect(now).probes > 0;
            let refusing = breaker.phase() == Phase::Open && now < breaker.until();
            if refusing || probed || breaker.forced().is_some() {
                Worth::Everything
            } else if breaker.is_fresh(now) {
                Worth::Nothing
            } else {
                Worth::Something
            }
        })
    }
}

#[cfg(all(test, not(phalanx_model)))]
mod tests;

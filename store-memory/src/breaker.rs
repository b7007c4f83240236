//! A breaker that threads share without contention.
//!
//! Closed and open breakers answer from the [`FastPath`], without the lock. Failures, probes, ramps and overrides take the
//! lock, record the successes that the fast path has counted, and publish the new answer. For one thread the decisions
//! are exactly those of the plain [`Breaker`]; a property test compares them.

use std::time::Duration;

use parking_lot::Mutex;

use phalanx_core::breaker::{
    Breaker, BreakerSpec, BreakerView, FastAnswer, FastPath, Override, Phase, Recorded, Sample, Successes, Ticket,
    Transition,
};
use phalanx_core::clock::{Clock, Time};
use phalanx_core::rejection::Source;
use phalanx_core::rng::Rng;
use phalanx_core::store::AdmitReply;
use phalanx_core::striped::CacheLine;
use phalanx_core::table::{Entry, Retention};

/// The breaker of one key.
#[derive(Debug)]
pub struct BreakerCell {
    fast_path: FastPath,
    clock: Clock,
    rng: Rng,
    machine: CacheLine<Mutex<Machine>>,
}

#[derive(Debug)]
struct Machine {
    breaker: Breaker,
    spec: BreakerSpec,
}

impl BreakerCell {
    /// Creates a closed breaker without history.
    pub fn new(clock: Clock, spec: &BreakerSpec, rng: Rng) -> Self {
        let breaker = Breaker::new(clock.now(), spec);
        Self::over(clock, spec, rng, breaker)
    }

    /// Creates a breaker that continues from an existing state.
    pub fn over(clock: Clock, spec: &BreakerSpec, rng: Rng, breaker: Breaker) -> Self {
        let machine = CacheLine(Mutex::new(Machine { breaker, spec: spec.clone() }));
        let cell = Self { fast_path: FastPath::new(spec), clock, rng, machine };
        cell.publish(&cell.machine.0.lock().breaker);
        cell
    }

    /// Takes over another spec.
    pub fn retune(&self, spec: &BreakerSpec) {
        let mut machine = self.machine.0.lock();
        if machine.spec == *spec {
            return;
        }
        self.record_successes(&mut machine, self.clock.now());
        machine.spec = spec.clone();
        machine.breaker.retune(spec);
        self.fast_path.retune(spec);
        self.publish(&machine.breaker);
    }

    /// Admits or rejects a call while closed or open; none if [`BreakerCell::admit`] has to be asked.
    #[inline]
    pub fn admit_now(&self, now: Time) -> Option<AdmitReply> {
        let admission = self.fast_path.admit(now)?;
        Some(AdmitReply { admission, source: Source::Local })
    }

    /// Records the outcome of an admitted call.
    #[inline]
    pub fn record(&self, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        match self.fast_path.record(now, ticket, sample) {
            Recorded::Done => None,
            Recorded::Flushed(successes) => {
                self.flush(successes, now);
                None
            }
            Recorded::Forward => self.record_locked(now, ticket, sample),
        }
    }

    #[cold]
    fn flush(&self, successes: Successes, now: Time) {
        let mut machine = self.machine.0.lock();
        let now = not_before(now, &machine);
        self.record_batch(&mut machine, successes, now);
    }

    #[cold]
    fn record_locked(&self, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        let random = self.rng.unit();
        self.with_machine(now, |Machine { breaker, spec }, now| breaker.record(now, spec, ticket, sample, random))
    }

    /// Reports a quantile of the latency.
    pub fn observe_quantile(&self, now: Time, value: Option<Duration>) -> Option<Transition> {
        let random = self.rng.unit();
        self.with_machine(now, |Machine { breaker, spec }, now| breaker.observe_quantile(now, spec, value, random))
    }

    /// Sets or releases an override.
    pub fn force(&self, overridden: Option<Override>) {
        self.force_until(overridden, Time::NEVER);
    }

    /// Sets an override that ends by itself, or releases one.
    pub fn force_until(&self, overridden: Option<Override>, ends: Time) {
        let now = self.clock.now();
        self.with_machine(now, |machine, _| machine.breaker.force_until(overridden, ends));
    }

    /// Closes the breaker and forgets its history.
    pub fn reset(&self, now: Time) -> Option<Transition> {
        self.with_machine(now, |Machine { breaker, spec }, now| breaker.reset(now, spec))
    }

    /// Returns the breaker's state.
    pub fn inspect(&self, now: Time) -> BreakerView {
        self.with_machine(now, |machine, now| machine.breaker.inspect(now))
    }

    /// Returns the phase and the override, without recording counted successes first.
    pub fn glance(&self) -> (Phase, Option<Override>) {
        let machine = self.machine.0.lock();
        (machine.breaker.phase(), machine.breaker.overridden())
    }

    /// Admits or rejects a call in any state. Returns the change of phase that the call caused, if any.
    #[cold]
    pub fn admit(&self, now: Time) -> (AdmitReply, Option<Transition>) {
        self.with_machine(now, |Machine { breaker, spec }, now| {
            let (admission, transition) = breaker.admit(now, spec);
            let source = match breaker.overridden() {
                None => Source::Local,
                Some(Override::MetricsOnly) => Source::Shadow,
                Some(_) => Source::Forced,
            };
            (AdmitReply { admission, source }, transition)
        })
    }

    fn with_machine<T>(&self, now: Time, work: impl FnOnce(&mut Machine, Time) -> T) -> T {
        let mut machine = self.machine.0.lock();
        let now = not_before(now, &machine);
        self.record_successes(&mut machine, now);
        let done = work(&mut machine, now);
        self.publish(&machine.breaker);
        done
    }

    fn record_successes(&self, machine: &mut Machine, now: Time) {
        for successes in self.fast_path.drain(now) {
            self.record_batch(machine, successes, now);
        }
    }

    fn record_batch(&self, Machine { breaker, spec }: &mut Machine, successes: Successes, now: Time) {
        let (epoch, near) = (breaker.epoch(), self.fast_path.slice_of(now));
        // A slice far ahead was numbered by the slices of another window, just before that changed. Recording it would
        // move the window into the future.
        let of_this_window = successes.slice <= near.saturating_add(1);
        if successes.belong_to(epoch) && of_this_window {
            breaker.record_successes(now, spec, epoch, successes.slice, successes.count);
        }
    }

    fn publish(&self, breaker: &Breaker) {
        let answer = match breaker.phase() {
            Phase::Closed if breaker.admits_all() => FastAnswer::Closed,
            Phase::Open if breaker.overridden().is_none() => FastAnswer::Open(breaker.until()),
            _ => FastAnswer::Ask,
        };
        self.fast_path.publish(breaker.epoch(), answer);
    }
}

/// A thread that read the clock and then waited for the lock has an old reading. The clock of one process never steps
/// back, but the breaker would take the old reading for a step back.
fn not_before(now: Time, machine: &Machine) -> Time {
    now.max(machine.breaker.at())
}

impl Entry for BreakerCell {
    fn retention(&self) -> Retention {
        self.with_machine(self.clock.now(), |machine, now| {
            let breaker = &mut machine.breaker;
            // A breaker whose break is over rejects nothing, so it is not pinned: only a call ends the break, and for a
            // dependency that is gone for good there will be none.
            let probed = breaker.inspect(now).probes > 0;
            let rejecting = breaker.phase() == Phase::Open && now < breaker.until();
            if rejecting || probed || breaker.overridden().is_some() {
                Retention::Pinned
            } else if breaker.is_fresh(now) {
                Retention::Disposable
            } else {
                Retention::Relearnable
            }
        })
    }
}

#[cfg(all(test, not(phalanx_model)))]
mod tests;

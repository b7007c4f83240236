//! A circuit that threads share without queueing.
//!
//! The machine stands behind a lock, but in its two common states nobody needs it: the [`FastPath`] answers.
//!
//! Bad news, probes, ramps and operators' words take the lock, tell the machine first what the stripes hold, and
//! publish its new state. For one thread the answers are exactly the bare machine's (a property test says so).

use std::time::Duration;

use parking_lot::Mutex;

use phalanx_core::breaker::{Breaker, BreakerSpec, BreakerView, Override, Phase, Sample, Ticket, Transition};
use phalanx_core::clock::{Clock, Time};
use phalanx_core::rejection::Source;
use phalanx_core::rng::Rng;
use phalanx_core::store::AdmitReply;
use phalanx_core::table::{Entry, Retention};

use phalanx_core::breaker::{FastAnswer, FastPath, Recorded, Successes};
use phalanx_core::cache_line::CacheLine;

/// One key's circuit.
#[derive(Debug)]
pub struct BreakerCell {
    front: FastPath,
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
    /// A closed circuit that has seen nothing.
    pub fn new(clock: Clock, spec: &BreakerSpec, rng: Rng) -> Self {
        let breaker = Breaker::new(clock.now(), spec);
        Self::over(clock, spec, rng, breaker)
    }

    /// A circuit that goes on where a machine stands.
    pub fn over(clock: Clock, spec: &BreakerSpec, rng: Rng, breaker: Breaker) -> Self {
        let machine = CacheLine(Mutex::new(Machine { breaker, spec: spec.clone() }));
        let cell = Self { front: FastPath::new(spec), clock, rng, machine };
        cell.publish(&cell.machine.0.lock().breaker);
        cell
    }

    /// Follows another spec from now on.
    pub fn retune(&self, spec: &BreakerSpec) {
        let mut machine = self.machine.0.lock();
        if machine.spec == *spec {
            return;
        }
        self.tell_successes(&mut machine, self.clock.now());
        let old = std::mem::replace(&mut machine.spec, spec.clone());
        machine.breaker.retune(&old, spec);
        self.front.tune(spec);
        self.publish(&machine.breaker);
    }

    /// The answer of the two common states; none if the machine has to be asked.
    #[inline]
    pub fn admit_now(&self, now: Time) -> Option<AdmitReply> {
        let admission = self.front.admit(now)?;
        Some(AdmitReply { admission, source: Source::Local })
    }

    /// Records what became of an admitted call.
    #[inline]
    pub fn record(&self, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        match self.front.record(now, ticket, sample) {
            Recorded::Here => None,
            Recorded::HandedOver(successes) => {
                self.hand_over(successes, now);
                None
            }
            Recorded::NotHere => self.record_by_machine(now, ticket, sample),
        }
    }

    #[cold]
    fn hand_over(&self, successes: Successes, now: Time) {
        let mut machine = self.machine.0.lock();
        let now = not_before(now, &machine);
        self.tell(&mut machine, successes, now);
    }

    #[cold]
    fn record_by_machine(&self, now: Time, ticket: Ticket, sample: Sample) -> Option<Transition> {
        let luck = self.rng.unit();
        self.with_machine(now, |Machine { breaker, spec }, now| breaker.record(now, spec, ticket, sample, luck))
    }

    /// Tells the latency's quantile.
    pub fn observe_quantile(&self, now: Time, value: Option<Duration>) -> Option<Transition> {
        let luck = self.rng.unit();
        self.with_machine(now, |Machine { breaker, spec }, now| breaker.observe_quantile(now, spec, value, luck))
    }

    /// Puts an operator's word above the phase, or takes it away.
    pub fn force(&self, overridden: Option<Override>) {
        let now = self.clock.now();
        self.with_machine(now, |machine, _| machine.breaker.force(overridden));
    }

    /// Back to a closed circuit that has seen nothing.
    pub fn reset(&self, now: Time) -> Option<Transition> {
        self.with_machine(now, |Machine { breaker, spec }, now| breaker.reset(now, spec))
    }

    /// What can be seen from outside.
    pub fn inspect(&self, now: Time) -> BreakerView {
        self.with_machine(now, |machine, now| machine.breaker.inspect(now))
    }

    /// The phase, and the operator's word above it, without telling the machine anything.
    pub fn glance(&self) -> (Phase, Option<Override>) {
        let machine = self.machine.0.lock();
        (machine.breaker.phase(), machine.breaker.overridden())
    }

    /// Asks the machine.
    #[cold]
    pub fn admit(&self, now: Time) -> (AdmitReply, Option<Transition>) {
        self.with_machine(now, |Machine { breaker, spec }, now| {
            let (admission, transition) = breaker.admit(now, spec);
            let source = match breaker.overridden() {
                None => Source::Local,
                Some(Override::MetricsOnly) => Source::Shadow,
                Some(_) => Source::Override,
            };
            (AdmitReply { admission, source }, transition)
        })
    }

    fn with_machine<T>(&self, now: Time, work: impl FnOnce(&mut Machine, Time) -> T) -> T {
        let mut machine = self.machine.0.lock();
        let now = not_before(now, &machine);
        self.tell_successes(&mut machine, now);
        let done = work(&mut machine, now);
        self.publish(&machine.breaker);
        done
    }

    fn tell_successes(&self, machine: &mut Machine, now: Time) {
        for successes in self.front.drain(now) {
            self.tell(machine, successes, now);
        }
    }

    fn tell(&self, Machine { breaker, spec }: &mut Machine, successes: Successes, now: Time) {
        let (epoch, near) = (breaker.epoch(), self.front.slice_of(now));
        // A slice far ahead was counted in the slices of another window, just before that changed: it means nothing now,
        // and would carry the present window off into the future.
        let of_this_window = successes.slice <= near.saturating_add(1);
        if successes.belong_to(epoch) && of_this_window {
            breaker.record_successes(now, spec, epoch, successes.slice, successes.count);
        }
    }

    fn publish(&self, breaker: &Breaker) {
        let shown = match breaker.phase() {
            Phase::Closed if breaker.admits_all() => FastAnswer::Closed,
            Phase::Open if breaker.overridden().is_none() => FastAnswer::Open(breaker.until()),
            _ => FastAnswer::Ask,
        };
        self.front.show(breaker.epoch(), shown);
    }
}

/// A thread that read the clock and then waited for the lock comes with a moment that is past. The clock of one process
/// never steps back, but the machine would take it for one that does.
fn not_before(now: Time, machine: &Machine) -> Time {
    now.max(machine.breaker.at())
}

impl Entry for BreakerCell {
    fn retention(&self) -> Retention {
        self.with_machine(self.clock.now(), |machine, now| {
            let breaker = &mut machine.breaker;
            // A break that is long over is worth no more than what a closed circuit has learned: only a call ends it,
            // and for a dependency that is gone for good there will be none.
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

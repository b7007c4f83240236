//! The circuit breaker: stop calling what does not answer, try it out carefully, come back.
//!
//! ```text
//!                     a trip condition holds
//!        ┌────────┐ ───────────────────────────► ┌──────┐ ◄──────────────┐
//!   ┌──► │ CLOSED │                              │ OPEN │                │ a probe fails
//!   │    └────────┘                              └──────┘                │
//!   │  (ramp, if any)                                │ the break is over │
//!   │                                                ▼                   │
//!   │   success_threshold probes succeed  ┌───────────┐             │
//!   └───────────────────────────────────────── │ HALF-OPEN │ ────────────┘
//!                                              └───────────┘
//! ```
//!
//! A pure machine: it is given the time, it keeps no clock, no lock and no randomness; stores wrap it, and the Lua
//! scripts are its port. What it promises:
//!
//! * every change of phase starts a new **epoch**; a ticket of an earlier epoch changes nothing, so a late answer
//!   neither closes, reopens nor prolongs anything;
//! * in half-open at most `half_open_max_calls` calls hold a **lease**; a lease that was given back, or ran out,
//!   frees its place, so a lost probe cannot wedge the circuit;
//! * only bad news trips: successes are counted, they never open a circuit. (So stores may count them in batches.)
//! * a clock that steps back (a server's can) prolongs a break by at most one more; see `anchor`.

mod anchor;
mod fast_path;
mod ramp;
mod spec;
mod successes;
mod types;

use std::time::Duration;

pub use self::fast_path::{FastAnswer, FastPath, Recorded, Successes};
pub use self::spec::{BreakerSpec, CountBy, LatencyTrip, RampSpec};
pub use self::types::{Admission, BreakerView, Override, Phase, Sample, Seen, Ticket, Transition};
use crate::clock::Time;
use crate::estimate::ring::Ring;
use crate::kind::Outcome;
use crate::rejection::RejectionCode;

/// Trips in close succession that are told apart. A break has long reached its longest by then.
const MAX_ESCALATION: u32 = 1_000;

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: u64,
    expires: Time,
}

/// The machine of one circuit.
#[derive(Clone, Debug)]
pub struct Breaker {
    /// The latest moment at which something changed.
    at: Time,
    phase: Phase,
    overridden: Option<Override>,
    epoch: u64,
    /// When the phase began.
    since: Time,
    /// When the break ends; meaningful while open.
    until: Time,
    /// How often the next break is lengthened.
    escalation: u32,
    window: Ring<Seen>,
    streak: u32,
    /// Since when the latency's quantile has been over its threshold.
    slow_since: Option<Time>,
    leases: Vec<Lease>,
    next_lease: u64,
    proven: u32,
    /// Calls that asked during the present step of the ramp.
    ramp: ramp::Ramp,
}

impl Breaker {
    /// A closed circuit that has seen nothing.
    pub fn new(now: Time, spec: &BreakerSpec) -> Self {
        Self {
            at: now,
            phase: Phase::Closed,
            overridden: None,
            epoch: 1,
            since: now,
            until: now,
            escalation: 0,
            window: Ring::new(spec.sampling_window),
            streak: 0,
            slow_since: None,
            leases: Vec::new(),
            next_lease: 1,
            proven: 0,
            ramp: ramp::Ramp::default(),
        }
    }

    /// Asks for a call to pass. A change of phase (the break is over) is told beside the answer.
    pub fn admit(&mut self, now: Time, spec: &BreakerSpec) -> (Admission, Option<Transition>) {
        let now = self.anchor(now, spec);
        let ticket = Ticket { epoch: self.epoch, lease: None };
        match self.overridden {
            Some(Override::Open) => {
                return (rejected(RejectionCode::ForcedOpen), None);
            }
            Some(Override::Closed | Override::Disabled) => return (Admission::Admitted(ticket), None),
            Some(Override::MetricsOnly) | None => {}
        }
        let transition = self.end_break(now);
        let admission = match self.phase {
            Phase::Closed => self.pass(now, spec, ticket),
            Phase::HalfOpen => self.lease(now, spec),
            Phase::Open => Admission::Rejected { code: RejectionCode::CircuitOpen, until: self.until },
        };
        let admission = match admission {
            // Outcomes without a lease count in a closed circuit only, so this one reports and decides nothing.
            Admission::Rejected { .. } if self.overridden == Some(Override::MetricsOnly) => Admission::Admitted(ticket),
            decided => decided,
        };
        (admission, transition)
    }

    /// Records what became of an admitted call. `luck` in 0.0..1.0 places a jittered break.
    pub fn record(
        &mut self,
        now: Time,
        spec: &BreakerSpec,
        ticket: Ticket,
        sample: Sample,
        luck: f64,
    ) -> Option<Transition> {
        let now = self.anchor(now, spec);
        if self.overridden == Some(Override::Disabled) || ticket.epoch != self.epoch {
            return None;
        }
        match self.phase {
            Phase::Closed => self.count(now, spec, sample, luck),
            Phase::HalfOpen => self.settle(now, spec, ticket.lease?, sample, luck),
            Phase::Open => None,
        }
    }

    /// Records successes of the present epoch that were counted elsewhere, in the slice they fell into.
    pub fn record_successes(&mut self, now: Time, spec: &BreakerSpec, epoch: u64, slice: u64, count: u64) {
        let now = self.anchor(now, spec);
        let counted = self.phase == Phase::Closed && self.overridden != Some(Override::Disabled);
        if count == 0 || epoch != self.epoch || !counted {
            return;
        }
        self.at = now;
        self.streak = 0;
        if let Some(seen) = self.window.slice(slice) {
            seen.calls += count;
        }
    }

    /// Tells the latency's quantile. Over the threshold for long enough, it trips a closed circuit.
    pub fn observe_quantile(
        &mut self,
        now: Time,
        spec: &BreakerSpec,
        value: Option<Duration>,
        luck: f64,
    ) -> Option<Transition> {
        let trip = spec.latency_trip()?;
        let now = self.anchor(now, spec);
        // For one window after it closed, the digest still holds what it saw before the trip.
        let stale = self.epoch > 1 && now.since(self.since) < spec.sampling_window;
        let overruled = stale || matches!(self.overridden, Some(Override::Closed | Override::Disabled));
        if overruled || self.phase != Phase::Closed || value.is_none_or(|value| value <= trip.threshold) {
            if self.slow_since.take().is_some() {
                self.at = now;
            }
            return None;
        }
        let since = *self.slow_since.get_or_insert_with(|| {
            self.at = now;
            now
        });
        (now.since(since) >= trip.lasting).then(|| self.open(now, spec, luck)).flatten()
    }

    /// Puts an operator's word above the phase, or takes it away.
    pub fn force(&mut self, overridden: Option<Override>) {
        self.overridden = overridden;
    }

    /// Back to a closed circuit that has seen nothing. Tickets that are out no longer count; an operator's word stays.
    pub fn reset(&mut self, now: Time, spec: &BreakerSpec) -> Option<Transition> {
        let now = self.anchor(now, spec);
        let was = self.phase;
        let transition = self.enter(now, spec, Phase::Closed, None);
        self.escalation = 0;
        self.ramp = ramp::Ramp::over();
        (was != Phase::Closed).then_some(transition)
    }

    /// Takes over another spec. The phase stays; counts over a window of another length mean nothing and go, and neither
    /// a break nor a lease lasts longer than one by the new spec can.
    pub fn retune(&mut self, old: &BreakerSpec, new: &BreakerSpec) {
        self.until = self.until.min(self.since.after(longest_break(new)));
        for lease in &mut self.leases {
            lease.expires = lease.expires.min(self.at.after(new.lease()));
        }
        if old.sampling_window != new.sampling_window {
            self.window.clear(new.sampling_window);
        }
    }

    /// What can be seen from outside. Changes nothing but which slices are current.
    pub fn inspect(&mut self, now: Time) -> BreakerView {
        let (seen, left, now) = self.seen_from(now);
        BreakerView {
            phase: self.phase,
            overridden: self.overridden,
            epoch: self.epoch,
            calls: seen.calls,
            failures: seen.failures,
            slow: seen.slow,
            streak: self.streak,
            probes: self.leases.iter().filter(|lease| lease.expires > now).count() as u32,
            break_left: (self.phase == Phase::Open).then_some(left),
            ramping: !self.ramp.is_over(),
        }
    }

    /// How often the next break is lengthened.
    pub const fn escalation(&self) -> u32 {
        self.escalation
    }

    /// Where it stands.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// The present epoch.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// When the break ends, while open.
    pub const fn until(&self) -> Time {
        self.until
    }

    /// Whether every call passes without asking: closed, no ramp under way, no operator's word.
    pub fn admits_all(&self) -> bool {
        self.phase == Phase::Closed && self.overridden.is_none() && self.ramp.is_over()
    }

    /// The operator's word, if any.
    pub const fn overridden(&self) -> Option<Override> {
        self.overridden
    }

    /// Whether it is as good as one that was never used: closed, nothing in its window, nothing learned.
    pub fn is_fresh(&mut self, now: Time) -> bool {
        let seen = self.window.sum(now);
        self.admits_all() && seen.calls == 0 && self.streak == 0 && self.escalation == 0
    }

    fn count(&mut self, now: Time, spec: &BreakerSpec, sample: Sample, luck: f64) -> Option<Transition> {
        if matches!(sample.outcome, Outcome::Neutral | Outcome::Cancelled) {
            return None;
        }
        let failed = sample.outcome == Outcome::Failure;
        let slow = spec.is_slow(sample.latency);
        self.at = now;
        let seen = self.window.at(now);
        seen.calls += 1;
        seen.failures += u64::from(failed);
        seen.slow += u64::from(slow);
        self.streak = if failed { self.streak.saturating_add(1) } else { 0 };
        let trips = (failed || slow) && self.must_trip(now, spec);
        if trips && self.overridden != Some(Override::Closed) {
            return self.open(now, spec, luck);
        }
        None
    }

    fn must_trip(&mut self, now: Time, spec: &BreakerSpec) -> bool {
        if spec.consecutive_failures.is_some_and(|limit| self.streak >= limit) {
            return true;
        }
        let seen = self.window.sum(now);
        let reached = |count: u64, ratio: Option<f64>| {
            ratio.is_some_and(|ratio| count > 0 && count as f64 >= ratio * seen.calls as f64)
        };
        seen.calls >= u64::from(spec.min_throughput)
            && (reached(seen.failures, spec.failure_ratio) || reached(seen.slow, spec.slow_call_ratio))
    }

    fn settle(&mut self, now: Time, spec: &BreakerSpec, lease: u64, sample: Sample, luck: f64) -> Option<Transition> {
        // A lease that ran out and was given to somebody else is no longer ours to settle.
        let place = self.leases.iter().position(|held| held.id == lease)?;
        self.leases.swap_remove(place);
        self.at = now;
        let too_slow = spec.slow_call_ratio.is_some() && spec.is_slow(sample.latency);
        match sample.outcome {
            Outcome::Neutral | Outcome::Cancelled => None,
            Outcome::Success if !too_slow => {
                self.proven += 1;
                (self.proven >= spec.success_threshold).then(|| self.enter(now, spec, Phase::Closed, None))
            }
            Outcome::Success | Outcome::Failure => self.open(now, spec, luck),
        }
    }

    fn lease(&mut self, now: Time, spec: &BreakerSpec) -> Admission {
        let live = |lease: &Lease| lease.expires > now;
        if self.leases.iter().filter(|lease| live(lease)).count() >= spec.half_open_max_calls as usize {
            return rejected(RejectionCode::ProbeQuota);
        }
        // Forgotten only when somebody takes their place: until then a late answer still counts.
        self.leases.retain(live);
        self.at = now;
        let id = self.next_lease;
        self.next_lease += 1;
        self.leases.push(Lease { id, expires: now.after(spec.lease()) });
        Admission::Admitted(Ticket { epoch: self.epoch, lease: Some(id) })
    }

    fn pass(&mut self, now: Time, spec: &BreakerSpec, ticket: Ticket) -> Admission {
        if self.ramp.is_over() {
            return Admission::Admitted(ticket);
        }
        self.at = now;
        let passes = self.ramp.admits(now, self.since, spec);
        if passes { Admission::Admitted(ticket) } else { rejected(RejectionCode::ProbeQuota) }
    }

    fn end_break(&mut self, now: Time) -> Option<Transition> {
        (self.phase == Phase::Open && now >= self.until).then(|| self.begin(now, Phase::HalfOpen))
    }

    fn open(&mut self, now: Time, spec: &BreakerSpec, luck: f64) -> Option<Transition> {
        // A circuit that held for a whole window since it closed has earned a fresh start.
        let held = self.phase == Phase::Closed && now.since(self.since) >= spec.sampling_window;
        let escalation = if held { 0 } else { self.escalation };
        let break_for = break_duration(spec, escalation, luck);
        let transition = self.enter(now, spec, Phase::Open, Some(break_for));
        self.escalation = (escalation + 1).min(MAX_ESCALATION);
        self.until = now.after(break_for);
        Some(transition)
    }

    fn enter(&mut self, now: Time, spec: &BreakerSpec, phase: Phase, break_for: Option<Duration>) -> Transition {
        let seen = self.window.sum(now);
        self.window.clear(spec.sampling_window);
        if phase == Phase::Closed {
            self.ramp = ramp::Ramp::starting(spec);
        }
        Transition { break_for, seen, ..self.begin(now, phase) }
    }

    fn begin(&mut self, now: Time, phase: Phase) -> Transition {
        let from = std::mem::replace(&mut self.phase, phase);
        self.epoch += 1;
        self.at = now;
        self.since = now;
        self.streak = 0;
        self.slow_since = None;
        self.proven = 0;
        self.leases.clear();
        Transition { from, to: phase, epoch: self.epoch, break_for: None, seen: Seen::default() }
    }
}

const fn rejected(code: RejectionCode) -> Admission {
    Admission::Rejected { code, until: Time::NEVER }
}

/// The break after `escalation` trips in close succession. Multiplied step by step, as the Lua port does, so that both
/// round alike.
fn break_duration(spec: &BreakerSpec, escalation: u32, luck: f64) -> Duration {
    let longest = spec.max_break_duration.max(spec.break_duration).as_micros() as f64;
    let mut length = spec.break_duration.as_micros() as f64;
    let growing = spec.break_multiplier > 1.0;
    for _ in 0..if growing { escalation } else { 0 } {
        length = (length * spec.break_multiplier).min(longest);
        if length >= longest {
            break;
        }
    }
    Duration::from_micros((length * (1.0 + spec.break_jitter * luck)) as u64)
}

/// The longest break that a spec can make.
fn longest_break(spec: &BreakerSpec) -> Duration {
    let longest = spec.max_break_duration.max(spec.break_duration).as_micros() as f64;
    Duration::from_micros((longest * (1.0 + spec.break_jitter)) as u64)
}

#[cfg(test)]
mod tests;

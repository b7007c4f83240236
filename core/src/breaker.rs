//! The circuit breaker: rejects calls to a dependency that fails, probes it after a break, and closes when it recovers.
//!
//! ```text
//!                     a trip condition holds
//!        ┌────────┐ ───────────────────────────► ┌──────┐ ◄──────────────┐
//!   ┌──► │ CLOSED │                              │ OPEN │                │ a probe fails
//!   │    └────────┘                              └──────┘                │
//!   │  (ramp, if any)                                │ the break is over │
//!   │                                                ▼                   │
//!   │      success_threshold probes succeed    ┌───────────┐             │
//!   └───────────────────────────────────────── │ HALF-OPEN │ ────────────┘
//!                                              └───────────┘
//! ```
//!
//! [`Breaker`] is a state machine without a clock, a lock or random numbers of its own: they are arguments. Stores wrap it,
//! and the Lua scripts are its port. It guarantees:
//!
//! * Every change of phase starts a new **epoch**. A ticket of an earlier epoch changes nothing, so a late outcome
//!   neither closes, reopens nor prolongs anything.
//! * While half-open, at most `half_open_max_calls` calls hold a **lease**. A lease that was given back or has expired
//!   makes room for another probe, so a lost probe cannot block the breaker.
//! * Only failures and slow calls trip. Successes are counted and never open a breaker, so stores may record them in
//!   batches.
//! * A clock that steps back (a server's can) prolongs a break by at most its own length; see `anchor.rs`.

mod anchor;
mod fast_path;
mod ramp;
mod spec;
mod successes;
mod types;
mod windows;

use std::time::Duration;

pub use self::fast_path::{FastAnswer, FastPath, Recorded, Successes};
pub use self::spec::{BreakerSpec, CountBy, LatencyTrip, RampSpec};
pub use self::types::{
    Admission, BreakerView, LastState, Override, OverrideRequest, Phase, Sample, Seen, Ticket, Transition,
};
use crate::clock::{Time, micros};
use crate::estimate::ring::slice_micros;
use crate::kind::Outcome;
use crate::rejection::RejectionCode;

/// The most probes at a time, whatever a spec allows: a store has to read all of them at every probe.
pub(crate) const MAX_PROBES: u32 = 100;

/// The most trips in close succession that lengthen a break. By then it has long reached its maximum.
const MAX_ESCALATION: u32 = 1_000;

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: u64,
    expires: Time,
}

/// The state machine of one breaker.
#[derive(Clone, Debug)]
pub struct Breaker {
    /// The latest time at which something changed.
    at: Time,
    phase: Phase,
    overridden: Option<Override>,
    /// When the override ends by itself.
    override_ends: Time,
    epoch: u64,
    /// When the phase began.
    since: Time,
    /// When the break ends; meaningful while open.
    until: Time,
    /// The number of times that the next break is lengthened.
    escalation: u32,
    windows: windows::Windows,
    streak: u32,
    /// When the first failure of the streak ended; meaningful if there is one.
    streak_since: Time,
    /// Since when the quantile of the latency has been over its threshold, and when that was last observed.
    slow: Option<(Time, Time)>,
    leases: Vec<Lease>,
    next_lease: u64,
    /// Probes of this epoch that succeeded.
    succeeded_probes: u32,
    ramp: ramp::Ramp,
}

impl Breaker {
    /// Creates a closed breaker without history.
    pub fn new(now: Time, spec: &BreakerSpec) -> Self {
        Self {
            at: now,
            phase: Phase::Closed,
            overridden: None,
            override_ends: Time::NEVER,
            epoch: 1,
            since: now,
            until: now,
            escalation: 0,
            windows: windows::Windows::new(spec.sampling_window),
            streak: 0,
            streak_since: now,
            slow: None,
            leases: Vec::new(),
            next_lease: 1,
            succeeded_probes: 0,
            ramp: ramp::Ramp::default(),
        }
    }

    /// Admits or rejects a call. Returns a change of phase too, if the break is over.
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
            // Without a lease its outcome counts only in a closed breaker, so this call cannot settle a probe.
            Admission::Rejected { .. } if self.overridden == Some(Override::MetricsOnly) => Admission::Admitted(ticket),
            decided => decided,
        };
        (admission, transition)
    }

    /// Records the outcome of an admitted call. `random`, in 0.0..1.0, decides the jitter of a break.
    pub fn record(
        &mut self,
        now: Time,
        spec: &BreakerSpec,
        ticket: Ticket,
        sample: Sample,
        random: f64,
    ) -> Option<Transition> {
        let now = self.anchor(now, spec);
        if self.overridden == Some(Override::Disabled) || ticket.epoch != self.epoch {
            return None;
        }
        match self.phase {
            Phase::Closed => self.count(now, spec, sample, random),
            Phase::HalfOpen => self.settle(now, spec, ticket.lease?, sample, random),
            Phase::Open => None,
        }
    }

    /// Records successes of the current epoch that were counted elsewhere, by slice of the window. Those of a slice that ended
    /// before the first of the failures in a row do not end these.
    pub fn record_successes(&mut self, now: Time, spec: &BreakerSpec, epoch: u64, slice: u64, count: u64) {
        let now = self.anchor(now, spec);
        let counted = self.phase == Phase::Closed && self.overridden != Some(Override::Disabled);
        if count == 0 || epoch != self.epoch || !counted {
            return;
        }
        self.at = now;
        // They may have been counted before failures that were recorded first.
        let end_of_slice = slice.saturating_add(1).saturating_mul(slice_micros(spec.sampling_window)) - 1;
        if now.min(Time::from_micros(end_of_slice)) >= self.streak_since {
            self.streak = 0;
        }
        self.windows.count_in(slice, Seen { calls: count, failures: 0, slow: 0 });
    }

    /// Reports a quantile of the latency. Over the threshold for long enough, it trips a closed breaker. An unknown quantile
    /// changes nothing, and observations that are further apart than a window do not belong to one period.
    pub fn observe_quantile(
        &mut self,
        now: Time,
        spec: &BreakerSpec,
        value: Option<Duration>,
        random: f64,
    ) -> Option<Transition> {
        let (trip, value) = (spec.latency_trip()?, value?);
        let now = self.anchor(now, spec);
        // For one window after the breaker closed, the digest still holds latencies from before the trip.
        let stale = self.epoch > 1 && now.since(self.since) < spec.sampling_window;
        let ignored = stale || matches!(self.overridden, Some(Override::Closed | Override::Disabled));
        if ignored || self.phase != Phase::Closed || value <= trip.threshold {
            if self.slow.take().is_some() {
                self.at = now;
            }
            return None;
        }
        let (since, seen) = match self.slow.filter(|(_, seen)| now.since(*seen) <= spec.sampling_window) {
            Some((since, seen)) if micros(now.since(seen)) < slice_micros(spec.sampling_window) => (since, seen),
            Some((since, _)) => (since, now),
            None => (now, now),
        };
        if self.slow != Some((since, seen)) {
            self.at = now;
            self.slow = Some((since, seen));
        }
        (now.since(since) >= trip.lasting).then(|| self.open(now, spec, random)).flatten()
    }

    /// Sets or releases an override.
    pub fn force(&mut self, overridden: Option<Override>) {
        self.force_until(overridden, Time::NEVER);
    }

    /// Sets an override that ends by itself, or releases one.
    pub fn force_until(&mut self, overridden: Option<Override>, ends: Time) {
        self.overridden = overridden;
        self.override_ends = ends;
    }

    /// Closes the breaker and forgets its history. Outstanding tickets no longer count; an override stays.
    pub fn reset(&mut self, now: Time, spec: &BreakerSpec) -> Option<Transition> {
        let now = self.anchor(now, spec);
        let was = self.phase;
        let transition = self.enter(now, spec, Phase::Closed, None);
        self.escalation = 0;
        self.ramp = ramp::Ramp::over();
        (was != Phase::Closed).then_some(transition)
    }

    /// Takes over another spec. The phase and the counts stay, and neither a break nor a lease lasts longer than the new
    /// spec allows.
    pub fn retune(&mut self, new: &BreakerSpec) {
        self.until = self.until.min(self.since.after(longest_break(new)));
        for lease in &mut self.leases {
            lease.expires = lease.expires.min(self.at.after(new.lease()));
        }
        self.windows.use_length(new.sampling_window);
    }

    /// Returns the breaker's state. Changes nothing: what has left the window is kept for a longer one.
    pub fn inspect(&self, now: Time) -> BreakerView {
        let (seen, left, now) = self.seen_from(now);
        BreakerView {
            phase: self.phase,
            overridden: self.overridden.filter(|_| now < self.override_ends),
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

    /// Returns the number of times that the next break is lengthened.
    pub const fn escalation(&self) -> u32 {
        self.escalation
    }

    /// Returns the phase.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the current epoch.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns when the break ends; meaningful while open.
    pub const fn until(&self) -> Time {
        self.until
    }

    /// Returns whether every call is admitted: closed, no ramp in progress, no override.
    pub fn admits_all(&self) -> bool {
        self.phase == Phase::Closed && self.overridden.is_none() && self.ramp.is_over()
    }

    /// Returns the override, if one is set.
    pub const fn overridden(&self) -> Option<Override> {
        self.overridden
    }

    /// Returns whether it is as good as new: closed, with an empty window, no streak and no escalation.
    pub fn is_fresh(&self, now: Time) -> bool {
        let seen = self.windows.peek(now);
        self.admits_all() && seen.calls == 0 && self.streak == 0 && self.escalation == 0
    }

    fn count(&mut self, now: Time, spec: &BreakerSpec, sample: Sample, random: f64) -> Option<Transition> {
        if matches!(sample.outcome, Outcome::Neutral | Outcome::Cancelled) {
            return None;
        }
        let failed = sample.outcome == Outcome::Failure;
        let slow = spec.is_slow(sample.latency);
        self.at = now;
        self.windows.count(now, Seen { calls: 1, failures: u64::from(failed), slow: u64::from(slow) });
        if failed && self.streak == 0 {
            self.streak_since = now;
        }
        self.streak = if failed { self.streak.saturating_add(1) } else { 0 };
        let trips = (failed || slow) && self.must_trip(now, spec);
        if trips && self.overridden != Some(Override::Closed) {
            return self.open(now, spec, random);
        }
        None
    }

    fn must_trip(&mut self, now: Time, spec: &BreakerSpec) -> bool {
        if spec.consecutive_failures.is_some_and(|limit| self.streak >= limit) {
            return true;
        }
        let seen = self.windows.sum(now);
        let reached = |count: u64, ratio: Option<f64>| {
            ratio.is_some_and(|ratio| count > 0 && count as f64 >= ratio * seen.calls as f64)
        };
        seen.calls >= u64::from(spec.min_throughput)
            && (reached(seen.failures, spec.failure_ratio) || reached(seen.slow, spec.slow_call_ratio))
    }

    fn settle(&mut self, now: Time, spec: &BreakerSpec, lease: u64, sample: Sample, random: f64) -> Option<Transition> {
        // A lease that expired and was replaced by another is gone: its outcome no longer counts.
        let index = self.leases.iter().position(|held| held.id == lease)?;
        self.leases.swap_remove(index);
        self.at = now;
        let too_slow = spec.slow_call_ratio.is_some() && spec.is_slow(sample.latency);
        match sample.outcome {
            Outcome::Neutral | Outcome::Cancelled => None,
            Outcome::Success if !too_slow => {
                self.succeeded_probes += 1;
                (self.succeeded_probes >= spec.success_threshold).then(|| self.enter(now, spec, Phase::Closed, None))
            }
            Outcome::Success | Outcome::Failure => self.open(now, spec, random),
        }
    }

    fn lease(&mut self, now: Time, spec: &BreakerSpec) -> Admission {
        let live = |lease: &Lease| lease.expires > now;
        let most = spec.half_open_max_calls.min(MAX_PROBES) as usize;
        if self.leases.iter().filter(|lease| live(lease)).count() >= most {
            return rejected(RejectionCode::ProbeQuota);
        }
        // Expired leases are removed only when a new probe replaces them: until then a late outcome still counts.
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
        let passes = self.ramp.admit(now, self.since, spec);
        if passes { Admission::Admitted(ticket) } else { rejected(RejectionCode::ProbeQuota) }
    }

    fn end_break(&mut self, now: Time) -> Option<Transition> {
        (self.phase == Phase::Open && now >= self.until).then(|| self.begin(now, Phase::HalfOpen))
    }

    fn open(&mut self, now: Time, spec: &BreakerSpec, random: f64) -> Option<Transition> {
        // After a whole window in closed state, escalation starts over.
        let held = self.phase == Phase::Closed && now.since(self.since) >= spec.sampling_window;
        let escalation = if held { 0 } else { self.escalation };
        let break_for = break_duration(spec, escalation, random);
        let transition = self.enter(now, spec, Phase::Open, Some(break_for));
        self.escalation = (escalation + 1).min(MAX_ESCALATION);
        self.until = now.after(break_for);
        Some(transition)
    }

    fn enter(&mut self, now: Time, spec: &BreakerSpec, phase: Phase, break_for: Option<Duration>) -> Transition {
        let seen = self.windows.sum(now);
        self.windows.clear(spec.sampling_window);
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
        self.slow = None;
        self.succeeded_probes = 0;
        self.leases.clear();
        Transition { from, to: phase, epoch: self.epoch, break_for: None, seen: Seen::default() }
    }
}

const fn rejected(code: RejectionCode) -> Admission {
    Admission::Rejected { code, until: Time::NEVER }
}

/// Returns the length of the break after `escalation` trips in close succession. Multiplied step by step, as the Lua port
/// does, so that both round alike.
fn break_duration(spec: &BreakerSpec, escalation: u32, random: f64) -> Duration {
    let longest = spec.max_break_duration.max(spec.break_duration).as_micros() as f64;
    let mut length = spec.break_duration.as_micros() as f64;
    let growing = spec.break_multiplier > 1.0;
    for _ in 0..if growing { escalation } else { 0 } {
        length = (length * spec.break_multiplier).min(longest);
        if length >= longest {
            break;
        }
    }
    Duration::from_micros((length * (1.0 + spec.break_jitter * random)) as u64)
}

/// Returns the longest break that a spec allows.
fn longest_break(spec: &BreakerSpec) -> Duration {
    let longest = spec.max_break_duration.max(spec.break_duration).as_micros() as f64;
    Duration::from_micros((longest * (1.0 + spec.break_jitter)) as u64)
}

#[cfg(test)]
mod tests;

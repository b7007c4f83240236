//! AIMD: one slot more for every limit's worth of quick calls, a tenth less when they are slow.
//!
//! ```text
//! a success inside the threshold      limit ← limit + room × increase_step / limit
//! a breach, once per cooldown         limit ← limit × backoff_ratio
//! room = clamp((threshold − latency) / (threshold / 4), 0.1, 1)
//! ```
//!
//! Additive increase and multiplicative decrease is the only pair of linear rules that leads any number of senders to
//! equal shares of what they have in common (Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for
//! Congestion Avoidance", 1989; TCP's, Jacobson 1988). It begins at the most it may be: the user has said that this
//! many are fine.
//!
//! * **A breach** is a completion slower than the threshold, whatever came of it. A failure or a cancelled call that
//!   had already taken too long was slow, or a dependency that hangs until its callers leave would never be found out.
//!   What is quick and no success changes nothing: errors are the breaker's signal.
//! * **With `latency_quantile`** a single completion is no breach; [`Aimd::judge`] is told the quantile instead. Each
//!   back-off opens an epoch: what was measured before says nothing about the smaller limit. For one cooldown after a
//!   breach nothing grows, and not until the next good judgement: that comes soonest to whoever completes the most, and
//!   the large would grow while the small still wait for samples.
//! * **`room`**: the plain rule adds a slot each round trip up to the very threshold and finds out a round trip too
//!   late. Where a fair share is two to four slots that overshoots by a quarter or more and stays there until the
//!   cooldown is over. So the last quarter before the threshold is walked in smaller steps, and never in none: without
//!   breaches shares would not become equal.
//! * **A limit that is not used grows too.** After a back-off a quiet service gets its slots back with its calls
//!   rather than with the next burst, which would find them missing; `max` bounds it, and a breach takes them again.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::limit::Completion;
use super::spec::AdaptiveSpec;
use crate::clock::Time;
use crate::kind::Outcome;

/// The share of the threshold below it in which steps become smaller.
const LAST_STRETCH: f64 = 0.25;

/// What is left of a step right below the threshold.
const SMALLEST_STEP: f64 = 0.1;

/// A limit that was lowered, in whole slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitChange {
    /// Slots before.
    pub from: u32,
    /// Slots now.
    pub to: u32,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Aimd {
    /// With its fraction: that is where successes add up. Always finite and at least 1.
    limit: f64,
    lowered: Option<Time>,
    /// When a quantile was last over the threshold.
    breached: Option<Time>,
    epoch: Time,
}

impl Aimd {
    /// A limit that has seen nothing: `max`.
    pub fn new(spec: &AdaptiveSpec, max: u32) -> Self {
        let mut aimd = Self { limit: f64::from(max), lowered: None, breached: None, epoch: Time::ZERO };
        aimd.retune(spec, max);
        aimd
    }

    /// Learns from one completion; tells if it lowered the limit.
    pub fn observe(&mut self, done: &Completion, spec: &AdaptiveSpec, max: u32) -> Option<LimitChange> {
        self.retune(spec, max);
        self.follow(done.now, spec);
        if done.latency > spec.latency_threshold {
            return match spec.latency_quantile {
                None => self.lower(done.now, spec, max),
                Some(_) => None,
            };
        }
        if done.outcome == Outcome::Success && !within(self.breached, done.now, spec.cooldown) {
            let step = spec.increase_step * room(done.latency, spec.latency_threshold);
            self.set(self.limit + step / self.limit, spec, max);
        }
        None
    }

    /// Learns what the quantile of the completions since [`Aimd::measured_since`] is; none while there are too few to
    /// tell. Tells if it lowered the limit. Matters only with a `latency_quantile`; to be called a few times a second.
    pub fn judge(
        &mut self,
        now: Time,
        quantile: Option<Duration>,
        spec: &AdaptiveSpec,
        max: u32,
    ) -> Option<LimitChange> {
        self.retune(spec, max);
        self.follow(now, spec);
        let quantile = quantile.filter(|quantile| *quantile > spec.latency_threshold)?;
        self.breached = Some(now);
        if within(self.lowered, now, spec.cooldown) {
            return None;
        }
        // What completes in the next moments was begun at the old limit. The quantile is about how long that goes on.
        self.epoch = now.after(quantile.min(spec.cooldown));
        self.lower(now, spec, max)
    }

    /// What completed earlier must not be part of the next judgement. Up to one cooldown ahead of the time.
    pub const fn measured_since(&self) -> Time {
        self.epoch
    }

    /// Slots: a part of one is none.
    pub fn limit(&self) -> u32 {
        // Ten times 0.7 shall be seven.
        (self.limit + 1e-9) as u32
    }

    /// Takes over other bounds. The other methods do so too, but only when something ends.
    pub fn retune(&mut self, spec: &AdaptiveSpec, max: u32) {
        self.set(self.limit, spec, max);
    }

    fn lower(&mut self, now: Time, spec: &AdaptiveSpec, max: u32) -> Option<LimitChange> {
        if within(self.lowered, now, spec.cooldown) {
            return None;
        }
        let from = self.limit();
        self.lowered = Some(now);
        self.set(self.limit * spec.backoff_ratio, spec, max);
        let to = self.limit();
        (to < from).then_some(LimitChange { from, to })
    }

    fn set(&mut self, limit: f64, spec: &AdaptiveSpec, max: u32) {
        let max = max.max(1);
        // A number that is none can only come from a spec that was never validated.
        let limit = if limit.is_finite() { limit } else { self.limit };
        self.limit = limit.clamp(f64::from(spec.min_concurrency.clamp(1, max)), f64::from(max));
    }

    /// A clock that stepped back must not leave a moment in the future, or nothing would happen until it comes.
    fn follow(&mut self, now: Time, spec: &AdaptiveSpec) {
        self.lowered = self.lowered.map(|at| at.min(now));
        self.breached = self.breached.map(|at| at.min(now));
        self.epoch = self.epoch.min(now.after(spec.cooldown));
    }
}

fn within(since: Option<Time>, now: Time, time: Duration) -> bool {
    since.is_some_and(|at| now.since(at) < time)
}

/// The share of a step that a call of this latency adds.
fn room(latency: Duration, threshold: Duration) -> f64 {
    let (left, stretch) = ((threshold - latency.min(threshold)).as_secs_f64(), threshold.as_secs_f64() * LAST_STRETCH);
    if left >= stretch { 1.0 } else { (left / stretch).max(SMALLEST_STEP) }
}

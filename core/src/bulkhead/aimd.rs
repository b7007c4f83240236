//! The AIMD limit: one slot more for as many fast completions as the limit, a tenth less when calls are slow.
//!
//! ```text
//! a success inside the threshold      limit ← limit + room × increase_step / limit
//! a breach, once per cooldown         limit ← limit × backoff_ratio
//! room = clamp((threshold − latency) / (threshold / 4), 0.1, 1)
//! ```
//!
//! Additive increase and multiplicative decrease is the only pair of linear rules that leads any number of senders to
//! equal shares of a common resource (Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for
//! Congestion Avoidance", 1989; used in TCP, Jacobson 1988). The limit starts at `max`, which the user has configured as
//! safe.
//!
//! * **A breach** is a completion slower than the threshold, whatever its outcome. Failures and cancelled calls count too,
//!   or a dependency that hangs until its callers give up would never be detected. A fast completion that is not a success
//!   changes nothing: errors are the breaker's signal.
//! * **With `latency_quantile`** a single completion is no breach; [`Aimd::judge`] takes the quantile instead. Each
//!   decrease starts an epoch, because earlier latencies are no evidence about the lower limit. The limit does not grow for
//!   one cooldown after a breach. Growing as soon as a quantile is good again would favor the replica that completes the
//!   most calls, and so has enough samples first.
//! * **`room`**: the plain rule adds a slot every round trip up to the threshold, and notices the breach a round trip too
//!   late. If a fair share is two to four slots, that overshoots by a quarter or more until the cooldown is over. Steps
//!   therefore become smaller in the last quarter below the threshold. They never become zero: without breaches, shares
//!   would not become equal.
//! * **An unused limit grows too.** After a decrease, a quiet service gets its slots back before the next burst needs
//!   them; `max` is the bound, and a breach lowers the limit again.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::limit::Completion;
use super::spec::AdaptiveSpec;
use crate::clock::Time;
use crate::kind::Outcome;

/// Steps become smaller in this last share of the threshold.
const LAST_SHARE: f64 = 0.25;

/// The share of a step right below the threshold.
const MIN_STEP: f64 = 0.1;

/// A limit that was lowered, in whole slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitChange {
    /// Slots before.
    pub from: u32,
    /// Slots now.
    pub to: u32,
}

/// An AIMD limit.
#[derive(Clone, Debug)]
pub struct Aimd {
    /// With a fraction, in which successes add up. Always finite and at least 1.
    limit: f64,
    /// When the limit was last lowered.
    lowered: Option<Time>,
    /// When a quantile was last over the threshold.
    breached: Option<Time>,
    /// Latencies count for the next quantile from this time on.
    epoch: Time,
}

impl Aimd {
    /// Creates a limit of `max`.
    pub fn new(spec: &AdaptiveSpec, max: u32) -> Self {
        let mut aimd = Self { limit: f64::from(max), lowered: None, breached: None, epoch: Time::ZERO };
        aimd.retune(spec, max);
        aimd
    }

    /// Adapts the limit to one completion; returns the change if it lowered the limit.
    pub fn observe(&mut self, done: &Completion, spec: &AdaptiveSpec, max: u32) -> Option<LimitChange> {
        self.retune(spec, max);
        self.clamp_times(done.now, spec);
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

    /// Adapts the limit to the quantile of the completions since [`Aimd::measured_since`]; none while there are too few.
    /// Returns the change if it lowered the limit. For limits with a `latency_quantile`; call it a few times a second.
    pub fn judge(
        &mut self,
        now: Time,
        quantile: Option<Duration>,
        spec: &AdaptiveSpec,
        max: u32,
    ) -> Option<LimitChange> {
        self.retune(spec, max);
        self.clamp_times(now, spec);
        let quantile = quantile.filter(|quantile| *quantile > spec.latency_threshold)?;
        self.breached = Some(now);
        if within(self.lowered, now, spec.cooldown) {
            return None;
        }
        // Calls that complete next started under the old limit, for about as long as the quantile.
        self.epoch = now.after(quantile.min(spec.cooldown));
        self.lower(now, spec, max)
    }

    /// Returns since when completions count for the next quantile; at most one cooldown in the future.
    pub const fn measured_since(&self) -> Time {
        self.epoch
    }

    /// Returns the limit in whole slots.
    pub fn limit(&self) -> u32 {
        // The tolerance is for rounding: ten times 0.7 must be seven.
        (self.limit + 1e-9) as u32
    }

    /// Takes over other bounds at once; the other methods do so with the next completion.
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
        // Only a spec that was not validated gives a number that is not finite.
        let limit = if limit.is_finite() { limit } else { self.limit };
        self.limit = limit.clamp(f64::from(spec.min_concurrency.clamp(1, max)), f64::from(max));
    }

    /// If the clock has stepped back, moves stored times out of the future, where they would block every change.
    fn clamp_times(&mut self, now: Time, spec: &AdaptiveSpec) {
        self.lowered = self.lowered.map(|at| at.min(now));
        self.breached = self.breached.map(|at| at.min(now));
        self.epoch = self.epoch.min(now.after(spec.cooldown));
    }
}

fn within(since: Option<Time>, now: Time, time: Duration) -> bool {
    since.is_some_and(|at| now.since(at) < time)
}

/// Returns the share of a step that a call of this latency adds.
fn room(latency: Duration, threshold: Duration) -> f64 {
    let (left, last_share) = ((threshold - latency.min(threshold)).as_secs_f64(), threshold.as_secs_f64() * LAST_SHARE);
    if left >= last_share { 1.0 } else { (left / last_share).max(MIN_STEP) }
}

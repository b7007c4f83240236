//! The Gradient2 limit: follows the ratio of the latency with little load to the current latency.
//!
//! ```text
//! gradient = clamp(rtt_tolerance × long / short, 0.5, 1)
//! next     = limit × gradient + headroom × max(0, 4 × gradient − 3)       headroom: √limit by default
//! limit    ← limit + smoothing × (next − limit)
//! long > 2 × short:  long ← 0.95 × long
//! ```
//!
//! After Netflix's concurrency-limits, `Gradient2Limit` (2018), and Vegas before it (Brakmo and Peterson, 1994).
//! `short` is the mean latency of a **round**: as many successes as calls in flight, at least ten. A round takes about one
//! round trip and moves the limit once, for a limit of 4 as for one of 400. Moving it with each sample would move a large
//! limit hundreds of times before the first call under the new limit completes.
//!
//! * **Small limits can shrink.** With the whole headroom a limit of 4 would stay at 4: 4 × 0.5 + √4 = 4. Headroom is for
//!   growing while there is no queue, so it fades with the gradient and is zero at 0.75.
//! * **The baseline is the latency with at most half of the limit in use.** A round with less in use updates it (an average
//!   over `long_window` samples) and does not move the limit, because it is no evidence about a full one. A round with more
//!   in use moves the limit and does not update the baseline: under lasting load the baseline would otherwise follow the
//!   latency of the queue until the limit is `max`.
//! * **A dip** provides such a round under constant load. It halves the limit until the calls in flight have completed and
//!   twenty more are measured. It happens every 48 rounds in which the limit is reached or calls are slow, and whenever the
//!   limit has fallen by two fifths. A dependency that became slower for other reasons thereby gets its slots back, and a
//!   recovered one its low baseline. A limit that is used only in part, by fast calls, has no dips. A dip ends after a
//!   number of completions and not after a time.
//! * **Slots that only queue are not given back.** If twice in a row half of the slots makes calls twice as fast, the other
//!   half only waited, and the dip becomes the limit. So the limit may start at `max`, under load, and still find the knee.
//!
//! A spike affects one round, and a round at most halves the limit (rounded down). Only successes count, and no clock is
//! read.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::limit::Completion;
use super::spec::GradientSpec;
use crate::estimate::ewma::Ewma;
use crate::kind::Outcome;

/// The fewest samples of a round. A dip, whose result is used for longer, takes twice as many.
const MIN_ROUND_SAMPLES: u32 = 10;

/// Rounds between two dips: often enough to follow changes, and a few per cent of the time.
const DIP_ROUNDS: u32 = 48;

/// Rounds to the next dip after one that found the baseline or the limit far off.
const UNSETTLED_DIP_ROUNDS: u32 = 3;

/// A limit below this share of its highest value since the last dip is verified by another dip.
const FALLEN_SHARE: f64 = 0.6;

/// A baseline that is wrong by more than this share is far off.
const FAR_SHARE: f64 = 0.25;

/// With half of the slots, at most 1/0.9 of half the latency: the other half only queued.
const ONLY_QUEUE_SHARE: f64 = 0.9;

/// The factor, each round, of a baseline that is more than twice the current latency.
const BASELINE_DECAY: f64 = 0.95;

/// The shortest latency, in seconds: the unit of the clock.
const MIN_LATENCY: f64 = 1e-6;

/// The successes of one round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    samples: u32,
    /// Seconds.
    sum: f64,
    /// The most slots in use.
    peak: u32,
}

/// A temporarily lower limit, to measure calls that find no queue.
#[derive(Clone, Copy, Debug)]
struct Dip {
    /// The share of the limit.
    share: f64,
    /// Completions to ignore: they, or the calls they waited for, started before the dip.
    stale: u32,
}

/// A Gradient2 limit.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// With a fraction. Always finite and at least 1.
    limit: f64,
    least: f64,
    /// Seconds.
    baseline: Ewma,
    window: u32,
    round: Round,
    dip: Option<Dip>,
    rounds_to_dip: u32,
    /// The highest limit since the last dip.
    highest: f64,
    /// Whether the baseline comes from a round that had at most half of the limit in use.
    trusted: bool,
    /// The latency of the last round with more than that in use.
    loaded_latency: f64,
    /// Dips in a row in which half of the slots only queued.
    queue_only_dips: u32,
}

impl Gradient {
    /// Creates a limit of `max`.
    pub fn new(spec: &GradientSpec, max: u32) -> Self {
        let mut gradient = Self {
            limit: f64::from(max),
            least: 1.0,
            baseline: Ewma::new(spec.long_window, MIN_ROUND_SAMPLES),
            window: spec.long_window,
            round: Round::default(),
            dip: None,
            rounds_to_dip: 1,
            highest: 1.0,
            trusted: false,
            loaded_latency: 0.0,
            queue_only_dips: 0,
        };
        gradient.retune(spec, max);
        gradient
    }

    /// Adapts the limit to one completion.
    pub fn observe(&mut self, done: &Completion, spec: &GradientSpec, max: u32) {
        self.retune(spec, max);
        if let Some(dip) = self.dip.as_mut().filter(|dip| dip.stale > 0) {
            // Whatever its outcome, it has given its slot back.
            dip.stale -= 1;
            return;
        }
        if done.outcome != Outcome::Success {
            return;
        }
        let in_use = done.in_use.min(max);
        self.round.samples += 1;
        self.round.sum += done.latency.as_secs_f64().max(MIN_LATENCY);
        self.round.peak = self.round.peak.max(in_use);
        let least = if self.dip.is_some() { 2 * MIN_ROUND_SAMPLES } else { MIN_ROUND_SAMPLES };
        if self.round.samples >= least.max(self.round.peak) {
            let round = std::mem::take(&mut self.round);
            match self.dip {
                Some(dip) => self.end_dip(dip, round, in_use, spec, max),
                None => self.end_round(round, in_use, spec, max),
            }
        }
    }

    /// Returns the latency with little load, if it was measured.
    pub fn baseline(&self) -> Option<Duration> {
        self.baseline.value().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// Returns the limit in whole slots.
    pub fn limit(&self) -> u32 {
        match self.dip {
            None => whole(self.limit),
            Some(dip) => whole((self.limit * dip.share).max(self.least)),
        }
    }

    /// Takes over other bounds and another window at once; [`Gradient::observe`] does so with the next completion.
    pub fn retune(&mut self, spec: &GradientSpec, max: u32) {
        if spec.long_window != self.window {
            let known = self.baseline.value();
            self.window = spec.long_window;
            self.baseline = Ewma::new(spec.long_window, MIN_ROUND_SAMPLES);
            known.into_iter().for_each(|seconds| self.baseline.observe(seconds));
        }
        self.set(self.limit, spec, max);
    }

    /// Ends a round: updates the baseline or moves the limit.
    fn end_round(&mut self, round: Round, in_use: u32, spec: &GradientSpec, max: u32) {
        let short = round.mean();
        let light = f64::from(round.peak) < self.limit / 2.0;
        if light || self.baseline.value().is_none() {
            (0..round.samples).for_each(|_| self.baseline.observe(short));
        }
        if light && !self.trusted {
            (self.trusted, self.rounds_to_dip) = (true, DIP_ROUNDS);
        }
        let long = self.baseline.value().unwrap_or(short);
        if long > 2.0 * short {
            self.baseline.scale(BASELINE_DECAY);
        }
        if light {
            return;
        }
        self.loaded_latency = short;
        let full = round.peak >= self.limit();
        let gradient = (spec.rtt_tolerance * long / short).clamp(0.5, 1.0);
        let headroom = spec.headroom.unwrap_or(self.limit.sqrt()) * (4.0 * gradient - 3.0).max(0.0);
        let next = self.limit * gradient + headroom;
        if full || gradient < 1.0 {
            self.rounds_to_dip = self.rounds_to_dip.saturating_sub(1);
        } else {
            // No caller is held back, and calls are fast: an earlier slow round was chance.
            self.rounds_to_dip = DIP_ROUNDS.min(self.rounds_to_dip.saturating_add(1));
        }
        self.highest = self.highest.max(self.limit);
        if self.rounds_to_dip == 0 || self.limit < FALLEN_SHARE * self.highest {
            // Instead of moving the limit: both at once could lower it by more than half.
            self.dip = Some(Dip::new(depth(spec).max(0.5), in_use));
        } else {
            self.set(self.limit + spec.smoothing * (next - self.limit), spec, max);
        }
    }

    /// Ends a round in a dip: lowers the limit further, if the tolerance needs more than half, or updates the baseline and
    /// ends the dip.
    fn end_dip(&mut self, dip: Dip, round: Round, in_use: u32, spec: &GradientSpec, max: u32) {
        let (short, deepest) = (round.mean(), depth(spec));
        if dip.share > deepest {
            self.dip = Some(Dip::new((dip.share / 2.0).max(deepest), in_use));
            return;
        }
        let share = f64::from(self.limit()) / f64::from(whole(self.limit));
        let only_queue = share < 1.0 && self.loaded_latency * share > ONLY_QUEUE_SHARE * short;
        let long = self.baseline.value().unwrap_or(short);
        if self.trusted && !only_queue {
            // Half way: the mean of twenty calls is noisy, and the next dip is not far.
            self.baseline.scale((1.0 + short / long) / 2.0);
        } else {
            self.baseline.clear();
            self.baseline.observe(short);
        }
        let settled =
            self.trusted && self.queue_only_dips == 0 && !only_queue && (short / long - 1.0).abs() <= FAR_SHARE;
        self.trusted = true;
        self.dip = None;
        self.rounds_to_dip = if settled { DIP_ROUNDS } else { UNSETTLED_DIP_ROUNDS };
        self.queue_only_dips = if only_queue { self.queue_only_dips.saturating_add(1) } else { 0 };
        if self.queue_only_dips >= 2 {
            self.set(self.limit * share, spec, max);
        }
        self.highest = self.limit;
    }

    fn set(&mut self, limit: f64, spec: &GradientSpec, max: u32) {
        let max = max.max(1);
        // Only a spec that was not validated gives a number that is not finite.
        let limit = if limit.is_finite() { limit } else { self.limit };
        let limit = limit.clamp(f64::from(whole(self.limit) / 2), 2.0 * self.limit);
        self.least = f64::from(spec.min_concurrency.clamp(1, max));
        self.limit = limit.clamp(self.least, f64::from(max));
        self.highest = self.highest.min(f64::from(max));
    }
}

impl Round {
    fn mean(&self) -> f64 {
        self.sum / f64::from(self.samples.max(1))
    }
}

impl Dip {
    /// The calls in flight must complete first, and then the slow ones among the next: two calls for every slot.
    const fn new(share: f64, in_use: u32) -> Self {
        Self { share, stale: in_use.saturating_mul(2) }
    }
}

/// Returns the share of the limit at which the baseline is measured. It is so far below 1/tolerance that a limit whose slots
/// only queue shrinks: there the latency in the dip is that share of the latency outside.
fn depth(spec: &GradientSpec) -> f64 {
    (0.75 / spec.rtt_tolerance).clamp(0.05, 0.75)
}

fn whole(limit: f64) -> u32 {
    (limit + 1e-9) as u32
}

//! Gradient2: the limit follows the ratio between the latency with little load and the latency now.
//!
//! ```text
//! gradient = clamp(rtt_tolerance × long / short, 0.5, 1)
//! next     = limit × gradient + headroom × max(0, 4 × gradient − 3)       headroom: √limit unless told
//! limit    ← limit + smoothing × (next − limit)
//! long > 2 × short:  long ← 0.95 × long
//! ```
//!
//! After Netflix's concurrency-limits, `Gradient2Limit` (2018), and Vegas before it (Brakmo and Peterson, 1994).
//! `short` is the mean of a **round**: as many successes as were in flight, at least ten. One round is about one round
//! trip and moves the limit once, in a pool of 4 as in one of 400; each sample by itself would move a large pool
//! hundreds of times before the first call of the new limit has come back.
//!
//! * **Small pools contract.** With the whole headroom a pool of 4 stays at 4 for ever: 4 × 0.5 + √4 = 4. Headroom is
//!   for growing while there is no queue, so it fades with the gradient and is gone at 0.75.
//! * **The baseline is what calls take with at most half of the limit in use.** A round with less in use teaches it
//!   (an average over `long_window` samples) and does not move the limit, neither way: it says nothing about a full
//!   one. A round with more moves the limit and teaches nothing: it would teach it the queue that the limit makes, and
//!   under lasting load the average follows the latency up until the limit is `max`.
//! * **A dip** makes such a round where load leaves none: every 48 rounds in which callers find the limit reached, or
//!   calls are slow, and whenever it has fallen by two fifths, it is halved until what is under way has left and twenty
//!   calls have been timed. A dependency that
//!   became slower for reasons of its own thereby gets its slots back, and one that recovered its sensitivity. A limit
//!   of which only a part is used, by calls that are quick, is never dipped. A dip ends by completions, not by time.
//! * **What is queue is not given back.** If twice in a row half of the slots makes calls twice as quick, the other
//!   half only waited, and the dip becomes the limit. So it may begin at `max`, under load, and still find the knee.
//!
//! A spike is part of one round, and a round at most halves the limit (rounded down). Successes only; it reads no clock.

#[cfg(test)]
mod tests;

use std::time::Duration;

use super::limit::Completion;
use super::spec::GradientSpec;
use crate::estimate::ewma::Ewma;
use crate::kind::Outcome;

/// Samples below which a mean says too little to steer by; a dip, which is looked at for long, takes twice as many.
const LEAST_ROUND: u32 = 10;

/// Rounds from one dip to the next: often enough to follow, and a few per cent of the time.
const ROUNDS: u32 = 48;

/// Rounds to the next dip after one that found the baseline or the limit far off.
const ROUNDS_UNSETTLED: u32 = 3;

/// What is left of the limit when it has fallen so far that it is time to make sure.
const FALLEN: f64 = 0.6;

/// A baseline that is wrong by more than this share is far off.
const FAR: f64 = 0.25;

/// Half of the slots and at most 1/0.9 of half the latency: the other half was queue.
const ONLY_QUEUE: f64 = 0.9;

/// What a baseline more than twice the present latency keeps, each round.
const DECAY: f64 = 0.95;

/// The shortest latency there is: the clock's unit, in seconds.
const TICK: f64 = 1e-6;

/// Successes that are looked at together.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    samples: u32,
    /// Seconds.
    sum: f64,
    /// The most slots in use.
    peak: u32,
}

/// A smaller limit for a while, to time calls that find no queue.
#[derive(Clone, Copy, Debug)]
struct Dip {
    /// Of the limit.
    share: f64,
    /// Completions that are not looked at: they, or what they waited for, were begun before it.
    stale: u32,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// With its fraction. Always finite and at least 1.
    limit: f64,
    least: f64,
    /// Seconds.
    baseline: Ewma,
    window: u32,
    round: Round,
    dip: Option<Dip>,
    rounds_to_dip: u32,
    /// The highest the limit was since the last dip.
    highest: f64,
    /// Whether the baseline comes from a round that had at most half of the limit in use.
    trusted: bool,
    /// The latency of the last round with more than that in use.
    loaded: f64,
    /// Dips in a row that found nothing but queue.
    queue_seen: u32,
}

impl Gradient {
    /// A limit that has seen nothing: `max`.
    pub fn new(spec: &GradientSpec, max: u32) -> Self {
        let mut gradient = Self {
            limit: f64::from(max),
            least: 1.0,
            baseline: Ewma::new(spec.long_window, LEAST_ROUND),
            window: spec.long_window,
            round: Round::default(),
            dip: None,
            rounds_to_dip: 1,
            highest: 1.0,
            trusted: false,
            loaded: 0.0,
            queue_seen: 0,
        };
        gradient.retune(spec, max);
        gradient
    }

    /// Learns from one completion.
    pub fn observe(&mut self, done: &Completion, spec: &GradientSpec, max: u32) {
        self.retune(spec, max);
        if let Some(dip) = self.dip.as_mut().filter(|dip| dip.stale > 0) {
            // Whatever became of it: it is its slot that matters here.
            dip.stale -= 1;
            return;
        }
        if done.outcome != Outcome::Success {
            return;
        }
        let in_use = done.in_use.min(max);
        self.round.samples += 1;
        self.round.sum += done.latency.as_secs_f64().max(TICK);
        self.round.peak = self.round.peak.max(in_use);
        let least = if self.dip.is_some() { 2 * LEAST_ROUND } else { LEAST_ROUND };
        if self.round.samples >= least.max(self.round.peak) {
            let round = std::mem::take(&mut self.round);
            match self.dip {
                Some(dip) => self.end_dip(dip, round, in_use, spec, max),
                None => self.steer(round, in_use, spec, max),
            }
        }
    }

    /// The latency with little load, as far as it is known.
    pub fn baseline(&self) -> Option<Duration> {
        self.baseline.value().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// Slots: a part of one is none.
    pub fn limit(&self) -> u32 {
        match self.dip {
            None => whole(self.limit),
            Some(dip) => whole((self.limit * dip.share).max(self.least)),
        }
    }

    /// Takes over other bounds and another window. [`Gradient::observe`] does so too, but only when something ends.
    pub fn retune(&mut self, spec: &GradientSpec, max: u32) {
        if spec.long_window != self.window {
            let known = self.baseline.value();
            self.window = spec.long_window;
            self.baseline = Ewma::new(spec.long_window, LEAST_ROUND);
            known.into_iter().for_each(|seconds| self.baseline.observe(seconds));
        }
        self.set(self.limit, spec, max);
    }

    /// One round: teaches the baseline or moves the limit.
    fn steer(&mut self, round: Round, in_use: u32, spec: &GradientSpec, max: u32) {
        let short = round.mean();
        let light = f64::from(round.peak) < self.limit / 2.0;
        if light || self.baseline.value().is_none() {
            (0..round.samples).for_each(|_| self.baseline.observe(short));
        }
        if light && !self.trusted {
            (self.trusted, self.rounds_to_dip) = (true, ROUNDS);
        }
        let long = self.baseline.value().unwrap_or(short);
        if long > 2.0 * short {
            self.baseline.scale(DECAY);
        }
        if light {
            return;
        }
        self.loaded = short;
        let full = round.peak >= self.limit();
        let gradient = (spec.rtt_tolerance * long / short).clamp(0.5, 1.0);
        let headroom = spec.headroom.unwrap_or(self.limit.sqrt()) * (4.0 * gradient - 3.0).max(0.0);
        let next = self.limit * gradient + headroom;
        if full || gradient < 1.0 {
            self.rounds_to_dip = self.rounds_to_dip.saturating_sub(1);
        } else {
            // Neither is anybody held back nor is there a sign that somebody should be: one slow round was chance.
            self.rounds_to_dip = ROUNDS.min(self.rounds_to_dip.saturating_add(1));
        }
        self.highest = self.highest.max(self.limit);
        if self.rounds_to_dip == 0 || self.limit < FALLEN * self.highest {
            // Instead of moving the limit: both at once could more than halve it.
            self.dip = Some(Dip::new(depth(spec).max(0.5), in_use));
        } else {
            self.set(self.limit + spec.smoothing * (next - self.limit), spec, max);
        }
    }

    /// One round in a dip: goes deeper, if the tolerance asks for more than a half, or learns and comes back.
    fn end_dip(&mut self, dip: Dip, round: Round, in_use: u32, spec: &GradientSpec, max: u32) {
        let (short, deepest) = (round.mean(), depth(spec));
        if dip.share > deepest {
            self.dip = Some(Dip::new((dip.share / 2.0).max(deepest), in_use));
            return;
        }
        let share = f64::from(self.limit()) / f64::from(whole(self.limit));
        let only_queue = share < 1.0 && self.loaded * share > ONLY_QUEUE * short;
        let long = self.baseline.value().unwrap_or(short);
        if self.trusted && !only_queue {
            // Half way: twenty calls scatter, and the next dip is not far.
            self.baseline.scale((1.0 + short / long) / 2.0);
        } else {
            self.baseline.clear();
            self.baseline.observe(short);
        }
        let settled = self.trusted && self.queue_seen == 0 && !only_queue && (short / long - 1.0).abs() <= FAR;
        self.trusted = true;
        self.dip = None;
        self.rounds_to_dip = if settled { ROUNDS } else { ROUNDS_UNSETTLED };
        self.queue_seen = if only_queue { self.queue_seen.saturating_add(1) } else { 0 };
        if self.queue_seen >= 2 {
            self.set(self.limit * share, spec, max);
        }
        self.highest = self.limit;
    }

    fn set(&mut self, limit: f64, spec: &GradientSpec, max: u32) {
        let max = max.max(1);
        // A number that is none can only come from a spec that was never validated.
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
    /// What is under way has to leave, and of the rest those that are slow: two turns of every slot.
    const fn new(share: f64, in_use: u32) -> Self {
        Self { share, stale: in_use.saturating_mul(2) }
    }
}

/// The share of the limit at which the baseline is measured, so much below 1/tolerance that a limit which is all queue
/// contracts: there the latency in the dip is that share of the latency outside.
fn depth(spec: &GradientSpec) -> f64 {
    (0.75 / spec.rtt_tolerance).clamp(0.05, 0.75)
}

fn whole(limit: f64) -> u32 {
    (limit + 1e-9) as u32
}

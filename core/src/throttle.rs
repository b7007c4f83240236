//! Adaptive throttle: send about as much as the dependency still accepts.
//!
//! Google's client-side throttling (SRE book, chapter "Handling Overload"): over a sliding window, reject with
//! probability max(0, (requests − k × accepts) / (requests + 1)). A healthy dependency accepts nearly everything and
//! the number is negative; as it degrades, shedding grows in proportion. What is shed counts as a request and not as
//! an accept, so traffic settles near k × what is accepted, and the rest keeps probing: recovery needs no ceremony.
//!
//! An accept is an answer: also a domain "no", but neither a failure nor a rejection for load. What says nothing about
//! the dependency (cancelled by the caller, a lost race) is taken out of the count again.

use std::time::Duration;

use crate::clock::Time;
use crate::estimate::ring::{Counts, Ring};

/// How eagerly to shed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct ThrottleSpec {
    /// How many requests are sent for each one accepted, at least 1.0. Default 2.0.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Factor"))]
    pub k: f64,
    /// The sliding window. Default 2 min.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub window: Duration,
    /// Requests in the window below which nothing is shed. Default 10.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Calls"))]
    pub min_throughput: u32,
}

impl Default for ThrottleSpec {
    fn default() -> Self {
        Self { k: 2.0, window: Duration::from_secs(120), min_throughput: 10 }
    }
}

impl ThrottleSpec {
    /// How many requests are sent for each one accepted.
    #[must_use]
    pub const fn k(mut self, k: f64) -> Self {
        self.k = k;
        self
    }

    /// The sliding window.
    #[must_use]
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Requests in the window below which nothing is shed.
    #[must_use]
    pub const fn min_throughput(mut self, requests: u32) -> Self {
        self.min_throughput = requests;
        self
    }
}

/// What an admitted call says about the dependency's appetite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appetite {
    /// It answered.
    Accepted,
    /// It failed or rejected for load.
    Declined,
    /// Nothing.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    requests: u64,
    accepts: u64,
}

impl Counts for Asked {
    fn plus(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, accepts: self.accepts + other.accepts }
    }
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Throttle {
    window: Duration,
    ring: Ring<Asked>,
}

impl Throttle {
    /// A throttle that has seen nothing.
    pub fn new(spec: &ThrottleSpec) -> Self {
        Self { window: spec.window, ring: Ring::new(spec.window) }
    }

    /// Asks for a call to pass; `luck` in 0.0..1.0 decides when it is a matter of chance.
    pub fn admit(&mut self, now: Time, spec: &ThrottleSpec, luck: f64) -> bool {
        self.retune(spec);
        let admitted = luck >= self.shedding(now, spec);
        self.ring.at(now).requests += 1;
        admitted
    }

    /// Records what became of an admitted call.
    pub fn record(&mut self, now: Time, appetite: Appetite) {
        let asked = self.ring.at(now);
        match appetite {
            Appetite::Accepted => asked.accepts += 1,
            Appetite::Declined => {}
            // Taken back from the present slice, also if it was counted in an earlier one: the sum is what matters.
            Appetite::Unknown => asked.requests = asked.requests.saturating_sub(1),
        }
    }

    /// The probability with which the next call is shed.
    pub fn shedding(&mut self, now: Time, spec: &ThrottleSpec) -> f64 {
        let asked = self.ring.sum(now);
        if asked.requests < u64::from(spec.min_throughput) {
            return 0.0;
        }
        let (requests, accepts) = (asked.requests as f64, asked.accepts as f64);
        ((requests - spec.k * accepts) / (requests + 1.0)).max(0.0)
    }

    fn retune(&mut self, spec: &ThrottleSpec) {
        if spec.window != self.window {
            *self = Self::new(spec);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Plays `calls` calls against a dependency that accepts with this probability; returns how many were sent.
    fn play(throttle: &mut Throttle, accepts: f64, calls: u32, from: Time) -> u32 {
        let (spec, rng) = (ThrottleSpec::default(), Rng::seeded(1));
        let mut sent = 0;
        for i in 0..calls {
            let now = from.after(Duration::from_millis(u64::from(i)));
            if throttle.admit(now, &spec, rng.unit()) {
                sent += 1;
                let accepted = rng.unit() < accepts;
                let appetite = [Appetite::Declined, Appetite::Accepted][usize::from(accepted)];
                throttle.record(now, appetite);
            }
        }
        sent
    }

    #[test]
    fn a_healthy_dependency_is_never_shed() {
        let mut throttle = Throttle::new(&ThrottleSpec::default());
        assert_eq!(play(&mut throttle, 1.0, 10_000, Time::ZERO), 10_000);
    }

    #[test]
    fn traffic_settles_near_k_times_what_is_accepted() {
        // A dependency that manages one call in 10 ms is offered one a millisecond.
        let (spec, rng) = (ThrottleSpec::default(), Rng::seeded(1));
        let mut throttle = Throttle::new(&spec);
        let (mut sent, mut accepted, mut free_at) = (0, 0, 0);
        for millis in 0..100_000_u64 {
            let now = Time::ZERO.after(Duration::from_millis(millis));
            if throttle.admit(now, &spec, rng.unit()) {
                let accepts = millis >= free_at;
                if accepts {
                    free_at = millis + 10;
                }
                let appetite = [Appetite::Declined, Appetite::Accepted][usize::from(accepts)];
                throttle.record(now, appetite);
                sent += 1;
                accepted += u32::from(accepts);
            }
        }
        let per_accept = f64::from(sent) / f64::from(accepted);
        assert!((1.8..2.2).contains(&per_accept), "{sent} sent, {accepted} accepted");
        // Sending p a millisecond, it accepts 1 / (10 + 1/p); with p twice that, p = 0.1 and half the capacity is used.
        assert!((4_500..6_500).contains(&accepted), "{accepted} accepted");
    }

    #[test]
    fn shedding_ends_by_itself_when_the_dependency_recovers() {
        let mut throttle = Throttle::new(&ThrottleSpec::default());
        play(&mut throttle, 0.0, 5_000, Time::ZERO);
        let spec = ThrottleSpec::default();
        let recovered = Time::ZERO.after(Duration::from_secs(10));
        assert!(throttle.shedding(recovered, &spec) > 0.9);
        let later = recovered.after(Duration::from_secs(125));
        play(&mut throttle, 1.0, 1_000, later);
        assert_eq!(throttle.shedding(later, &spec), 0.0);
    }

    #[test]
    fn a_cancelled_call_says_nothing() {
        let (spec, mut throttle) = (ThrottleSpec::default(), Throttle::new(&ThrottleSpec::default()));
        for _ in 0..1_000 {
            assert!(throttle.admit(Time::ZERO, &spec, 0.0));
            throttle.record(Time::ZERO, Appetite::Unknown);
        }
        assert_eq!(throttle.shedding(Time::ZERO, &spec), 0.0);
    }
}

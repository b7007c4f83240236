//! The adaptive throttle: sends about as many calls as the dependency still accepts.
//!
//! Client-side throttling as in Google's SRE book (chapter "Handling Overload"): over a sliding window, a call is shed
//! with probability max(0, (requests − k × accepts) / (requests + 1)). For a healthy dependency, which accepts nearly
//! everything, the number is negative; as it degrades, the probability grows. A shed call counts as a request and not as
//! an accept, so traffic settles near k × the accepted calls. There are no phases: the calls that are still sent detect
//! the recovery.
//!
//! Any answer is an accept, including a domain error, but neither a failure nor a rejection for load. A call without
//! evidence about the dependency (cancelled by its caller, or the loser of a hedge) is removed from the count.

use std::time::Duration;

use crate::clock::Time;
use crate::estimate::ring::{Counts, Ring};
use crate::store::StateScope;

/// Configures an adaptive throttle.
///
/// # Examples
/// ```
/// use phalanx::{Policy, RejectionCode, ResilienceModule, ThrottleSpec};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let spec = ThrottleSpec::default().k(1.0).min_throughput(1);
/// let module = ResilienceModule::in_memory().policy(Policy::named("vendor").throttle(spec)).build()?;
/// let mut shed = 0;
/// for _ in 0..100 {
///     let failed = module.run("vendor", (), || async { Err::<(), _>(std::io::Error::other("down")) }).await;
///     let code = failed.unwrap_err().rejection().map(|rejection| rejection.code());
///     shed += u32::from(code == Some(RejectionCode::AdaptiveThrottle));
/// }
/// assert!(shed > 50, "most calls to a dependency that accepts nothing are shed: {shed}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transform = crate::schema::without_examples))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields, default))]
pub struct ThrottleSpec {
    /// Requests that are sent for each one accepted, at least 1.0. Default 2.0.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Factor"))]
    pub k: f64,
    /// The sliding window. Default 2 min.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::DurationText"))]
    pub window: Duration,
    /// The fewest requests in the window for which calls are shed. Default 10.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Calls"))]
    pub min_throughput: u32,
    /// Whether requests and accepts are those of all replicas, or each has its own window. A replica takes part from its
    /// first call that is not accepted, until a window without one; while Redis is away it goes by its own calls. Default
    /// `process`.
    pub scope: StateScope,
}

impl Default for ThrottleSpec {
    fn default() -> Self {
        Self { k: 2.0, window: Duration::from_secs(120), min_throughput: 10, scope: StateScope::Process }
    }
}

impl ThrottleSpec {
    /// Sets the number of requests that are sent for each one accepted.
    #[must_use]
    pub const fn k(mut self, k: f64) -> Self {
        self.k = k;
        self
    }

    /// Sets the sliding window.
    #[must_use]
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Sets the fewest requests in the window for which calls are shed.
    #[must_use]
    pub const fn min_throughput(mut self, requests: u32) -> Self {
        self.min_throughput = requests;
        self
    }

    /// Sets whether requests and accepts are those of all replicas.
    #[must_use]
    pub const fn scope(mut self, scope: StateScope) -> Self {
        self.scope = scope;
        self
    }

    /// Returns the probability that the next call is shed after these requests and accepts.
    pub(crate) fn shedding(&self, requests: u64, accepts: u64) -> f64 {
        if requests < u64::from(self.min_throughput) {
            return 0.0;
        }
        let (requests, accepts) = (requests as f64, accepts as f64);
        ((requests - self.k * accepts) / (requests + 1.0)).max(0.0)
    }
}

/// Whether the dependency accepted an admitted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// It answered.
    Accepted,
    /// It failed, or rejected the call for load.
    NotAccepted,
    /// There is no evidence.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    requests: u64,
    accepts: u64,
}

impl Counts for Requests {
    fn plus(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, accepts: self.accepts + other.accepts }
    }
}

/// The throttle of one policy and route.
#[derive(Clone, Debug)]
pub struct Throttle {
    window: Duration,
    ring: Ring<Requests>,
}

impl Throttle {
    /// Creates a throttle without history.
    pub fn new(spec: &ThrottleSpec) -> Self {
        Self { window: spec.window, ring: Ring::new(spec.window) }
    }

    /// Admits or sheds a call; `random`, in 0.0..1.0, decides with the probability of shedding.
    pub fn admit(&mut self, now: Time, spec: &ThrottleSpec, random: f64) -> bool {
        self.retune(spec);
        let admitted = random >= self.shedding(now, spec);
        self.ring.at(now).requests += 1;
        admitted
    }

    /// Records the outcome of an admitted call.
    pub fn record(&mut self, now: Time, acceptance: Acceptance) {
        let counts = self.ring.at(now);
        match acceptance {
            Acceptance::Accepted => counts.accepts += 1,
            Acceptance::NotAccepted => {}
            // Subtracted from the current slice, even if it was counted in an earlier one: only the sum matters.
            Acceptance::Unknown => counts.requests = counts.requests.saturating_sub(1),
        }
    }

    /// Returns the probability that the next call is shed.
    pub fn shedding(&mut self, now: Time, spec: &ThrottleSpec) -> f64 {
        let counts = self.ring.sum(now);
        spec.shedding(counts.requests, counts.accepts)
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

    /// Makes `calls` calls to a dependency that accepts with this probability; returns how many were sent.
    fn play(throttle: &mut Throttle, accepts: f64, calls: u32, from: Time) -> u32 {
        let (spec, rng) = (ThrottleSpec::default(), Rng::seeded(1));
        let mut sent = 0;
        for i in 0..calls {
            let now = from.after(Duration::from_millis(u64::from(i)));
            if throttle.admit(now, &spec, rng.unit()) {
                sent += 1;
                let accepted = rng.unit() < accepts;
                let acceptance = [Acceptance::NotAccepted, Acceptance::Accepted][usize::from(accepted)];
                throttle.record(now, acceptance);
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
        // A dependency that can handle one call in 10 ms gets one every millisecond.
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
                let acceptance = [Acceptance::NotAccepted, Acceptance::Accepted][usize::from(accepts)];
                throttle.record(now, acceptance);
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
    fn a_cancelled_call_is_not_counted() {
        let (spec, mut throttle) = (ThrottleSpec::default(), Throttle::new(&ThrottleSpec::default()));
        for _ in 0..1_000 {
            assert!(throttle.admit(Time::ZERO, &spec, 0.0));
            throttle.record(Time::ZERO, Acceptance::Unknown);
        }
        assert_eq!(throttle.shedding(Time::ZERO, &spec), 0.0);
    }
}

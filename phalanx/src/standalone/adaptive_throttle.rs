//! A stand-alone adaptive throttle.

use std::sync::Arc;

use parking_lot::Mutex;

use phalanx_core::clock::Clock;
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::ConfigError;
use phalanx_core::rejection::{Rejection, RejectionCode};
use phalanx_core::rng::Rng;
use phalanx_core::throttle::{Acceptance, Throttle, ThrottleSpec};

use super::check;

/// Sheds calls with a probability that grows with the share of calls the dependency does not accept.
///
/// # Examples
///
/// ```
/// use phalanx::ThrottleSpec;
/// use phalanx::standalone::AdaptiveThrottle;
///
/// let throttle = AdaptiveThrottle::new(&ThrottleSpec::default())?;
/// throttle.enter()?.accepted();
/// assert_eq!(throttle.shedding(), 0.0);
/// for _ in 0..200 {
///     if let Ok(permit) = throttle.enter() {
///         permit.declined();
///     }
/// }
/// assert!(throttle.shedding() > 0.8); // most calls are rejected without being sent
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AdaptiveThrottle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Clock,
    rng: Rng,
    spec: ThrottleSpec,
    throttle: Mutex<Throttle>,
}

impl AdaptiveThrottle {
    /// Creates a throttle that has recorded no calls.
    ///
    /// # Errors
    /// Returns every validation error of the spec.
    pub fn new(spec: &ThrottleSpec) -> Result<Self, ConfigError> {
        Self::seeded(spec, Clock::detect(), Rng::from_entropy())
    }

    /// Creates a throttle with its own clock and random numbers.
    ///
    /// # Errors
    /// Returns every validation error of the spec.
    pub fn seeded(spec: &ThrottleSpec, clock: Clock, rng: Rng) -> Result<Self, ConfigError> {
        check(Policy::named("standalone").throttle(*spec))?;
        let throttle = Mutex::new(Throttle::new(spec));
        Ok(Self(Arc::new(Shared { clock, rng, spec: *spec, throttle })))
    }

    /// Admits or sheds a call. Settle the permit when the call has ended.
    ///
    /// # Errors
    /// Rejects with `adaptive_throttle`.
    pub fn enter(&self) -> Result<ThrottlePermit<'_>, Rejection> {
        let Shared { clock, rng, spec, throttle } = &*self.0;
        let admitted = throttle.lock().admit(clock.now(), spec, rng.unit());
        if admitted {
            Ok(ThrottlePermit { shared: &self.0, settled: false })
        } else {
            Err(Rejection::new(RejectionCode::AdaptiveThrottle))
        }
    }

    /// Returns the probability with which the next call is shed, from 0 to 1.
    pub fn shedding(&self) -> f64 {
        self.0.throttle.lock().shedding(self.0.clock.now(), &self.0.spec)
    }
}

/// The permit of an admitted call. Dropping it records that the call had no result.
///
/// # Examples
///
/// ```
/// use phalanx::ThrottleSpec;
/// use phalanx::standalone::AdaptiveThrottle;
///
/// let throttle = AdaptiveThrottle::new(&ThrottleSpec::default())?;
/// drop(throttle.enter()?); // a cancelled call counts neither way
/// assert_eq!(throttle.shedding(), 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it records that the call had no result"]
pub struct ThrottlePermit<'a> {
    shared: &'a Shared,
    settled: bool,
}

impl ThrottlePermit<'_> {
    /// Records that the dependency answered, be it with a domain error.
    pub fn accepted(self) {
        self.settle(Acceptance::Accepted);
    }

    /// Records that the dependency failed or rejected the call for load.
    pub fn declined(self) {
        self.settle(Acceptance::NotAccepted);
    }

    fn settle(mut self, appetite: Acceptance) {
        self.settled = true;
        self.record(appetite);
    }

    fn record(&self, appetite: Acceptance) {
        self.shared.throttle.lock().record(self.shared.clock.now(), appetite);
    }
}

impl Drop for ThrottlePermit<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.record(Acceptance::Unknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_that_declines_is_sent_less_and_one_that_accepts_is_sent_everything() {
        let spec = ThrottleSpec::default();
        let throttle = AdaptiveThrottle::seeded(&spec, Clock::manual(), Rng::seeded(1)).unwrap();
        let sent = (0..200).filter_map(|_| throttle.enter().ok()).map(ThrottlePermit::declined).count();
        assert!((10..60).contains(&sent) && throttle.shedding() > 0.9, "{sent} sent");
        let fresh = AdaptiveThrottle::seeded(&spec, Clock::manual(), Rng::seeded(1)).unwrap();
        assert_eq!((0..200).filter_map(|_| fresh.enter().ok()).map(ThrottlePermit::accepted).count(), 200);
    }

    #[test]
    fn a_dropped_permit_does_not_count() {
        let throttle = AdaptiveThrottle::seeded(&ThrottleSpec::default(), Clock::manual(), Rng::seeded(1)).unwrap();
        assert_eq!((0..200).filter_map(|_| throttle.enter().ok()).map(drop).count(), 200);
        assert_eq!(throttle.shedding(), 0.0);
    }
}

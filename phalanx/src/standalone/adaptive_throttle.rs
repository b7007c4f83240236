//! An adaptive throttle by itself.

use std::sync::Arc;

use parking_lot::Mutex;

use phalanx_core::clock::Clock;
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::ConfigError;
use phalanx_core::rejection::{Rejection, RejectionCode};
use phalanx_core::rng::Rng;
use phalanx_core::throttle::{Acceptance, Throttle, ThrottleSpec};

use super::check;

/// Sheds in proportion to what the dependency stopped accepting.
///
/// ```
/// # use phalanx::ThrottleSpec;
/// # use phalanx::standalone::AdaptiveThrottle;
/// let throttle = AdaptiveThrottle::new(&ThrottleSpec::default())?;
/// throttle.enter()?.accepted();
/// assert_eq!(throttle.shedding(), 0.0);
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
    /// A throttle that has seen nothing.
    ///
    /// # Errors
    /// Every mistake of the spec.
    pub fn new(spec: &ThrottleSpec) -> Result<Self, ConfigError> {
        Self::seeded(spec, Clock::detect(), Rng::from_entropy())
    }

    /// The same on a clock and a chance of your own.
    ///
    /// # Errors
    /// Every mistake of the spec.
    pub fn seeded(spec: &ThrottleSpec, clock: Clock, rng: Rng) -> Result<Self, ConfigError> {
        check(Policy::named("alone").throttle(*spec))?;
        let throttle = Mutex::new(Throttle::new(spec));
        Ok(Self(Arc::new(Shared { clock, rng, spec: *spec, throttle })))
    }

    /// Asks for a call to pass. Tell what became of it; dropping the answer says that nothing did.
    ///
    /// # Errors
    /// `adaptive_throttle`.
    pub fn enter(&self) -> Result<ThrottlePermit<'_>, Rejection> {
        let Shared { clock, rng, spec, throttle } = &*self.0;
        let admitted = throttle.lock().admit(clock.now(), spec, rng.unit());
        if admitted {
            Ok(ThrottlePermit { shared: &self.0, told: false })
        } else {
            Err(Rejection::new(RejectionCode::AdaptiveThrottle))
        }
    }

    /// The probability with which the next call is shed.
    pub fn shedding(&self) -> f64 {
        self.0.throttle.lock().shedding(self.0.clock.now(), &self.0.spec)
    }
}

/// A call that was let through.
#[derive(Debug)]
#[must_use = "dropping it says that nothing became of the call"]
pub struct ThrottlePermit<'a> {
    shared: &'a Shared,
    told: bool,
}

impl ThrottlePermit<'_> {
    /// The dependency answered, be it with a "no".
    pub fn accepted(self) {
        self.emit(Acceptance::Accepted);
    }

    /// It failed, or rejected for load.
    pub fn declined(self) {
        self.emit(Acceptance::NotAccepted);
    }

    fn emit(mut self, appetite: Acceptance) {
        self.told = true;
        self.record(appetite);
    }

    fn record(&self, appetite: Acceptance) {
        self.shared.throttle.lock().record(self.shared.clock.now(), appetite);
    }
}

impl Drop for ThrottlePermit<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.record(Acceptance::Unknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_that_declines_is_spared_and_one_that_accepts_is_not() {
        let spec = ThrottleSpec::default();
        let throttle = AdaptiveThrottle::seeded(&spec, Clock::manual(), Rng::seeded(1)).unwrap();
        let sent = (0..200).filter_map(|_| throttle.enter().ok()).map(ThrottlePermit::declined).count();
        assert!((10..60).contains(&sent) && throttle.shedding() > 0.9, "{sent} sent");
        let fresh = AdaptiveThrottle::seeded(&spec, Clock::manual(), Rng::seeded(1)).unwrap();
        assert_eq!((0..200).filter_map(|_| fresh.enter().ok()).map(ThrottlePermit::accepted).count(), 200);
    }

    #[test]
    fn an_answer_that_is_dropped_says_nothing() {
        let throttle = AdaptiveThrottle::seeded(&ThrottleSpec::default(), Clock::manual(), Rng::seeded(1)).unwrap();
        assert_eq!((0..200).filter_map(|_| throttle.enter().ok()).map(drop).count(), 200);
        assert_eq!(throttle.shedding(), 0.0);
    }
}

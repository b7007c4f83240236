//! A stand-alone circuit breaker.

use std::sync::Arc;

use phalanx_core::breaker::{Admission, BreakerSpec, BreakerView, Override, Sample, Ticket};
use phalanx_core::clock::{Clock, Time};
use phalanx_core::kind::Outcome;
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::{ConfigError, Mistake};
use phalanx_core::rejection::Rejection;
use phalanx_core::rng::Rng;
use phalanx_store_memory::BreakerCell;

use super::check;

/// Stops calling a dependency that fails, and probes it after a break. Clones are cheap and share the state.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use phalanx::standalone::CircuitBreaker;
/// use phalanx::{BreakerSpec, Clock, RejectionCode};
///
/// let clock = Clock::manual();
/// let spec = BreakerSpec::consecutive_failures(1).break_for(Duration::from_secs(30));
/// let breaker = CircuitBreaker::with_clock(&spec, clock.clone())?;
/// breaker.enter()?.failed();
/// assert_eq!(breaker.enter().unwrap_err().code(), RejectionCode::CircuitOpen);
/// clock.advance(Duration::from_secs(30));
/// breaker.enter()?.succeeded(); // the probe of a half-open breaker
/// assert!(breaker.enter().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CircuitBreaker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    cell: BreakerCell,
}

impl CircuitBreaker {
    /// Creates a closed breaker.
    ///
    /// # Errors
    /// Returns every validation error of the spec.
    pub fn new(spec: &BreakerSpec) -> Result<Self, ConfigError> {
        Self::with_clock(spec, Clock::detect())
    }

    /// Creates a closed breaker with its own clock.
    ///
    /// # Errors
    /// Returns every validation error of the spec.
    pub fn with_clock(spec: &BreakerSpec, clock: Clock) -> Result<Self, ConfigError> {
        check(Policy::named("standalone").breaker(spec.clone()))?;
        if spec.latency_trip().is_some() {
            let reason = "a stand-alone breaker keeps no latency digest: use a policy";
            let mistake = Mistake::new("policies.standalone.breaker.latency_quantile", reason);
            return Err(ConfigError { mistakes: vec![mistake] });
        }
        let cell = BreakerCell::new(clock.clone(), spec, Rng::from_entropy());
        Ok(Self(Arc::new(Inner { clock, cell })))
    }

    /// Admits or rejects a call. Settle the permit when the call has ended.
    ///
    /// # Errors
    /// Rejects with `circuit_open`, `probe_quota` or `forced_open`.
    #[inline]
    pub fn enter(&self) -> Result<BreakerPermit<'_>, Rejection> {
        let Inner { clock, cell } = &*self.0;
        let now = clock.now();
        let reply = cell.admit_now(now).unwrap_or_else(|| cell.admit(now).0);
        match reply.admission {
            Admission::Admitted(ticket) => Ok(BreakerPermit { breaker: &self.0, ticket, entered: now, settled: false }),
            Admission::Rejected { code, until } => {
                Err(Rejection::new(code).retry_in(until.until_from(now)).decided_by(reply.source))
            }
        }
    }

    /// Returns the phase, the recorded calls and the override.
    pub fn inspect(&self) -> BreakerView {
        self.0.cell.inspect(self.0.clock.now())
    }

    /// Overrides the phase, or releases the override.
    pub fn force(&self, overridden: Option<Override>) {
        self.0.cell.force(overridden);
    }

    /// Closes the breaker and clears what it recorded.
    pub fn reset(&self) {
        self.0.cell.reset(self.0.clock.now());
    }
}

/// The permit of an admitted call. Exactly one outcome is recorded for it; dropping it records a cancelled call, which
/// counts neither as success nor as failure and frees the probe slot of a half-open breaker.
///
/// # Examples
///
/// ```
/// use phalanx::BreakerSpec;
/// use phalanx::standalone::CircuitBreaker;
///
/// let breaker = CircuitBreaker::new(&BreakerSpec::consecutive_failures(2))?;
/// breaker.enter()?.failed();
/// drop(breaker.enter()?); // cancelled: neither a failure nor a success
/// breaker.enter()?.failed();
/// assert!(breaker.enter().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it records a cancelled call"]
pub struct BreakerPermit<'a> {
    breaker: &'a Inner,
    ticket: Ticket,
    entered: Time,
    settled: bool,
}

impl BreakerPermit<'_> {
    /// Records a success.
    #[inline]
    pub fn succeeded(self) {
        self.ended(Outcome::Success);
    }

    /// Records a failure of the dependency.
    pub fn failed(self) {
        self.ended(Outcome::Failure);
    }

    /// Records this outcome.
    #[inline]
    pub fn ended(mut self, outcome: Outcome) {
        self.settled = true;
        self.record(outcome);
    }

    #[inline]
    fn record(&self, outcome: Outcome) {
        let now = self.breaker.clock.now();
        let sample = Sample { outcome, latency: now.since(self.entered) };
        self.breaker.cell.record(now, self.ticket, sample);
    }
}

impl Drop for BreakerPermit<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.settled {
            self.record(Outcome::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use phalanx_core::rejection::RejectionCode;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_dropped_permit_frees_its_probe_slot() {
        let clock = Clock::manual();
        let breaker = CircuitBreaker::with_clock(&BreakerSpec::consecutive_failures(1), clock.clone()).unwrap();
        breaker.enter().unwrap().failed();
        let rejected = breaker.enter().unwrap_err();
        assert_eq!((rejected.code(), rejected.retry_after()), (RejectionCode::CircuitOpen, Some(30 * SECOND)));
        clock.advance(30 * SECOND);
        let probe = breaker.enter().unwrap();
        assert_eq!(breaker.enter().unwrap_err().code(), RejectionCode::ProbeQuota);
        drop(probe);
        breaker.enter().unwrap().succeeded();
        assert!(breaker.inspect().calls == 0 && breaker.enter().is_ok());
    }
}

//! A circuit breaker by itself.

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

/// A circuit breaker by itself.
///
/// ```
/// # use phalanx::BreakerSpec;
/// # use phalanx::standalone::CircuitBreaker;
/// let breaker = CircuitBreaker::new(&BreakerSpec::consecutive_failures(1))?;
/// breaker.enter()?.failed();
/// assert!(breaker.enter().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CircuitBreaker(Arc<Circuit>);

#[derive(Debug)]
struct Circuit {
    clock: Clock,
    cell: BreakerCell,
}

impl CircuitBreaker {
    /// A closed circuit.
    ///
    /// # Errors
    /// Every mistake of the spec.
    pub fn new(spec: &BreakerSpec) -> Result<Self, ConfigError> {
        Self::with_clock(spec, Clock::detect())
    }

    /// The same on a clock of your own.
    ///
    /// # Errors
    /// Every mistake of the spec.
    pub fn with_clock(spec: &BreakerSpec, clock: Clock) -> Result<Self, ConfigError> {
        check(Policy::named("alone").breaker(spec.clone()))?;
        if spec.latency_trip().is_some() {
            let reason = "a circuit alone keeps no digest of latencies: use a policy";
            let mistake = Mistake::new("policies.alone.breaker.latency_quantile", reason);
            return Err(ConfigError { mistakes: vec![mistake] });
        }
        let cell = BreakerCell::new(clock.clone(), spec, Rng::from_entropy());
        Ok(Self(Arc::new(Circuit { clock, cell })))
    }

    /// Asks for a call to pass. Tell the entry how the call ended; dropping it says that it ended in nothing.
    ///
    /// # Errors
    /// `circuit_open`, `probe_quota` or `forced_open`.
    #[inline]
    pub fn enter(&self) -> Result<BreakerPermit<'_>, Rejection> {
        let Circuit { clock, cell } = &*self.0;
        let now = clock.now();
        let answer = cell.admit_now(now).unwrap_or_else(|| cell.admit(now).0);
        match answer.admission {
            Admission::Admitted(ticket) => Ok(BreakerPermit { circuit: &self.0, ticket, entered: now, settled: false }),
            Admission::Rejected { code, until } => {
                Err(Rejection::new(code).retry_in(until.until_from(now)).decided_by(answer.source))
            }
        }
    }

    /// What can be seen from outside.
    pub fn inspect(&self) -> BreakerView {
        self.0.cell.inspect(self.0.clock.now())
    }

    /// Puts an operator's word above the phase, or takes it away.
    pub fn force(&self, overridden: Option<Override>) {
        self.0.cell.force(overridden);
    }

    /// Back to a closed circuit that has seen nothing.
    pub fn reset(&self) {
        self.0.cell.reset(self.0.clock.now());
    }
}

/// An admitted call. Exactly one outcome is recorded for it.
#[derive(Debug)]
#[must_use = "dropping it says that the call ended in nothing"]
pub struct BreakerPermit<'a> {
    circuit: &'a Circuit,
    ticket: Ticket,
    entered: Time,
    settled: bool,
}

impl BreakerPermit<'_> {
    /// The dependency answered.
    #[inline]
    pub fn succeeded(self) {
        self.ended(Outcome::Success);
    }

    /// It did not do its job.
    pub fn failed(self) {
        self.ended(Outcome::Failure);
    }

    /// It ended in this.
    #[inline]
    pub fn ended(mut self, outcome: Outcome) {
        self.settled = true;
        self.record(outcome);
    }

    #[inline]
    fn record(&self, outcome: Outcome) {
        let now = self.circuit.clock.now();
        let sample = Sample { outcome, latency: now.since(self.entered) };
        self.circuit.cell.record(now, self.ticket, sample);
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
    fn an_entry_that_is_dropped_frees_its_trial_place() {
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

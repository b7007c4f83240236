//! Single stages without a module: for a loop, a worker, a place where a whole policy would be too much.
//!
//! The same algorithms and the same exactness as inside a policy, one object each, shared by reference between threads.
//! (The machines beneath them, which are given the time, are in [`base`](crate::base).)

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{Admission, BreakerSpec, BreakerView, Forced, Sample, Ticket};
use phalanx_core::clock::{Clock, Time};
use phalanx_core::kind::Outcome;
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::{ConfigError, Mistake};
use phalanx_core::rate_limit::{RateLimitSpec, Take};
use phalanx_core::rejection::{Code, Rejection};
use phalanx_core::rng::Rng;
use phalanx_core::store::Ask;
use phalanx_store_memory::{BreakerCell, BucketCell};

/// A token bucket by itself.
///
/// ```
/// # use phalanx::{RateLimiter, RateLimitSpec};
/// let limiter = RateLimiter::new(&RateLimitSpec::per_second(100).burst(2))?;
/// assert!(limiter.try_acquire().is_ok() && limiter.try_acquire().is_ok());
/// let refused = limiter.try_acquire().unwrap_err();
/// assert!(refused.retry_after().is_some());
/// # Ok::<(), phalanx::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RateLimiter(Arc<Limiter>);

#[derive(Debug)]
struct Limiter {
    clock: Clock,
    bucket: BucketCell,
    max_wait: Duration,
}

impl RateLimiter {
    /// A full bucket.
    ///
    /// # Errors
    /// Every mistake of the spec.
    pub fn new(spec: &RateLimitSpec) -> Result<Self, ConfigError> {
        Self::with_clock(spec, Clock::detect())
    }

    /// The same on a clock of your own.
    ///
    /// # Errors
    /// Every mistake of the spec.
    pub fn with_clock(spec: &RateLimitSpec, clock: Clock) -> Result<Self, ConfigError> {
        check(Policy::named("alone").rate_limit(spec.clone()))?;
        let bucket = BucketCell::new(clock.clone(), spec);
        Ok(Self(Arc::new(Limiter { clock, bucket, max_wait: spec.max_wait.unwrap_or_default() })))
    }

    /// Takes one permit now.
    ///
    /// # Errors
    /// `rate_limited`, with when to come back.
    #[inline]
    pub fn try_acquire(&self) -> Result<(), Rejection> {
        self.try_acquire_many(1)
    }

    /// Takes several permits now, all or none.
    ///
    /// # Errors
    /// `rate_limited`, with when to come back.
    #[inline]
    pub fn try_acquire_many(&self, cost: u32) -> Result<(), Rejection> {
        self.take(cost, Duration::ZERO).map(drop)
    }

    /// Takes one permit, waiting for it up to the spec's `max_wait`, in fair order. Giving up gives it back.
    ///
    /// # Errors
    /// `rate_limited`, if the wait would be longer.
    pub async fn acquire(&self) -> Result<(), Rejection> {
        let due = self.0.clock.now();
        let wait = self.take(1, self.0.max_wait)?;
        if !wait.is_zero() {
            let unused = Reservation(Some((&self.0.bucket, due.after(wait))));
            tokio::time::sleep(wait).await;
            unused.used();
        }
        Ok(())
    }

    /// Gives back permits that were taken and not used.
    pub fn refund(&self, cost: u32) {
        self.0.bucket.refund(cost, self.0.clock.now());
    }

    /// Whole permits that could be taken now.
    pub fn available_permits(&self) -> u64 {
        self.0.bucket.peek(self.0.clock.now()).permits()
    }

    #[inline]
    fn take(&self, cost: u32, max_wait: Duration) -> Result<Duration, Rejection> {
        let now = self.0.clock.now();
        match self.0.bucket.acquire(now, Ask { cost, max_wait }).take {
            Take::Granted { wait } => Ok(wait),
            Take::Refused { until } => Err(Rejection::new(Code::RateLimited).retry_in(until.until_from(now))),
        }
    }
}

fn check(policy: Policy) -> Result<(), ConfigError> {
    let mistakes = policy.mistakes();
    if mistakes.is_empty() { Ok(()) } else { Err(ConfigError { mistakes }) }
}

/// A permit reserved for later; given back if the wait for it is given up.
struct Reservation<'a>(Option<(&'a BucketCell, Time)>);

impl Reservation<'_> {
    fn used(mut self) {
        self.0 = None;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Some((bucket, due)) = self.0 {
            bucket.refund(1, due);
        }
    }
}

/// A circuit breaker by itself.
///
/// ```
/// # use phalanx::{BreakerSpec, CircuitBreaker};
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
            let mistake =
                Mistake { path: "policies.alone.breaker.latency_quantile".to_owned(), reason: reason.to_owned() };
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
    pub fn enter(&self) -> Result<Entered<'_>, Rejection> {
        let Circuit { clock, cell } = &*self.0;
        let now = clock.now();
        let answer = cell.admit_now(now).unwrap_or_else(|| cell.admit(now).0);
        match answer.admission {
            Admission::Admitted(ticket) => Ok(Entered { circuit: &self.0, ticket, entered: now, settled: false }),
            Admission::Refused { code, until } => {
                Err(Rejection::new(code).retry_in(until.until_from(now)).decided_by(answer.source))
            }
        }
    }

    /// What can be seen from outside.
    pub fn inspect(&self) -> BreakerView {
        self.0.cell.inspect(self.0.clock.now())
    }

    /// Puts an operator's word above the phase, or takes it away.
    pub fn force(&self, forced: Option<Forced>) {
        self.0.cell.force(forced);
    }
}

/// An admitted call. Exactly one outcome is recorded for it.
#[derive(Debug)]
#[must_use = "dropping it says that the call ended in nothing"]
pub struct Entered<'a> {
    circuit: &'a Circuit,
    ticket: Ticket,
    entered: Time,
    settled: bool,
}

impl Entered<'_> {
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

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.settled {
            self.record(Outcome::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_limiter_waits_in_order_and_a_waiter_that_gives_up_costs_nothing() {
        let limiter = RateLimiter::new(&RateLimitSpec::per_second(1).max_wait(5 * SECOND)).unwrap();
        assert!(limiter.acquire().await.is_ok());
        assert!(tokio::time::timeout(SECOND / 2, limiter.acquire()).await.is_err());
        let start = tokio::time::Instant::now();
        assert!(limiter.acquire().await.is_ok());
        assert_eq!(start.elapsed(), SECOND / 2);
        assert_eq!(limiter.available_permits(), 0);
    }

    #[test]
    fn nonsense_is_refused_here_too() {
        assert!(RateLimiter::new(&RateLimitSpec::per_second(0)).is_err());
        assert!(CircuitBreaker::new(&BreakerSpec::failure_ratio(f64::NAN)).is_err());
        assert!(CircuitBreaker::new(&BreakerSpec::latency(0.95, SECOND, SECOND)).is_err());
    }

    #[test]
    fn an_entry_that_is_dropped_frees_its_trial_place() {
        let clock = Clock::manual();
        let breaker = CircuitBreaker::with_clock(&BreakerSpec::consecutive_failures(1), clock.clone()).unwrap();
        breaker.enter().unwrap().failed();
        let refused = breaker.enter().unwrap_err();
        assert_eq!((refused.code(), refused.retry_after()), (Code::CircuitOpen, Some(30 * SECOND)));
        clock.advance(30 * SECOND);
        let probe = breaker.enter().unwrap();
        assert_eq!(breaker.enter().unwrap_err().code(), Code::ProbeQuota);
        drop(probe);
        breaker.enter().unwrap().succeeded();
        assert!(breaker.inspect().calls == 0 && breaker.enter().is_ok());
    }
}

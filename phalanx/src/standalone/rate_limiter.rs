//! A stand-alone rate limiter.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::clock::{Clock, Time};
use phalanx_core::policy::Policy;
use phalanx_core::policy::validate::ConfigError;
use phalanx_core::rate_limit::{RateLimitSpec, Take};
use phalanx_core::rejection::{Rejection, RejectionCode};
use phalanx_core::store::AcquireRequest;
use phalanx_store_memory::BucketCell;

use super::check;

/// A token bucket. Clones are cheap and share the bucket.
///
/// # Examples
///
/// ```
/// use phalanx::RateLimitSpec;
/// use phalanx::standalone::RateLimiter;
///
/// let limiter = RateLimiter::new(&RateLimitSpec::per_second(100).burst(2))?;
/// assert!(limiter.try_acquire().is_ok() && limiter.try_acquire().is_ok());
/// let rejected = limiter.try_acquire().unwrap_err();
/// assert!(rejected.retry_after().is_some());
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
    /// Creates a limiter with a full bucket.
    ///
    /// # Errors
    /// Returns every validation error of the spec.
    pub fn new(spec: &RateLimitSpec) -> Result<Self, ConfigError> {
        Self::with_clock(spec, Clock::detect())
    }

    /// Creates a limiter with its own clock.
    ///
    /// # Errors
    /// Returns every validation error of the spec.
    pub fn with_clock(spec: &RateLimitSpec, clock: Clock) -> Result<Self, ConfigError> {
        check(Policy::named("standalone").rate_limit(spec.clone()))?;
        let bucket = BucketCell::new(clock.clone(), spec);
        Ok(Self(Arc::new(Limiter { clock, bucket, max_wait: spec.max_wait.unwrap_or_default() })))
    }

    /// Takes one permit without waiting.
    ///
    /// # Errors
    /// Rejects with `rate_limited`; `retry_after` says when a permit will be available.
    #[inline]
    pub fn try_acquire(&self) -> Result<(), Rejection> {
        self.try_acquire_many(1)
    }

    /// Takes `cost` permits without waiting, all or none.
    ///
    /// # Errors
    /// Rejects with `rate_limited`, and `retry_after` says when the permits will be available; with `cost_above_burst` if
    /// they never will be.
    #[inline]
    pub fn try_acquire_many(&self, cost: u32) -> Result<(), Rejection> {
        self.take(cost, Duration::ZERO).map(drop)
    }

    /// Takes one permit, waiting for it up to the spec's `max_wait`, first come first served. Dropping the future refunds it.
    ///
    /// # Errors
    /// Rejects with `rate_limited` if the wait would be longer.
    pub async fn acquire(&self) -> Result<(), Rejection> {
        let due = self.0.clock.now();
        let wait = self.take(1, self.0.max_wait)?;
        if !wait.is_zero() {
            let reservation = Reservation(Some((&self.0.bucket, due.after(wait))));
            tokio::time::sleep(wait).await;
            reservation.consume();
        }
        Ok(())
    }

    /// Returns unused permits to the bucket.
    pub fn refund(&self, cost: u32) {
        self.0.bucket.refund(cost, self.0.clock.now());
    }

    /// Returns the number of whole permits in the bucket.
    pub fn available_permits(&self) -> u64 {
        self.0.bucket.peek(self.0.clock.now()).permits()
    }

    #[inline]
    fn take(&self, cost: u32, max_wait: Duration) -> Result<Duration, Rejection> {
        let now = self.0.clock.now();
        match self.0.bucket.acquire(now, AcquireRequest { cost, max_wait }).take {
            Take::Granted { wait } => Ok(wait),
            Take::Rejected { until: Time::NEVER } => Err(Rejection::new(RejectionCode::CostAboveBurst)),
            Take::Rejected { until } => Err(Rejection::new(RejectionCode::RateLimited).retry_in(until.until_from(now))),
        }
    }
}

/// A permit reserved for later. Dropping it unused refunds the permit.
struct Reservation<'a>(Option<(&'a BucketCell, Time)>);

impl Reservation<'_> {
    fn consume(mut self) {
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_limiter_waits_in_order_and_a_cancelled_wait_is_refunded() {
        let limiter = RateLimiter::new(&RateLimitSpec::per_second(1).max_wait(5 * SECOND)).unwrap();
        assert!(limiter.acquire().await.is_ok());
        assert!(tokio::time::timeout(SECOND / 2, limiter.acquire()).await.is_err());
        let start = tokio::time::Instant::now();
        assert!(limiter.acquire().await.is_ok());
        assert_eq!(start.elapsed(), SECOND / 2);
        assert_eq!(limiter.available_permits(), 0);
    }
}

//! Functions that wrap a closure in one stand-alone stage.
//!
//! Each takes a closure that starts the operation and returns a future, so they nest and the operation captures what it
//! needs. A rejection becomes an error of the operation's own type (`E: From<Rejection>`, for example
//! [`Error`](crate::Error)), so four nested stages have one error type.
//!
//! A policy fixes the order of its stages; here the caller chooses it. Recommended from the outside in: fallback, rate
//! limit, bulkhead, time limit.

use std::future::Future;
use std::time::Duration;

use phalanx_core::classify::Classify;
use phalanx_core::kind::{Kind, Outcome};
use phalanx_core::rejection::{Rejection, RejectionCode};
use phalanx_core::timeout::timeout;

use super::{Bulkhead, RateLimiter};
use crate::macro_support::FromRejection;

/// Runs the operation under a rate limit, waiting for a permit up to the spec's `max_wait`.
///
/// # Examples
///
/// All four wrappers around one operation:
///
/// ```
/// use std::time::Duration;
/// use phalanx::{BulkheadSpec, Error, RateLimitSpec};
/// use phalanx::standalone::{Bulkhead, RateLimiter};
/// use phalanx::standalone::{bulkheaded, rate_limited, time_limited, with_fallback};
///
/// # async fn fetch(sku: &str) -> Result<u32, std::io::Error> { Ok(sku.len() as u32) }
/// struct Prices {
///     limiter: RateLimiter,
///     bulkhead: Bulkhead,
/// }
///
/// impl Prices {
///     async fn price(&self, sku: &str) -> Result<u32, Error<std::io::Error>> {
///         let fetch = || async { fetch(sku).await.map_err(Error::Inner) };
///         let in_time = || time_limited(Duration::from_secs(3), fetch);
///         let bounded = || bulkheaded(&self.bulkhead, in_time);
///         let limited = || rate_limited(&self.limiter, bounded);
///         with_fallback(limited, |_error| async { Ok(0) }).await
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let prices = Prices {
///     limiter: RateLimiter::new(&RateLimitSpec::per_minute(1))?,
///     bulkhead: Bulkhead::new(&BulkheadSpec::fixed(10))?,
/// };
/// assert_eq!(prices.price("shoes").await?, 5);
/// assert_eq!(prices.price("shoes").await?, 0); // the fallback: only one call per minute
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns a `rate_limited` rejection or the operation's own error.
pub async fn rate_limited<T, E, F, Fut>(limiter: &RateLimiter, operation: F) -> Result<T, E>
where
    E: FromRejection,
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    limiter.acquire().await.map_err(E::from_rejection)?;
    operation().await
}

/// Runs the operation in a slot of the bulkhead, waiting in its queue if it has one. An adaptive limit uses the outcome.
///
/// # Errors
/// Returns a `bulkhead_full`, `bulkhead_queue_shed`, `bulkhead_queue_timeout` or `deadline_exceeded` rejection, or the
/// operation's own error.
///
/// # Examples
///
/// ```
/// use phalanx::standalone::{Bulkhead, bulkheaded};
/// use phalanx::{BulkheadSpec, Error, Kind, RejectionCode};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bulkhead = Bulkhead::new(&BulkheadSpec::fixed(1))?;
/// let work = async || Ok::<_, Error<Kind>>(7);
/// let permit = bulkhead.try_enter()?;
/// let rejected = bulkheaded(&bulkhead, work).await.unwrap_err();
/// assert_eq!(rejected.rejection().unwrap().code(), RejectionCode::BulkheadFull);
/// drop(permit);
/// assert_eq!(bulkheaded(&bulkhead, work).await, Ok(7));
/// # Ok(())
/// # }
/// ```
pub async fn bulkheaded<T, E, F, Fut>(bulkhead: &Bulkhead, operation: F) -> Result<T, E>
where
    E: FromRejection + Classify,
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let permit = bulkhead.enter().await.map_err(E::from_rejection)?;
    let answer = operation().await;
    let kind = answer.as_ref().err().and_then(|error| error.classify().kind);
    match kind.map_or(Outcome::Success, Kind::outcome) {
        Outcome::Success => permit.succeeded(),
        Outcome::Failure => permit.failed(),
        Outcome::Neutral | Outcome::Cancelled => drop(permit),
    }
    answer
}

/// Runs the operation and cancels it after `limit`.
///
/// # Errors
/// Returns an `attempt_timeout` rejection or the operation's own error.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use phalanx::standalone::time_limited;
/// use phalanx::{Error, Kind, RejectionCode};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let hangs = || std::future::pending::<Result<(), Error<Kind>>>();
/// let error = time_limited(Duration::from_millis(5), hangs).await.unwrap_err();
/// assert_eq!(error.rejection().unwrap().code(), RejectionCode::AttemptTimeout);
/// # }
/// ```
pub async fn time_limited<T, E, F, Fut>(limit: Duration, operation: F) -> Result<T, E>
where
    E: FromRejection,
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let rejected = |_| Err(E::from_rejection(Rejection::new(RejectionCode::AttemptTimeout)));
    timeout(Some(limit), operation()).await.unwrap_or_else(rejected)
}

/// Runs the operation, and the fallback with its error if it fails.
///
/// # Errors
/// Returns the error that the fallback returns.
///
/// # Examples
///
/// A fallback passes on the errors that it has no answer for:
///
/// ```
/// use phalanx::Kind;
/// use phalanx::standalone::with_fallback;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let cached = async |kind| if kind == Kind::Infrastructure { Ok("cached") } else { Err(kind) };
/// assert_eq!(with_fallback(async || Err(Kind::Infrastructure), cached).await, Ok("cached"));
/// assert_eq!(with_fallback(async || Err(Kind::NotFound), cached).await, Err(Kind::NotFound));
/// # }
/// ```
pub async fn with_fallback<T, E, F, Fut, B, Back>(operation: F, fallback: B) -> Result<T, E>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    B: FnOnce(E) -> Back,
    Back: Future<Output = Result<T, E>>,
{
    match operation().await {
        Ok(answer) => Ok(answer),
        Err(error) => fallback(error).await,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use phalanx_core::bulkhead::BulkheadSpec;
    use phalanx_core::error::Error;
    use phalanx_core::rate_limit::RateLimitSpec;

    use super::*;

    type Answer = Result<u32, Error<Kind>>;

    const SECOND: Duration = Duration::from_secs(1);

    fn code(answer: Answer) -> RejectionCode {
        answer.unwrap_err().rejection().unwrap().code()
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_over_the_limit_is_rejected_before_the_operation_starts() {
        let limiter = RateLimiter::new(&RateLimitSpec::per_minute(1)).unwrap();
        assert_eq!(rate_limited(&limiter, async || Answer::Ok(1)).await, Ok(1));
        let rejected =
            rate_limited(&limiter, || -> std::future::Ready<Answer> { panic!("the operation was started") }).await;
        assert!(rejected.as_ref().unwrap_err().rejection().unwrap().retry_after().is_some());
        assert_eq!(code(rejected), RejectionCode::RateLimited);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_is_held_while_the_operation_runs_and_released_however_it_ends() {
        let bulkhead = Bulkhead::new(&BulkheadSpec::fixed(1)).unwrap();
        let hanging = bulkheaded(&bulkhead, pending::<Answer>);
        let second = async { bulkheaded(&bulkhead, async || Answer::Ok(1)).await };
        let (first, second) = tokio::join!(tokio::time::timeout(SECOND, hanging), second);
        assert!(first.is_err());
        assert_eq!((code(second), bulkhead.available_slots()), (RejectionCode::BulkheadFull, 1));
        assert_eq!(
            bulkheaded(&bulkhead, async || Answer::Err(Error::Inner(Kind::Domain))).await,
            Err(Error::Inner(Kind::Domain))
        );
        assert_eq!(bulkhead.available_slots(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_limit_cancels_a_slow_operation() {
        let start = tokio::time::Instant::now();
        assert_eq!(code(time_limited(SECOND, pending::<Answer>).await), RejectionCode::AttemptTimeout);
        assert_eq!(start.elapsed(), SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fallback_answers_some_errors_and_passes_on_the_rest() {
        let on_rejection = |error: Error<Kind>| async { if error.rejection().is_some() { Ok(0) } else { Err(error) } };
        assert_eq!(with_fallback(|| time_limited(SECOND, pending::<Answer>), on_rejection).await, Ok(0));
        let domain = Error::Inner(Kind::Domain);
        assert_eq!(with_fallback(async || Answer::Err(domain.clone()), on_rejection).await, Err(domain.clone()));
        assert_eq!(with_fallback(async || Answer::Ok(1), on_rejection).await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn all_four_nested_have_one_error_type_and_can_be_spawned() {
        let limiter = RateLimiter::new(&RateLimitSpec::per_minute(3)).unwrap();
        let bulkhead = Bulkhead::new(&BulkheadSpec::fixed(1)).unwrap();
        let guarded = move |delay: Duration| {
            let (limiter, bulkhead) = (limiter.clone(), bulkhead.clone());
            async move {
                let work = || async {
                    tokio::time::sleep(delay).await;
                    Answer::Ok(1)
                };
                let in_time = || time_limited(SECOND, work);
                let bounded = || bulkheaded(&bulkhead, in_time);
                let limited = || rate_limited(&limiter, bounded);
                with_fallback(limited, |error| async move { Ok(error.rejection().unwrap().status().into()) }).await
            }
        };
        let [quick, second, slow, fourth] = [1, 1, 2_000, 1].map(|ms| guarded(Duration::from_millis(ms)));
        let (quick, second) = (tokio::spawn(quick), tokio::spawn(second));
        assert_eq!((quick.await.unwrap(), second.await.unwrap()), (Ok(1), Ok(503)));
        assert_eq!(slow.await, Ok(504));
        assert_eq!(fourth.await, Ok(429));
    }
}

//! Decorators: one stage around a closure, without a module and without a policy.
//!
//! Each takes a closure that makes the operation and gives a future, so they are put into each other, the outermost first,
//! and whatever the operation needs is simply captured. A rejection is an error of the operation's own type (`E:
//! From<Rejection>`): a stack of four has one error, not four around each other. [`Error`](crate::Error) is such a type.
//!
//! A policy keeps its stages in the one order that works; here the order is yours. From the outside in: fallback, rate
//! limit, bulkhead, time limit.

use std::future::Future;
use std::time::Duration;

use phalanx_core::classify::Classify;
use phalanx_core::kind::{Kind, Outcome};
use phalanx_core::rejection::{Rejection, RejectionCode};
use phalanx_core::timeout::timeout;

use super::{Bulkhead, RateLimiter};
use crate::macro_support::CarriesRejection;

/// Runs the operation when the limiter has a permit for it, waiting for one as long as its spec's `max_wait` allows.
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
///         let ask = || async { fetch(sku).await.map_err(Error::Inner) };
///         let in_time = || time_limited(Duration::from_secs(3), ask);
///         let a_few_at_a_time = || bulkheaded(&self.bulkhead, in_time);
///         let not_too_often = || rate_limited(&self.limiter, a_few_at_a_time);
///         with_fallback(not_too_often, |_error| async { Ok(0) }).await
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
/// assert_eq!(prices.price("shoes").await?, 0); // too often
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `rate_limited`, with when to come back, or the operation's own error.
pub async fn rate_limited<T, E, F, Fut>(limiter: &RateLimiter, operation: F) -> Result<T, E>
where
    E: CarriesRejection,
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    limiter.acquire().await.map_err(E::rejected)?;
    operation().await
}

/// Runs the operation in a slot of the bulkhead, waiting for one in its queue if it has one. A limit that moves learns
/// from how it ended.
///
/// # Errors
/// `bulkhead_full`, `bulkhead_queue_shed`, `bulkhead_queue_timeout`, `deadline_exceeded`, or the operation's own error.
pub async fn bulkheaded<T, E, F, Fut>(bulkhead: &Bulkhead, operation: F) -> Result<T, E>
where
    E: CarriesRejection + Classify,
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let slot = bulkhead.enter().await.map_err(E::rejected)?;
    let answer = operation().await;
    let kind = answer.as_ref().err().and_then(|error| error.classify().kind);
    match kind.map_or(Outcome::Success, Kind::outcome) {
        Outcome::Success => slot.succeeded(),
        Outcome::Failure => slot.failed(),
        Outcome::Neutral | Outcome::Cancelled => drop(slot),
    }
    answer
}

/// Runs the operation and drops it when the time is over.
///
/// # Errors
/// `attempt_timeout`, or the operation's own error.
pub async fn time_limited<T, E, F, Fut>(limit: Duration, operation: F) -> Result<T, E>
where
    E: CarriesRejection,
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let rejected = |_| Err(E::rejected(Rejection::new(RejectionCode::AttemptTimeout)));
    timeout(Some(limit), operation()).await.unwrap_or_else(rejected)
}

/// Runs the operation, and the fallback on its error if it fails. What the fallback should not answer for, it gives back:
/// `|error| async { if … { Ok(cached) } else { Err(error) } }`.
///
/// # Errors
/// What the fallback returns.
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
    async fn excess_is_rejected_before_the_operation_is_made() {
        let limiter = RateLimiter::new(&RateLimitSpec::per_minute(1)).unwrap();
        assert_eq!(rate_limited(&limiter, async || Answer::Ok(1)).await, Ok(1));
        let rejected = rate_limited(&limiter, || -> std::future::Ready<Answer> { panic!("it was made") }).await;
        assert!(rejected.as_ref().unwrap_err().rejection().unwrap().retry_after().is_some());
        assert_eq!(code(rejected), RejectionCode::RateLimited);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_is_taken_while_it_runs_and_given_back_whatever_happens() {
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
    async fn a_time_limit_drops_what_takes_too_long() {
        let start = tokio::time::Instant::now();
        assert_eq!(code(time_limited(SECOND, pending::<Answer>).await), RejectionCode::AttemptTimeout);
        assert_eq!(start.elapsed(), SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fallback_answers_for_what_it_wants_to_and_gives_the_rest_back() {
        let on_rejection = |error: Error<Kind>| async { if error.rejection().is_some() { Ok(0) } else { Err(error) } };
        assert_eq!(with_fallback(|| time_limited(SECOND, pending::<Answer>), on_rejection).await, Ok(0));
        let domain = Error::Inner(Kind::Domain);
        assert_eq!(with_fallback(async || Answer::Err(domain.clone()), on_rejection).await, Err(domain.clone()));
        assert_eq!(with_fallback(async || Answer::Ok(1), on_rejection).await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn all_four_around_each_other_have_one_error_and_can_be_spawned() {
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
                let alone = || bulkheaded(&bulkhead, in_time);
                let seldom = || rate_limited(&limiter, alone);
                with_fallback(seldom, |error| async move { Ok(error.rejection().unwrap().status().into()) }).await
            }
        };
        let [quick, beside, slow, fourth] = [1, 1, 2_000, 1].map(|ms| guarded(Duration::from_millis(ms)));
        let (quick, beside) = (tokio::spawn(quick), tokio::spawn(beside));
        assert_eq!((quick.await.unwrap(), beside.await.unwrap()), (Ok(1), Ok(503)));
        assert_eq!(slow.await, Ok(504));
        assert_eq!(fourth.await, Ok(429));
    }
}

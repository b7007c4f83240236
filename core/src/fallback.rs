//! Fallbacks: an answer in place of a failure. A value, a function of the error, or the last good value.
//!
//! A fallback is the last step of a call, whichever stage rejected it. It replaces failures of the dependency and
//! rejections of the policy. A domain error ("no such customer") is an answer of the dependency and is returned as it is,
//! unless the filter includes its kind. An `Ok` that was classified as a failure, such as a 503, is replaced too, by
//! fallbacks that need no error: a value, or the last good one. [`Served`] marks an answer that a fallback gave.

mod stale;

use std::future::{Future, ready};
use std::time::Duration;

pub use self::stale::{Stale, StaleCache};
use crate::error::Error;
use crate::kind::{Kind, Kinds};

/// How an answer from a fallback differs from one of the dependency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Degraded {
    /// The age of the data, if it is an earlier answer of the dependency.
    pub data_age: Option<Duration>,
    /// Whether the answer is an estimate.
    pub approximate: bool,
}

/// An answer, and whether a fallback gave it.
///
/// # Examples
/// ```
/// use phalanx::{Policy, ResilienceModule};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let module = ResilienceModule::in_memory().policy(Policy::named("rates")).build()?;
/// let failing = || async { Err::<u32, _>(std::io::Error::other("down")) };
/// let served = module.call("rates", ()).fallback_value(7).run_served(failing).await.unwrap();
/// assert_eq!(served.value, 7);
/// assert!(served.degraded.is_some_and(|degraded| degraded.approximate));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served<T> {
    /// The answer.
    pub value: T,
    /// Set if a fallback gave the answer.
    pub degraded: Option<Degraded>,
}

impl<T> Served<T> {
    /// Creates an answer of the dependency.
    pub const fn fresh(value: T) -> Self {
        Self { value, degraded: None }
    }

    /// Creates an estimate.
    pub const fn approximate(value: T) -> Self {
        Self { value, degraded: Some(Degraded { data_age: None, approximate: true }) }
    }

    /// Creates an answer from data of this age.
    pub const fn stale(value: T, age: Duration) -> Self {
        Self { value, degraded: Some(Degraded { data_age: Some(age), approximate: false }) }
    }
}

/// Returns the kinds that a fallback replaces by default: those that are not an answer of the dependency.
pub(crate) fn default_kinds() -> Kinds {
    Kinds::from([Kind::Concurrency, Kind::Infrastructure, Kind::Throttled, Kind::Timeout, Kind::Internal])
}

/// Gives an answer in place of a failure. Implement it for a fallback with state of its own.
///
/// # Examples
/// ```
/// use phalanx::{Error, Fallback, Policy, ResilienceModule, Served};
///
/// struct Zero;
///
/// impl<E> Fallback<u32, E> for Zero {
///     async fn answer(&self, _: Option<&Error<E>>) -> Option<Served<u32>> {
///         Some(Served::approximate(0))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let module = ResilienceModule::in_memory().policy(Policy::named("rates")).build()?;
/// let failing = || async { Err::<u32, _>(std::io::Error::other("down")) };
/// assert_eq!(module.call("rates", ()).fallback(Zero).run(failing).await.unwrap(), 0);
/// # Ok(())
/// # }
/// ```
pub trait Fallback<T, E> {
    /// Whether it ever answers. If not, failures are returned without asking it.
    const PRESENT: bool = true;

    /// Returns the answer in place of the failure, if there is one. There is no error if an `Ok` was classified as a
    /// failure.
    fn answer(&self, error: Option<&Error<E>>) -> impl Future<Output = Option<Served<T>>>;

    /// Receives every successful answer.
    fn remember(&self, value: &T) {
        let _ = value;
    }
}

/// No fallback: errors are returned to the caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFallback;

impl<T, E> Fallback<T, E> for NoFallback {
    const PRESENT: bool = false;

    fn answer(&self, _: Option<&Error<E>>) -> impl Future<Output = Option<Served<T>>> {
        ready(None)
    }
}

/// Always answers with this value.
#[derive(Clone, Copy, Debug)]
pub struct Value<T>(pub T);

impl<T: Clone, E> Fallback<T, E> for Value<T> {
    fn answer(&self, _: Option<&Error<E>>) -> impl Future<Output = Option<Served<T>>> {
        ready(Some(Served::approximate(self.0.clone())))
    }
}

/// Answers with a function of the error.
#[derive(Clone, Copy, Debug)]
pub struct With<F>(pub F);

impl<T, E, F: Fn(&Error<E>) -> T> Fallback<T, E> for With<F> {
    fn answer(&self, error: Option<&Error<E>>) -> impl Future<Output = Option<Served<T>>> {
        ready(error.map(|error| Served::approximate((self.0)(error))))
    }
}

/// Answers with an async function of the error.
#[derive(Clone, Copy, Debug)]
pub struct WithAsync<F>(pub F);

impl<T, E, F, Fut> Fallback<T, E> for WithAsync<F>
where
    F: Fn(&Error<E>) -> Fut,
    Fut: Future<Output = T>,
{
    async fn answer(&self, error: Option<&Error<E>>) -> Option<Served<T>> {
        Some(Served::approximate((self.0)(error?).await))
    }
}

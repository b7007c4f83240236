//! What to answer when there is no answer: a value, a function of the error, or the last good value.
//!
//! A fallback answers last, whoever rejected. It steps in for failures of the dependency and rejections of the policy; a
//! domain answer ("no such customer") is an answer, and is left alone unless the filter names its kind.
//! An `Ok` that was read as a failure (a 503, say) is replaced too, by what needs no error to look at: a value, or the
//! last good one. An answer that came from here says so: [`Served`].

mod stale;

use std::future::{Future, ready};
use std::time::Duration;

pub use self::stale::{Stale, StaleCache};
use crate::error::Error;
use crate::kind::{Kind, Kinds};

/// How an answer from a fallback differs from the real one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Degraded {
    /// How old the data is, if it was good once.
    pub data_age: Option<Duration>,
    /// Whether it is an estimate rather than data.
    pub approximate: bool,
}

/// An answer that says where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served<T> {
    /// The answer.
    pub value: T,
    /// Set when a fallback gave it.
    pub degraded: Option<Degraded>,
}

impl<T> Served<T> {
    /// The real answer.
    pub const fn fresh(value: T) -> Self {
        Self { value, degraded: None }
    }

    /// An estimate.
    pub const fn approximate(value: T) -> Self {
        Self { value, degraded: Some(Degraded { data_age: None, approximate: true }) }
    }

    /// Data that was good so long ago.
    pub const fn stale(value: T, age: Duration) -> Self {
        Self { value, degraded: Some(Degraded { data_age: Some(age), approximate: false }) }
    }
}

/// The kinds a fallback steps in for unless told otherwise: what is not an answer.
pub(crate) fn default_kinds() -> Kinds {
    Kinds::from([Kind::Concurrency, Kind::Infrastructure, Kind::Throttled, Kind::Timeout, Kind::Internal])
}

/// Gives an answer in the dependency's place.
pub trait Fallback<T, E> {
    /// Whether it can ever answer. Without, the error's way is not even looked at.
    const PRESENT: bool = true;

    /// The answer in its place, if there is one. There is no error where an `Ok` was read as a failure.
    fn answer(&self, error: Option<&Error<E>>) -> impl Future<Output = Option<Served<T>>>;

    /// Told every good answer.
    fn remember(&self, value: &T) {
        let _ = value;
    }
}

/// None: errors reach the caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFallback;

impl<T, E> Fallback<T, E> for NoFallback {
    const PRESENT: bool = false;

    fn answer(&self, _: Option<&Error<E>>) -> impl Future<Output = Option<Served<T>>> {
        ready(None)
    }
}

/// Always this value.
#[derive(Clone, Copy, Debug)]
pub struct Value<T>(pub T);

impl<T: Clone, E> Fallback<T, E> for Value<T> {
    fn answer(&self, _: Option<&Error<E>>) -> impl Future<Output = Option<Served<T>>> {
        ready(Some(Served::approximate(self.0.clone())))
    }
}

/// A function of the error.
#[derive(Clone, Copy, Debug)]
pub struct With<F>(pub F);

impl<T, E, F: Fn(&Error<E>) -> T> Fallback<T, E> for With<F> {
    fn answer(&self, error: Option<&Error<E>>) -> impl Future<Output = Option<Served<T>>> {
        ready(error.map(|error| Served::approximate((self.0)(error))))
    }
}

/// An async function of the error.
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

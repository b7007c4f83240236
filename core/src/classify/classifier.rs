//! Classifiers: how the result of an operation becomes a [`Class`].

use super::{Class, Classify, by_error};

/// Classifies the result of an operation.
pub trait Classifier<T, E> {
    /// Returns the class of this result.
    fn class(&self, result: &Result<T, E>) -> Class;
}

impl<T, E, C: Classifier<T, E>> Classifier<T, E> for &C {
    #[inline]
    fn class(&self, result: &Result<T, E>) -> Class {
        (**self).class(result)
    }
}

/// Classifies an `Ok` as a success and an `Err` by its own [`Classify`].
///
/// # Examples
/// ```
/// use phalanx_core::classify::{ByError, Class, Classifier};
/// use phalanx_core::kind::Kind;
///
/// let failed: Result<u32, Kind> = Err(Kind::Timeout);
/// assert_eq!(ByError.class(&failed).kind, Some(Kind::Timeout));
/// assert_eq!(ByError.class(&Ok::<u32, Kind>(7)), Class::SUCCESS);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ByError;

impl<T, E: Classify> Classifier<T, E> for ByError {
    #[inline]
    fn class(&self, result: &Result<T, E>) -> Class {
        by_error(result)
    }
}

/// Classifies the answer as well as the error by its own [`Classify`]: for answers such as HTTP responses.
///
/// # Examples
/// ```
/// use phalanx_core::classify::{ByAnswer, Classifier};
/// use phalanx_core::kind::Kind;
///
/// // An `Ok` that is a failure, such as a 503 response.
/// let answered: Result<Kind, Kind> = Ok(Kind::Throttled);
/// assert_eq!(ByAnswer.class(&answered).kind, Some(Kind::Throttled));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ByAnswer;

impl<T: Classify, E: Classify> Classifier<T, E> for ByAnswer {
    #[inline]
    fn class(&self, result: &Result<T, E>) -> Class {
        match result {
            Ok(answer) => answer.classify(),
            Err(error) => error.classify(),
        }
    }
}

/// Classifies the whole result with a closure.
#[derive(Clone, Copy, Debug)]
pub struct By<F>(pub(crate) F);

impl<T, E, F: Fn(&Result<T, E>) -> Class> Classifier<T, E> for By<F> {
    #[inline]
    fn class(&self, result: &Result<T, E>) -> Class {
        (self.0)(result)
    }
}

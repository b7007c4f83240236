//! The error of a guarded call: the rejection of the policy, or the error of the operation.

use std::fmt;

use crate::classify::{Class, Classify};
use crate::kind::Kind;
use crate::rejection::Rejection;

/// The error of a guarded call.
///
/// # Examples
/// ```
/// use phalanx::{Error, Kind, Rejection, RejectionCode};
///
/// let rejected: Error<std::io::Error> = Rejection::new(RejectionCode::CircuitOpen).into();
/// assert_eq!(rejected.kind(), Some(Kind::Infrastructure));
/// assert!(rejected.inner().is_none());
/// let inner = Error::Inner(std::io::Error::from(std::io::ErrorKind::NotFound));
/// assert_eq!(inner.kind(), Some(Kind::NotFound));
/// assert!(inner.rejection().is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error<E> {
    /// The policy rejected the call or cut it off (timeout, deadline).
    Rejected(Rejection),
    /// The operation returned an error; after retries, that of the last attempt.
    Inner(E),
}

impl<E> Error<E> {
    /// Returns the rejection, if it is one.
    pub const fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Rejected(rejection) => Some(rejection),
            Self::Inner(_) => None,
        }
    }

    /// Returns the error of the operation, if it is one.
    pub const fn inner(&self) -> Option<&E> {
        match self {
            Self::Rejected(_) => None,
            Self::Inner(error) => Some(error),
        }
    }

    /// Returns the kind of failure; none if the operation's error classifies itself as a success.
    pub fn kind(&self) -> Option<Kind>
    where
        E: Classify,
    {
        self.classify().kind
    }

    /// Returns the error of the operation, if it is one.
    pub fn into_inner(self) -> Option<E> {
        match self {
            Self::Rejected(_) => None,
            Self::Inner(error) => Some(error),
        }
    }
}

impl<E> From<Rejection> for Error<E> {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

/// For a policy around a guarded call: a rejection keeps its kind and its retry-after.
impl<E: Classify> Classify for Error<E> {
    fn classify(&self) -> Class {
        match self {
            Self::Rejected(rejection) => rejection.classify(),
            Self::Inner(error) => error.classify(),
        }
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejection) => rejection.fmt(f),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Error<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rejected(_) => None,
            // It is displayed as the operation's error, so its source is that error's source.
            Self::Inner(error) => error.source(),
        }
    }
}

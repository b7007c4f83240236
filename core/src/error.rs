//! What a caller gets instead of an answer: the policy's rejection, or the operation's own error untouched.

use std::fmt;

use crate::classify::{Class, Classify};
use crate::kind::Kind;
use crate::rejection::Rejection;

/// The error of a guarded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error<E> {
    /// The policy said no, or took the answer away (timeout, deadline).
    Rejected(Rejection),
    /// The operation's own error; after retries, the last attempt's.
    Inner(E),
}

impl<E> Error<E> {
    /// The rejection, if it is one.
    pub const fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Rejected(rejection) => Some(rejection),
            Self::Inner(_) => None,
        }
    }

    /// The operation's own error, if it is one.
    pub const fn inner(&self) -> Option<&E> {
        match self {
            Self::Rejected(_) => None,
            Self::Inner(error) => Some(error),
        }
    }

    /// The kind of failure it is; none if the operation's error does not take itself for one.
    pub fn kind(&self) -> Option<Kind>
    where
        E: Classify,
    {
        self.classify().kind
    }

    /// The operation's own error, if it is one.
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

/// So that a policy around a guarded call understands it: a rejection inside keeps its kind and its retry-after.
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
            // Shown as itself, so what is behind it is what is behind the operation's error.
            Self::Inner(error) => error.source(),
        }
    }
}

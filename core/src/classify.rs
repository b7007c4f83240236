//! From a caller's error to a [`Kind`]: the one thing a policy has to know about foreign types.
//!
//! Implement [`Classify`] for your error, or give a closure over the whole result with `Call::classify` (that is also
//! how an `Ok` that is a failure, such as a 503 response, is told). Ready for `std::io::Error` and tokio's elapsed;
//! for `http`, `reqwest` and `tonic` behind the features of the same names.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

pub use self::classifier::{By, ByAnswer, ByError, Classifier};
use crate::kind::Kind;

mod classifier;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "reqwest")]
mod reqwest;
#[cfg(feature = "tonic")]
mod tonic;

/// What a result means: nothing wrong, or a kind of failure, with the dependency's own `Retry-After` if it gave one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// The kind of failure; none for a success.
    pub kind: Option<Kind>,
    /// How long the dependency asked to be left alone.
    pub retry_after: Option<Duration>,
}

impl Class {
    /// Nothing is wrong.
    pub const SUCCESS: Self = Self { kind: None, retry_after: None };

    /// A failure that says when to come back.
    #[must_use]
    pub const fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }
}

impl From<Kind> for Class {
    fn from(kind: Kind) -> Self {
        Self { kind: Some(kind), retry_after: None }
    }
}

/// Tells what a value means for a policy.
#[diagnostic::on_unimplemented(
    message = "a policy cannot tell what kind of failure `{Self}` is",
    note = "implement `Classify` for it, or read results with a closure: `module.call(policy, route).classify(|result| …).run(…)`"
)]
pub trait Classify {
    /// The kind of failure this is, or [`Class::SUCCESS`].
    fn classify(&self) -> Class;
}

impl<T: Classify + ?Sized> Classify for &T {
    fn classify(&self) -> Class {
        (**self).classify()
    }
}

impl<T: Classify + ?Sized> Classify for Box<T> {
    fn classify(&self) -> Class {
        (**self).classify()
    }
}

impl Classify for Kind {
    fn classify(&self) -> Class {
        (*self).into()
    }
}

impl Classify for Infallible {
    fn classify(&self) -> Class {
        match *self {}
    }
}

impl Classify for tokio::time::error::Elapsed {
    fn classify(&self) -> Class {
        Kind::Infrastructure.into()
    }
}

impl Classify for io::Error {
    fn classify(&self) -> Class {
        use io::ErrorKind as Io;
        match self.kind() {
            Io::NotFound => Kind::NotFound,
            Io::PermissionDenied => Kind::Authorization,
            Io::AlreadyExists => Kind::Conflict,
            Io::InvalidInput => Kind::Validation,
            Io::Unsupported => Kind::Configuration,
            // Connection refused, reset, timed out, broken pipe, disk full …: the way to the dependency is broken.
            _ => Kind::Infrastructure,
        }
        .into()
    }
}

/// The default: an `Ok` is a success, an `Err` is what it says it is.
pub(crate) fn by_error<T, E: Classify>(result: &Result<T, E>) -> Class {
    match result {
        Ok(_) => Class::SUCCESS,
        Err(error) => error.classify(),
    }
}

/// A `Retry-After` in whole seconds, as HTTP and gRPC send it. Dates and nonsense are ignored: a peer's clock is not
/// ours, and a wrong guess here would stall a caller.
#[cfg(any(feature = "http", feature = "tonic"))]
fn retry_after_seconds(value: Option<&str>) -> Option<Duration> {
    let digits = value?.trim();
    let plausible = digits.len() <= 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let seconds: u64 = plausible.then(|| digits.parse().ok())??;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_connection_is_infrastructure_a_missing_file_is_not() {
        let rejected = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(rejected.classify(), Kind::Infrastructure.into());
        let garbled = io::Error::from(io::ErrorKind::InvalidData); // as a TLS handshake that fails reports itself
        assert_eq!(garbled.classify(), Kind::Infrastructure.into());
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(missing.classify(), Kind::NotFound.into());
    }

    #[cfg(feature = "http")]
    #[test]
    fn only_whole_seconds_are_taken_from_retry_after() {
        assert_eq!(retry_after_seconds(Some(" 7 ")), Some(Duration::from_secs(7)));
        for nonsense in ["", "-1", "1.5", "Wed, 21 Oct 2015 07:28:00 GMT", "99999999999"] {
            assert_eq!(retry_after_seconds(Some(nonsense)), None, "{nonsense}");
        }
    }
}

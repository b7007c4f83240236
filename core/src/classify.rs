//! Classification: from an error to a [`Kind`], which is all that a policy looks at.
//!
//! Implement [`Classify`] for your error, or pass a closure over the whole result to `Call::classify`, which can also
//! classify an `Ok` such as a 503 response as a failure. Implemented for `std::io::Error` and tokio's `Elapsed`, and for
//! `http`, `reqwest` and `tonic` behind the features of these names.

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

/// The classification of a result: a success, or a kind of failure with the dependency's `Retry-After`, if it sent one.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use phalanx::{Class, Kind};
///
/// let class = Class::from(Kind::Throttled).retry_after(Duration::from_secs(2));
/// assert_eq!((class.kind, class.retry_after), (Some(Kind::Throttled), Some(Duration::from_secs(2))));
/// assert_eq!(Class::SUCCESS.kind, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// The kind of failure; none for a success.
    pub kind: Option<Kind>,
    /// The time after which the dependency asked to be called again.
    pub retry_after: Option<Duration>,
}

impl Class {
    /// A success.
    pub const SUCCESS: Self = Self { kind: None, retry_after: None };

    /// Sets the time after which to call again.
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

/// Classifies an error or a response.
///
/// # Examples
/// ```
/// use phalanx::{BreakerSpec, Class, Classify, Kind, Policy, ResilienceModule};
///
/// #[derive(Debug)]
/// enum Failure { Unavailable, NoSuchCustomer }
///
/// impl Classify for Failure {
///     fn classify(&self) -> Class {
///         match self {
///             Self::Unavailable => Kind::Infrastructure.into(),
///             Self::NoSuchCustomer => Kind::NotFound.into(),
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), phalanx::ConfigError> {
/// let policy = Policy::named("crm").breaker(BreakerSpec::consecutive_failures(1));
/// let module = ResilienceModule::in_memory().policy(policy).build()?;
/// let call = |failure: fn() -> Failure| module.run("crm", (), move || async move { Err::<(), _>(failure()) });
/// assert!(call(|| Failure::NoSuchCustomer).await.unwrap_err().inner().is_some());
/// assert!(call(|| Failure::Unavailable).await.unwrap_err().inner().is_some(), "not found did not trip the breaker");
/// assert!(call(|| Failure::Unavailable).await.unwrap_err().rejection().is_some(), "unavailable did");
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be classified as a kind of failure",
    note = "implement `Classify` for it, or classify results with a closure: `module.call(policy, route).classify(|result| …).run(…)`"
)]
pub trait Classify {
    /// Returns the kind of failure, or [`Class::SUCCESS`].
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
            // Connection refused, reset, timed out, broken pipe, disk full …: the dependency cannot be reached.
            _ => Kind::Infrastructure,
        }
        .into()
    }
}

/// The default classification: an `Ok` is a success, an `Err` classifies itself.
pub(crate) fn by_error<T, E: Classify>(result: &Result<T, E>) -> Class {
    match result {
        Ok(_) => Class::SUCCESS,
        Err(error) => error.classify(),
    }
}

/// Parses a `Retry-After` in whole seconds. Dates are ignored, because the peer's clock may differ from ours and a wrong
/// delay would stall the caller.
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
    fn a_refused_connection_is_infrastructure_and_a_missing_file_is_not() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(refused.classify(), Kind::Infrastructure.into());
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

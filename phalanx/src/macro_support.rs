//! Macro support: the traits and functions that code expanded from `#[resilient]` refers to.
//!
//! [`Resilient`] finds the module of a method's `self`, [`FromRejection`] turns a rejection into the function's own error.

use std::sync::Arc;

use phalanx_core::error::Error;
use phalanx_core::rejection::Rejection;

use crate::module::ResilienceModule;

/// A type that holds the module whose policies its methods run under.
///
/// `#[resilient]` on a method calls [`resilience`](Self::resilience) on `self`, unless the attribute has `module = …`.
///
/// # Examples
///
/// ```
/// use phalanx::{Resilient, ResilienceModule};
///
/// struct Stripe {
///     resilience: ResilienceModule,
/// }
///
/// impl Resilient for Stripe {
///     fn resilience(&self) -> &ResilienceModule {
///         &self.resilience
///     }
/// }
///
/// let stripe = Stripe { resilience: ResilienceModule::in_memory().build()? };
/// assert_eq!(stripe.resilience().policies(), ["occ", "transient"]); // the built-in policies
/// # Ok::<(), phalanx::ConfigError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`#[resilient]` cannot find the policies of `{Self}`: it does not implement `phalanx::Resilient`",
    note = "implement `phalanx::Resilient` for it, or pass the module to the attribute: `module = …`"
)]
pub trait Resilient {
    /// Returns the module.
    fn resilience(&self) -> &ResilienceModule;
}

impl Resilient for ResilienceModule {
    fn resilience(&self) -> &Self {
        self
    }
}

impl<T: Resilient + ?Sized> Resilient for &T {
    fn resilience(&self) -> &ResilienceModule {
        (**self).resilience()
    }
}

impl<T: Resilient + ?Sized> Resilient for Arc<T> {
    fn resilience(&self) -> &ResilienceModule {
        (**self).resilience()
    }
}

impl<T: Resilient + ?Sized> Resilient for Box<T> {
    fn resilience(&self) -> &ResilienceModule {
        (**self).resilience()
    }
}

/// An error type that a [`Rejection`] converts into, such as [`Error`] or an enum with a `#[from] Rejection` variant.
///
/// Implemented for every `From<Rejection>`; it exists for its diagnostic message. Implement `From<Rejection>` instead.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot represent a rejection by a policy",
    note = "implement `From<phalanx::Rejection>` for it, or return `Result<_, phalanx::Error<{Self}>>`"
)]
pub trait FromRejection {
    /// Converts the rejection.
    fn from_rejection(rejection: Rejection) -> Self;
}

#[diagnostic::do_not_recommend]
impl<E: From<Rejection>> FromRejection for E {
    fn from_rejection(rejection: Rejection) -> Self {
        rejection.into()
    }
}

/// Checks that a body can be run again. When it cannot, the compiler quotes the line with the bound, comment included.
#[doc(hidden)]
#[inline(always)]
pub fn repeatable<F, Fut>(body: F) -> F
where
    F: Fn() -> Fut, // a retry runs the body again: arguments that it consumes need `#[resilient(clone(…))]`
{
    body
}

/// Turns the result of a call into the function's own error type.
///
/// # Errors
/// Returns the operation's own error, or the rejection converted into it.
#[doc(hidden)]
#[inline]
pub fn flatten_rejection<T, E: FromRejection>(answer: Result<T, Error<E>>) -> Result<T, E> {
    answer.map_err(|error| match error {
        Error::Rejected(rejection) => E::from_rejection(rejection),
        Error::Inner(error) => error,
    })
}

//! What `#[resilient]` asks of the types it meets: where the policies are, and how a rejection is said.

use std::sync::Arc;

use phalanx_core::error::Error;
use phalanx_core::rejection::Rejection;

use crate::module::ResilienceModule;

/// Knows the module whose policies its methods run under. `#[resilient]` on a method asks `self`.
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
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say where its policies are",
    note = "implement `phalanx::Resilient` for it, or give the attribute an expression: `module = …`"
)]
pub trait Resilient {
    /// The module.
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

/// An error that can say a policy's rejection: whatever is made from a [`Rejection`], such as [`Error`] or an enum of your
/// own with `#[from] Rejection`. You implement `From<Rejection>`, not this.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot say that a policy rejected",
    note = "implement `From<phalanx::Rejection>` for it, or return `Result<_, phalanx::Error<{Self}>>`"
)]
pub trait CarriesRejection {
    /// The error that says it.
    fn rejected(rejection: Rejection) -> Self;
}

#[diagnostic::do_not_recommend]
impl<E: From<Rejection>> CarriesRejection for E {
    fn rejected(rejection: Rejection) -> Self {
        rejection.into()
    }
}

/// What a body is put into: the compiler quotes the line with the bound when it is none that can be run again.
#[doc(hidden)]
#[inline(always)]
pub fn repeatable<F, Fut>(body: F) -> F
where
    F: Fn() -> Fut, // a retry runs the body again: what it uses up needs `#[resilient(clone(…))]`
{
    body
}

/// The answer of a guarded call in the caller's own terms.
///
/// # Errors
/// The operation's own error, or the rejection as one of its kind.
#[doc(hidden)]
#[inline]
pub fn carry<T, E: CarriesRejection>(answer: Result<T, Error<E>>) -> Result<T, E> {
    answer.map_err(|error| match error {
        Error::Rejected(rejection) => E::rejected(rejection),
        Error::Inner(error) => error,
    })
}

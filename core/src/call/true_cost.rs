//! Where the true cost of a call comes from: nowhere, so that the estimate stands, or from its result.

use crate::error::Error;

/// Returns the true cost of a call.
pub trait TrueCost<T, E> {
    /// Whether there may be another cost than the estimate.
    const PRESENT: bool = true;

    /// Returns the permits that the call should have taken; none if the estimate stands.
    fn actual(&self, result: &Result<T, Error<E>>) -> Option<u32>;
}

/// The estimate stands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate;

impl<T, E> TrueCost<T, E> for Estimate {
    const PRESENT: bool = false;

    #[inline]
    fn actual(&self, _: &Result<T, Error<E>>) -> Option<u32> {
        None
    }
}

/// Settles by a closure of the result; see [`Call::settle_cost`](super::Call::settle_cost).
#[derive(Clone, Copy, Debug)]
pub struct TrueCostBy<F>(pub(super) F);

impl<T, E, F: Fn(&Result<T, Error<E>>) -> Option<u32>> TrueCost<T, E> for TrueCostBy<F> {
    #[inline]
    fn actual(&self, result: &Result<T, Error<E>>) -> Option<u32> {
        (self.0)(result)
    }
}

//! The check of fences, at the place that is written to under a lock: rejects the writes of a holder that was replaced.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The highest fence that a protected resource has seen. Keep it with the resource; a database does the same with
/// `UPDATE … WHERE fence <= $1`.
///
/// # Examples
/// ```
/// use phalanx::lifecycle::Fences;
///
/// let fences = Fences::default();
/// assert!(fences.check(7).is_ok());
/// assert!(fences.check(7).is_ok(), "the holder may write again");
/// let stale = fences.check(5).unwrap_err();
/// assert_eq!((stale.fence, stale.newest), (5, 7));
/// ```
#[derive(Debug, Default)]
pub struct Fences(AtomicU64);

/// A write was rejected because a later holder of the lock has written since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The fence that was rejected.
    pub fence: u64,
    /// The highest one seen.
    pub newest: u64,
}

impl Fences {
    /// Accepts a write under this fence, unless one under a higher fence was accepted before.
    ///
    /// # Errors
    /// [`Stale`]: the writer has lost its lock.
    pub fn check(&self, fence: u64) -> Result<(), Stale> {
        let newest = self.0.fetch_max(fence, Ordering::AcqRel);
        if newest > fence { Err(Stale { fence, newest }) } else { Ok(()) }
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence {} is stale: {} has written since", self.fence, self.newest)
    }
}

impl std::error::Error for Stale {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_below_the_highest_seen_is_rejected() {
        let fences = Fences::default();
        assert_eq!(fences.check(5), Ok(()));
        assert_eq!(fences.check(5), Ok(()), "the holder writes more than once");
        assert_eq!(fences.check(7), Ok(()));
        assert_eq!(fences.check(5), Err(Stale { fence: 5, newest: 7 }));
    }
}

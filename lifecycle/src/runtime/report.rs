//! The results of a failed start and of a shutdown.

use std::fmt;
use std::time::Duration;

use phalanx_core::drain::Drained;

use crate::waves::StepFailure;

/// A start that failed. The steps that had started have been stopped again.
#[derive(Clone, PartialEq, Eq)]
pub struct StartError {
    /// The steps that failed; more than one if several steps of a wave failed.
    pub failures: Vec<StepFailure>,
    /// The started steps that then failed to stop.
    pub rollback: Vec<StepFailure>,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the service did not start")?;
        self.failures.iter().try_for_each(|failure| write!(f, "\n  {failure}"))?;
        self.rollback.iter().try_for_each(|failure| write!(f, "\n  and stopping again, {failure}"))
    }
}

/// Same as `Display`, because a `main` that returns this error prints its `Debug` form.
impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for StartError {}

/// The result of a shutdown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// The result of the drain.
    pub drained: Drained,
    /// The steps that failed to stop, or were abandoned.
    pub failures: Vec<StepFailure>,
    /// Whether a second signal ended the shutdown early.
    pub forced: bool,
    /// The time from the first signal until the last step had stopped.
    pub elapsed: Duration,
}

impl Shutdown {
    /// Whether no call was cancelled, every step stopped, and no second signal arrived.
    pub fn is_clean(&self) -> bool {
        !self.forced && self.drained.leftovers == 0 && self.failures.is_empty()
    }
}

/// One line for a log.
impl fmt::Display for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { drained, failures, forced, elapsed } = self;
        let how = if *forced { "forced" } else { "done" };
        write!(f, "{how} after {elapsed:?}: {} calls in flight, {} cancelled", drained.in_flight, drained.leftovers)?;
        failures.iter().try_for_each(|failure| write!(f, "; {failure}"))
    }
}

//! How a start failed and how an end went.

use std::fmt;
use std::time::Duration;

use phalanx_core::drain::Drained;

use crate::plan::StepFailure;

/// A start that failed. Whatever had started has been stopped again.
#[derive(Clone, PartialEq, Eq)]
pub struct StartError {
    /// The steps that failed: more than one if several of a wave did.
    pub failures: Vec<StepFailure>,
    /// Those that had started and did not stop as they should.
    pub rollback: Vec<StepFailure>,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the service did not start")?;
        self.failures.iter().try_for_each(|failure| write!(f, "\n  {failure}"))?;
        self.rollback.iter().try_for_each(|failure| write!(f, "\n  and stopping again, {failure}"))
    }
}

/// As it is displayed: this is what a `main` that returns it prints.
impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for StartError {}

/// How an end went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shutdown {
    /// What became of the calls in flight.
    pub drained: Drained,
    /// The steps that failed to stop, or were abandoned.
    pub failures: Vec<StepFailure>,
    /// A second signal ended it before its time.
    pub forced: bool,
    /// How long it took, from the first word to the last step.
    pub elapsed: Duration,
}

impl Shutdown {
    /// Whether nothing was lost: no call cancelled, every step stopped.
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

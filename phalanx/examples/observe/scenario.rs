//! What happens when: four phases of the same length, repeated.

use std::time::Duration;

use tokio::time::Instant;

/// A phase of the warehouse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Quick answers.
    Healthy,
    /// Most answers are quick, some are slow, a few never come.
    SlowTail,
    /// Only errors.
    Failing,
    /// Quick answers again, and three times the load.
    Recovering,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Healthy, Self::SlowTail, Self::Failing, Self::Recovering];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::SlowTail => "slow tail",
            Self::Failing => "failing",
            Self::Recovering => "recovering",
        }
    }
}

/// The scenario and when it started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    started_at: Instant,
    phase: Duration,
}

impl Scenario {
    pub(crate) fn start(phase: Duration) -> Self {
        Self { started_at: Instant::now(), phase }
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// The current phase, and how much of it is over, from 0.0 to 1.0.
    pub(crate) fn phase_and_progress(&self) -> (Phase, f64) {
        let phases = self.now().as_secs_f64() / self.phase.as_secs_f64();
        (Phase::ALL[phases as usize % Phase::ALL.len()], phases.fract())
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase_and_progress().0
    }

    /// A fraction of a phase. The times of the policies are such fractions, so that they react within every phase.
    pub(crate) fn fraction(&self, part: u32, of: u32) -> Duration {
        self.phase * part / of
    }
}

//! What happens when: four phases of one length, again and again.

use std::time::Duration;

use tokio::time::Instant;

/// One stretch of the warehouse's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Quick answers.
    Healthy,
    /// Most answers are quick, some take long, a few never come.
    SlowTail,
    /// Nothing but errors.
    Failing,
    /// Quick answers again, and all the customers who had waited.
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

/// The story and when it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Story {
    began: Instant,
    phase: Duration,
}

impl Story {
    pub(crate) fn begin(phase: Duration) -> Self {
        Self { began: Instant::now(), phase }
    }

    /// Time since the beginning.
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The phase that is played, and how much of it is over, from 0.0 to 1.0.
    pub(crate) fn moment(&self) -> (Phase, f64) {
        let phases = self.now().as_secs_f64() / self.phase.as_secs_f64();
        (Phase::ALL[phases as usize % Phase::ALL.len()], phases.fract())
    }

    pub(crate) fn phase(&self) -> Phase {
        self.moment().0
    }

    /// A part of a phase: what the policies' own times are made of, so that every phase sees them react.
    pub(crate) fn share(&self, part: u32, of: u32) -> Duration {
        self.phase * part / of
    }
}

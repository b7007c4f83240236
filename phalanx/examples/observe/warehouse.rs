//! The dependency of all three policies: as quick, as slow or as dead as the phase demands. Seeded.

use std::fmt;
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{Class, Classify, Kind};
use tokio::time::sleep;

use crate::story::{Phase, Story};

/// What it says when it fails.
#[derive(Debug)]
pub(crate) struct BadGateway;

impl fmt::Display for BadGateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("502 bad gateway")
    }
}

impl Classify for BadGateway {
    fn classify(&self) -> Class {
        Kind::Infrastructure.into()
    }
}

/// The simulated dependency.
#[derive(Debug)]
pub(crate) struct Warehouse {
    story: Story,
    chance: Rng,
}

impl Warehouse {
    pub(crate) const fn new(story: Story, chance: Rng) -> Self {
        Self { story, chance }
    }

    /// One request.
    pub(crate) async fn ask(&self) -> Result<(), BadGateway> {
        let between = |low, high| self.chance.between(Duration::from_millis(low), Duration::from_millis(high));
        let latency = match (self.story.phase(), self.chance.unit()) {
            (Phase::Healthy | Phase::Recovering, _) => between(10, 40),
            (Phase::SlowTail, ..0.10) => Duration::from_secs(5),
            (Phase::SlowTail, ..0.35) => between(100, 250),
            (Phase::SlowTail, _) => between(20, 60),
            // Not slow, just wrong; long enough for a probe to be seen by those who come meanwhile.
            (Phase::Failing, _) => between(40, 80),
        };
        sleep(latency).await;
        // Whoever waits when it dies loses the connection; even on a good day one in fifty does.
        let fails = self.story.phase() == Phase::Failing || self.chance.unit() < 0.02;
        if fails { Err(BadGateway) } else { Ok(()) }
    }
}

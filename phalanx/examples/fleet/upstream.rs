//! The dependency: as quick, as slow or as dead as the act demands. Seeded, so that a run can be repeated.

use std::fmt;
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{Class, Classify, Kind};
use tokio::time::sleep;

use crate::replica::Dependency;
use crate::story::{Act, Story};

/// What a dead upstream says.
#[derive(Debug)]
pub(crate) struct BadGateway;

impl fmt::Display for BadGateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("502 bad gateway")
    }
}

impl std::error::Error for BadGateway {}

impl Classify for BadGateway {
    fn classify(&self) -> Class {
        Kind::Infrastructure.into()
    }
}

/// The simulated dependency.
#[derive(Debug)]
pub(crate) struct Upstream {
    story: Story,
    rng: Rng,
}

impl Upstream {
    pub(crate) const fn new(story: Story, rng: Rng) -> Self {
        Self { story, rng }
    }

    /// One request.
    pub(crate) async fn serve(&self) -> Result<(), BadGateway> {
        let millis = |low, high| self.rng.between(Duration::from_millis(low), Duration::from_millis(high));
        let latency = match (self.story.act(), self.rng.unit()) {
            (Act::Healthy | Act::Recovered, _) => millis(8, 30),
            // Bad enough to hurt, not bad enough to stop calling: three in ten are slow, two in ten hang.
            (Act::Slow, ..0.20) => Duration::from_secs(5),
            (Act::Slow, ..0.50) => millis(150, 240),
            (Act::Slow, _) => millis(40, 140),
            // Not slow, just wrong: what opens the circuit is the failing. Long enough for a probe to be seen.
            (Act::Failing, _) => millis(100, 145),
        };
        sleep(latency).await;
        // Whoever waits when it dies loses the connection.
        if self.story.act() == Act::Failing { Err(BadGateway) } else { Ok(()) }
    }
}

/// Called in one's own process.
impl Dependency for Upstream {
    async fn answer(&self, _: bool) -> Result<(), BadGateway> {
        self.serve().await
    }
}

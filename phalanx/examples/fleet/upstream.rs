//! The simulated dependency: quick, slow or failing, by the scenario. Seeded, so that a run can be repeated.

use std::fmt;
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{Class, Classify, Kind};
use tokio::time::sleep;

use crate::replica::Dependency;
use crate::scenario::{Scenario, UpstreamState};

/// The error of a failing upstream.
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
    scenario: Scenario,
    rng: Rng,
}

impl Upstream {
    pub(crate) const fn new(scenario: Scenario, rng: Rng) -> Self {
        Self { scenario, rng }
    }

    /// Serves one request.
    pub(crate) async fn serve(&self) -> Result<(), BadGateway> {
        let millis = |low, high| self.rng.between(Duration::from_millis(low), Duration::from_millis(high));
        let latency = match (self.scenario.state(), self.rng.unit()) {
            (UpstreamState::Healthy | UpstreamState::Recovered, _) => millis(8, 30),
            // Bad, but not bad enough to trip: 30 % are slow, 20 % hang.
            (UpstreamState::Slow, ..0.20) => Duration::from_secs(5),
            (UpstreamState::Slow, ..0.50) => millis(150, 240),
            (UpstreamState::Slow, _) => millis(40, 140),
            // Not slow: it is the failures that trip the breaker. Long enough for a probe to show.
            (UpstreamState::Failing, _) => millis(100, 145),
        };
        sleep(latency).await;
        // Requests in flight when it starts to fail lose the connection.
        if self.scenario.state() == UpstreamState::Failing { Err(BadGateway) } else { Ok(()) }
    }
}

/// Called in the same process.
impl Dependency for Upstream {
    async fn answer(&self, _: bool) -> Result<(), BadGateway> {
        self.serve().await
    }
}

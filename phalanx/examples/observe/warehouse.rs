//! The dependency of all three policies: quick, slow or failing, by the phase. Seeded.

use std::fmt;
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{Class, Classify, Kind};
use tokio::time::sleep;

use crate::scenario::{Phase, Scenario};

/// The error of a failing warehouse.
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
    scenario: Scenario,
    rng: Rng,
}

impl Warehouse {
    pub(crate) const fn new(scenario: Scenario, rng: Rng) -> Self {
        Self { scenario, rng }
    }

    /// Serves one request.
    pub(crate) async fn request(&self) -> Result<(), BadGateway> {
        let between = |low, high| self.rng.between(Duration::from_millis(low), Duration::from_millis(high));
        let latency = match (self.scenario.phase(), self.rng.unit()) {
            (Phase::Healthy | Phase::Recovering, _) => between(10, 40),
            (Phase::SlowTail, ..0.10) => Duration::from_secs(5),
            (Phase::SlowTail, ..0.35) => between(100, 250),
            (Phase::SlowTail, _) => between(20, 60),
            // Not slow; long enough for other calls to arrive while a probe runs.
            (Phase::Failing, _) => between(40, 80),
        };
        sleep(latency).await;
        // Requests in flight when it starts to fail lose the connection; in other phases 2 % do.
        let fails = self.scenario.phase() == Phase::Failing || self.rng.unit() < 0.02;
        if fails { Err(BadGateway) } else { Ok(()) }
    }
}

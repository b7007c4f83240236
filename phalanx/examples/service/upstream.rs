//! A flaky upstream in this process: one call in ten fails, and every 30 seconds it is down for five.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{Class, Classify, Clock, Kind};
use tokio::time::sleep;

/// The upstream. Clones share its state.
#[derive(Clone)]
pub(crate) struct Upstream(Arc<Inner>);

struct Inner {
    clock: Clock,
    rng: Rng,
    latency: Duration,
}

/// The error of a failing upstream.
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

impl Upstream {
    pub(crate) fn new(latency: Duration) -> Self {
        Self(Arc::new(Inner { clock: Clock::system(), rng: Rng::from_entropy(), latency }))
    }

    /// Returns a price in cents.
    pub(crate) async fn price(&self) -> Result<u64, BadGateway> {
        let Inner { clock, rng, latency } = &*self.0;
        sleep(rng.between(*latency / 2, *latency)).await;
        let down = clock.now().as_micros() / 1_000_000 % 30 >= 25;
        if down || rng.unit() < 0.1 { Err(BadGateway) } else { Ok(1_000 + rng.next() % 500) }
    }
}

//! The load: calls at random intervals, a few of them cancelled by an impatient caller.

use std::sync::Arc;
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{Pipeline, Rejection, ResilienceModule};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::policies::{CATALOG, CHECKOUT, REVIEWS};
use crate::scenario::{Phase, Scenario};
use crate::warehouse::Warehouse;

/// After this time an impatient caller cancels its call.
const IMPATIENT_TIMEOUT: Duration = Duration::from_millis(25);
/// The deadline of a checkout; its policy has none.
const CHECKOUT_DEADLINE: Duration = Duration::from_millis(150);

/// Callers of one policy and route.
struct CallerGroup {
    pipeline: Pipeline,
    per_second: f64,
    warehouse: Arc<Warehouse>,
    scenario: Scenario,
    rng: Rng,
}

/// Generates load for as long as it is polled.
pub(crate) async fn run(
    module: &ResilienceModule,
    warehouse: Arc<Warehouse>,
    scenario: Scenario,
    rng: &Rng,
) -> Result<(), Rejection> {
    let groups = [
        (CATALOG, Some("eu"), 70.0),
        (CATALOG, Some("us"), 40.0),
        (CHECKOUT, Some("till"), 25.0),
        (REVIEWS, None, 40.0),
    ];
    let mut all = JoinSet::new();
    for (policy, route, per_second) in groups {
        let pipeline = match route {
            Some(route) => module.pipeline(policy, route)?,
            None => module.pipeline(policy, ())?,
        };
        all.spawn(CallerGroup { pipeline, per_second, warehouse: warehouse.clone(), scenario, rng: rng.fork() }.run());
    }
    all.join_all().await;
    Ok(())
}

impl CallerGroup {
    async fn run(self) {
        let (mut due, mut calls) = (Instant::now(), JoinSet::new());
        loop {
            // Arrivals do not wait for answers: a slow warehouse does not reduce the load.
            due += self.gap();
            sleep_until(due).await;
            let (pipeline, warehouse) = (self.pipeline.clone(), self.warehouse.clone());
            let impatient = self.rng.unit() < 0.05;
            calls.spawn(async move {
                let call = call(&pipeline, &warehouse);
                if impatient { drop(timeout(IMPATIENT_TIMEOUT, call).await) } else { call.await }
            });
            while calls.try_join_next().is_some() {}
        }
    }

    /// The time to the next call: exponential, as for independent callers. After a failure rejected callers come back, so
    /// the load is higher.
    fn gap(&self) -> Duration {
        let rush = if self.scenario.phase() == Phase::Recovering { 3.0 } else { 1.0 };
        let uniform = 1.0 - self.rng.unit();
        Duration::from_secs_f64(-uniform.ln() / (self.per_second * rush))
    }
}

/// Results come through the observers of the module, as in production.
async fn call(pipeline: &Pipeline, warehouse: &Warehouse) {
    let request = || warehouse.request();
    let call = pipeline.call();
    match pipeline.key().policy() {
        CHECKOUT => drop(call.within(CHECKOUT_DEADLINE).run(request).await),
        _ => drop(call.fallback_value(()).run(request).await), // a cached page
    }
}

//! The traffic: customers who come when they come, each with one call, and now and then one who does not wait for it.

use std::sync::Arc;
use std::time::Duration;

use phalanx::store::Rng;
use phalanx::{Pipeline, Rejection, ResilienceModule};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::policies::{CATALOG, CHECKOUT, REVIEWS};
use crate::story::{Phase, Story};
use crate::warehouse::Warehouse;

/// How long the impatient wait.
const PATIENCE: Duration = Duration::from_millis(25);
/// The deadline of a checkout, which its policy does not have.
const AT_THE_TILL: Duration = Duration::from_millis(150);

/// One kind of customer.
struct Crowd {
    pipeline: Pipeline,
    per_second: f64,
    warehouse: Arc<Warehouse>,
    story: Story,
    chance: Rng,
}

/// Sends customers for as long as it is polled.
pub(crate) async fn come(
    module: &ResilienceModule,
    warehouse: Arc<Warehouse>,
    story: Story,
    chance: &Rng,
) -> Result<(), Rejection> {
    let crowds = [
        (CATALOG, Some("eu"), 70.0),
        (CATALOG, Some("us"), 40.0),
        (CHECKOUT, Some("till"), 25.0),
        (REVIEWS, None, 40.0),
    ];
    let mut all = JoinSet::new();
    for (policy, route, per_second) in crowds {
        let pipeline = match route {
            Some(route) => module.pipeline(policy, route)?,
            None => module.pipeline(policy, ())?,
        };
        all.spawn(Crowd { pipeline, per_second, warehouse: warehouse.clone(), story, chance: chance.fork() }.come());
    }
    all.join_all().await;
    Ok(())
}

impl Crowd {
    async fn come(self) {
        let (mut due, mut calls) = (Instant::now(), JoinSet::new());
        loop {
            // Arrivals do not wait for answers: a slow warehouse does not make customers stay at home.
            due += self.gap();
            sleep_until(due).await;
            let (pipeline, warehouse) = (self.pipeline.clone(), self.warehouse.clone());
            let impatient = self.chance.unit() < 0.05;
            calls.spawn(async move {
                let call = call(&pipeline, &warehouse);
                if impatient { drop(timeout(PATIENCE, call).await) } else { call.await }
            });
            while calls.try_join_next().is_some() {}
        }
    }

    /// The time to the next customer: exponential, as for any crowd whose members do not know each other. Those who
    /// could not buy come back when the shop does.
    fn gap(&self) -> Duration {
        let rush = if self.story.phase() == Phase::Recovering { 3.0 } else { 1.0 };
        let luck = 1.0 - self.chance.unit();
        Duration::from_secs_f64(-luck.ln() / (self.per_second * rush))
    }
}

/// What came of it is told by the module's observers, as it would be in production.
async fn call(pipeline: &Pipeline, warehouse: &Warehouse) {
    let ask = || warehouse.ask();
    let call = pipeline.call();
    match pipeline.key().policy() {
        CHECKOUT => drop(call.within(AT_THE_TILL).run(ask).await),
        _ => drop(call.fallback_value(()).run(ask).await), // yesterday's page
    }
}

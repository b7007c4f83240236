//! Somebody who watches the dashboard and does what the runbook says.

use std::time::Duration;

use phalanx::policy::LeverSpec;
use phalanx::{ConfigError, ResilienceModule};
use tokio::time::interval;

use crate::lines::Lines;
use crate::policies::{CATALOG, CHECKOUT};
use crate::story::{Phase, Story};

/// How often he looks.
const LOOKS: Duration = Duration::from_millis(100);

/// Pulls and releases levers for as long as it is polled.
pub(crate) async fn watch(module: &ResilienceModule, story: Story, lines: &Lines) -> Result<(), ConfigError> {
    let mut looks = interval(LOOKS);
    loop {
        looks.tick().await;
        for (policy, wanted) in [(CATALOG, for_catalog(story)), (CHECKOUT, for_checkout(story))] {
            let pulled = module.levers().contains_key(policy);
            match wanted {
                Some(lever) if !pulled => {
                    let what = lever.pulled().collect::<Vec<_>>().join(" and ");
                    lines.say(&format!("operator: {policy}: {what}, {}", lever.reason.as_deref().unwrap_or_default()));
                    module.pull(policy, lever)?;
                }
                None if pulled && module.release(policy) => lines.say(&format!("operator: {policy}: released")),
                _ => {}
            }
        }
    }
}

fn for_catalog(story: Story) -> Option<LeverSpec> {
    match story.moment() {
        (Phase::SlowTail, 0.7..) => Some(LeverSpec::default().without_hedging().reason("copies win no more")),
        (Phase::Recovering, 0.2..0.6) => {
            Some(LeverSpec::default().without_retries().max_concurrency(4).reason("let it come back slowly"))
        }
        _ => None,
    }
}

fn for_checkout(story: Story) -> Option<LeverSpec> {
    let damage = LeverSpec::force_open().reason("half a sale is worse than none");
    matches!(story.moment(), (Phase::Failing, 0.6..0.9)).then_some(damage)
}

//! A simulated operator that pulls and releases levers as the runbook describes.

use std::time::Duration;

use phalanx::policy::LeverSpec;
use phalanx::{ConfigError, ResilienceModule};
use tokio::time::interval;

use crate::policies::{CATALOG, CHECKOUT};
use crate::scenario::{Phase, Scenario};
use crate::status_lines::StatusLines;

/// How often it checks the phase.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Pulls and releases levers for as long as it is polled.
pub(crate) async fn run(
    module: &ResilienceModule,
    scenario: Scenario,
    status_lines: &StatusLines,
) -> Result<(), ConfigError> {
    let mut checks = interval(CHECK_INTERVAL);
    loop {
        checks.tick().await;
        for (policy, wanted) in [(CATALOG, for_catalog(scenario)), (CHECKOUT, for_checkout(scenario))] {
            let pulled = module.levers().contains_key(policy);
            match wanted {
                Some(lever) if !pulled => {
                    let names = lever.pulled().collect::<Vec<_>>().join(" and ");
                    status_lines.add_notice(&format!(
                        "operator: {policy}: {names}, {}",
                        lever.reason.as_deref().unwrap_or_default()
                    ));
                    module.pull(policy, lever)?;
                }
                None if pulled && module.release(policy) => {
                    status_lines.add_notice(&format!("operator: {policy}: released"))
                }
                _ => {}
            }
        }
    }
}

fn for_catalog(scenario: Scenario) -> Option<LeverSpec> {
    match scenario.phase_and_progress() {
        (Phase::SlowTail, 0.7..) => Some(LeverSpec::default().without_hedging().reason("hedges no longer win")),
        (Phase::Recovering, 0.2..0.6) => {
            Some(LeverSpec::default().without_retries().max_concurrency(4).reason("limit the load while it recovers"))
        }
        _ => None,
    }
}

fn for_checkout(scenario: Scenario) -> Option<LeverSpec> {
    let lever = LeverSpec::force_open().reason("a partial sale is worse than none");
    matches!(scenario.phase_and_progress(), (Phase::Failing, 0.6..0.9)).then_some(lever)
}

//! Test harness of the fault tests: replicas in this process, and common assertions.

use std::time::Duration;

use phalanx::{BreakerSpec, Policy, RateLimitSpec};
use phalanx_integration_tests::replica::{Command, Load, LocalReplica, Report, Setup};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The longest wait for conditions that are not themselves measured.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest time from the end of a fault to decisions by Redis.
pub(crate) const RECOVERY: Duration = Duration::from_millis(2_500);

/// A policy that asks Redis on every call and rejects none.
pub(crate) fn plenty() -> Policy {
    Policy::named("plenty").rate_limit(RateLimitSpec::per_second(1_000_000)).breaker(BreakerSpec::failure_ratio(0.5))
}

/// A few callers that call until they are stopped.
pub(crate) fn callers() -> Load {
    Load::lasting("plenty", "r", 600 * SECOND).callers(4).pause(2 * MS)
}

/// Starts a replica and waits until it has joined the fleet.
pub(crate) async fn replica(setup: &Setup) -> LocalReplica {
    let mut replica =
        LocalReplica::new(&setup.clone().policy(Policy::named("meet").rate_limit(RateLimitSpec::per_second(1))));
    replica.run(Load::once("meet", "all")).await;
    replica.until(WAIT_TIMEOUT, "it has joined the fleet", |seen| seen.replicas.is_some() && !seen.degraded).await;
    replica.execute(Command::Clear).await; // on a busy machine the first connection may have exceeded the budget
    replica
}

/// Starts replicas and waits until each has counted all of them.
pub(crate) async fn replicas<const N: usize>(setup: &Setup) -> [LocalReplica; N] {
    let mut replicas = Vec::new();
    for _ in 0..N {
        replicas.push(replica(setup).await);
    }
    for replica in &replicas {
        replica.until(WAIT_TIMEOUT, "it counts all replicas", |seen| seen.replicas == Some(N as u32)).await;
    }
    replicas.try_into().unwrap()
}

/// Asserts one outage with this reason, emitted once at its beginning and once at its end, and no rejections.
pub(crate) fn assert_one_outage(seen: &Report, reason: &str) {
    assert_eq!(seen.outages(), [reason], "one outage, emitted once: {:#?}", seen.events);
    assert_eq!(seen.recoveries(), 1, "its end, emitted once: {:#?}", seen.events);
    assert!(seen.tally.rejected.is_empty(), "no call is rejected: {:?}", seen.tally.rejected);
}

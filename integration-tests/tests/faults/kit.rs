//! What these tests share: replicas in this process, and the looks that most of them take.

use std::time::Duration;

use phalanx::{BreakerSpec, Policy, RateLimitSpec};
use phalanx_integration_tests::replica::{Load, Order, Report, Setup, Worker};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Longer than anything takes that is not the subject of a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Redis decides again so soon after it is well again.
pub(crate) const RECOVERY: Duration = Duration::from_millis(2_500);

/// A policy that asks Redis with every call and rejects nobody.
pub(crate) fn plenty() -> Policy {
    Policy::named("plenty").rate_limit(RateLimitSpec::per_second(1_000_000)).breaker(BreakerSpec::failure_ratio(0.5))
}

/// A few callers who do not stop.
pub(crate) fn callers() -> Load {
    Load::lasting("plenty", "r", 600 * SECOND).callers(4).pause(2 * MS)
}

/// A replica that has heard of the fleet.
pub(crate) async fn worker(setup: &Setup) -> Worker {
    let mut worker = Worker::new(&setup.clone().policy(Policy::named("meet").rate_limit(RateLimitSpec::per_second(1))));
    worker.run(Load::once("meet", "all")).await;
    worker.until(PATIENCE, "the fleet is known", |seen| seen.replicas.is_some() && !seen.alone).await;
    worker.obey(Order::Forget).await; // on a busy machine the first connection may have taken too long
    worker
}

/// Replicas that know of each other.
pub(crate) async fn workers<const N: usize>(setup: &Setup) -> [Worker; N] {
    let mut workers = Vec::new();
    for _ in 0..N {
        workers.push(worker(setup).await);
    }
    for worker in &workers {
        worker.until(PATIENCE, "all replicas are known", |seen| seen.replicas == Some(N as u32)).await;
    }
    workers.try_into().unwrap()
}

/// One outage, told once at its beginning, for this reason, and once at its end; nobody was rejected.
pub(crate) fn assert_one_outage(seen: &Report, reason: &str) {
    assert_eq!(seen.outages(), [reason], "one outage, told once: {:#?}", seen.told);
    assert_eq!(seen.recoveries(), 1, "its end, told once: {:#?}", seen.told);
    assert!(seen.tally.rejected.is_empty(), "nobody is rejected for it: {:?}", seen.tally.rejected);
}

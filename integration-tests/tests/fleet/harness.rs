//! Test harness of the fleet tests: exclusive use of the machine, and a fleet of processes.

use std::time::Duration;

use phalanx::{Policy, RateLimitSpec};
use phalanx_integration_tests::replica::{Command, DependencyBehavior, Load, ReplicaProcess, Setup};
use tokio::sync::{Mutex, MutexGuard};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The longest wait for conditions that are not themselves measured.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs one test at a time, so that tests do not disturb each other's measurements.
pub(crate) async fn exclusive() -> MutexGuard<'static, ()> {
    static EXCLUSIVE: Mutex<()> = Mutex::const_new(());
    EXCLUSIVE.lock().await
}

/// Starts replica processes and waits until each has counted all of them.
pub(crate) async fn fleet<const N: usize>(setup: &Setup) -> [ReplicaProcess; N] {
    let replicas = [(); N].map(|()| replica(setup));
    for replica in &replicas {
        meet(replica).await;
    }
    for replica in &replicas {
        replica.until(WAIT_TIMEOUT, "it counts all replicas", |seen| seen.replicas == Some(N as u32)).await;
    }
    replicas
}

/// Starts a replica process. It does not contact Redis before its first call.
pub(crate) fn replica(setup: &Setup) -> ReplicaProcess {
    // A replica joins the fleet with its first call.
    let setup = setup.clone().policy(Policy::named("meet").rate_limit(RateLimitSpec::per_second(1)));
    ReplicaProcess::start(env!("CARGO_BIN_EXE_replica"), &setup)
}

/// Makes the replica's first call and waits until it has joined the fleet.
pub(crate) async fn meet(replica: &ReplicaProcess) {
    replica.run(Load::once("meet", "all")).await;
    replica.until(WAIT_TIMEOUT, "it has joined the fleet", |seen| seen.replicas.is_some() && !seen.degraded).await;
    replica.execute(Command::Clear).await; // on a busy machine the first connection may have exceeded the budget
}

/// Fails calls of a replica until it rejects one itself. One failed call is not enough: its outcome is sent in the
/// background, so the next call may still be admitted.
pub(crate) async fn trip(replica: &ReplicaProcess, policy: &str, route: &str) {
    replica.execute(Command::SetDependency(DependencyBehavior::Fail)).await;
    replica.run(Load::lasting(policy, route, WAIT_TIMEOUT).pause(MS).until_rejected()).await;
}

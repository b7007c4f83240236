//! What these tests share: the machine to themselves, and a fleet that has met.

use std::time::Duration;

use phalanx::{Policy, RateLimitSpec};
use phalanx_integration_tests::replica::{Behaviour, Child, Load, Order, Setup};
use tokio::sync::{Mutex, MutexGuard};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Longer than anything takes that is not the subject of a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The machine to oneself: what is measured must not be another test.
pub(crate) async fn quiet() -> MutexGuard<'static, ()> {
    static QUIET: Mutex<()> = Mutex::const_new(());
    QUIET.lock().await
}

/// So many replicas as processes, all of which know of each other.
pub(crate) async fn fleet<const N: usize>(setup: &Setup) -> [Child; N] {
    let replicas = [(); N].map(|()| replica(setup));
    for replica in &replicas {
        meet(replica).await;
    }
    for replica in &replicas {
        replica.until(PATIENCE, "all replicas are known", |seen| seen.replicas == Some(N as u32)).await;
    }
    replicas
}

/// A replica as a process. It has not asked Redis for anything yet.
pub(crate) fn replica(setup: &Setup) -> Child {
    // What a replica knows of the fleet begins with its first call.
    let setup = setup.clone().policy(Policy::named("meet").rate_limit(RateLimitSpec::per_second(1)));
    Child::start(env!("CARGO_BIN_EXE_replica"), &setup)
}

/// Lets a replica make its first call, and waits until it has heard of the fleet.
pub(crate) async fn meet(replica: &Child) {
    replica.run(Load::once("meet", "all")).await;
    replica.until(PATIENCE, "the fleet is known", |seen| seen.replicas.is_some() && !seen.alone).await;
    replica.obey(Order::Forget).await; // on a busy machine the first connection may have taken too long
}

/// Lets a replica's calls fail until it rejects one itself. One failed call is not enough: it is told behind its caller,
/// so that a call right after it may still pass as if the circuit were closed.
pub(crate) async fn trip(replica: &Child, policy: &str, route: &str) {
    replica.obey(Order::Behave(Behaviour::Badly)).await;
    replica.run(Load::lasting(policy, route, PATIENCE).pause(MS).until_rejected()).await;
}

//! Latency digests are shared: every replica uses the latencies measured by all, and a new one starts with them.

use std::time::Duration;

use phalanx::store::StateKey;
use phalanx::store::{LatencyDigestStore, Store};
use phalanx::{BreakerSpec, Policy};
use phalanx_integration_tests::replica::{Command, DependencyBehavior, Load, LocalReplica, Setup};
use phalanx_testkit::server::Redis;
use tokio::time::{sleep, timeout};

use crate::harness::{MS, SECOND, WAIT_TIMEOUT, replica, replicas};

const WINDOW: Duration = Duration::from_secs(10);

/// Returns the fleet's 90th percentile, as read by this replica.
fn p90(replica: &LocalReplica) -> Option<Duration> {
    let store = replica.module().redis_store().unwrap();
    let digest = store.digest(&StateKey::new("timed", "r"), WINDOW);
    store.quantile(&digest, store.clock().now(), 0.9)
}

async fn until_p90(replica: &LocalReplica, wanted: impl Fn(Duration) -> bool) -> Duration {
    let seen = async {
        loop {
            match p90(replica) {
                Some(latency) if wanted(latency) => return latency,
                _ => sleep(5 * MS).await,
            }
        }
    };
    timeout(WAIT_TIMEOUT, seen).await.unwrap_or_else(|_| panic!("its 90th percentile stays at {:?}", p90(replica)))
}

#[tokio::test]
async fn latencies_measured_by_one_replica_reach_the_others_and_new_ones() {
    let spec = BreakerSpec::latency(0.9, 10 * SECOND, Duration::ZERO).window(WINDOW);
    let setup = Setup::new(Redis::shared().await).policy(Policy::named("timed").breaker(spec)).generous_budget();
    let [mut one, mut other] = replicas(&setup).await;
    // A hundred slow samples on one replica; ten fast ones on the other, too few for a quantile of their own.
    other.run(Load::once("timed", "r").callers(10)).await;
    one.execute(Command::SetDependency(DependencyBehavior::SucceedAfter(80 * MS))).await;
    one.run(Load::once("timed", "r").callers(100)).await;
    let there = until_p90(&other, |latency| latency > 70 * MS).await;
    let mut newcomer = replica(&setup).await;
    newcomer.run(Load::once("timed", "r")).await;
    let new = until_p90(&newcomer, |latency| latency > 70 * MS).await;
    println!("p90 of 80 ms: {there:?} on the other replica, {new:?} on a new one");
}

#[tokio::test]
async fn latencies_measured_by_one_replica_trip_the_circuit_of_all() {
    let spec = BreakerSpec::latency(0.9, 40 * MS, Duration::ZERO).window(WINDOW).break_for(60 * SECOND);
    let setup = Setup::new(Redis::shared().await).policy(Policy::named("timed").breaker(spec)).generous_budget();
    let [mut one, mut other] = replicas(&setup).await;
    other.start(Load::lasting("timed", "r", WAIT_TIMEOUT).pause(10 * MS).until_rejected());
    one.execute(Command::SetDependency(DependencyBehavior::SucceedAfter(80 * MS))).await;
    one.start(Load::lasting("timed", "r", WAIT_TIMEOUT).callers(40).until_rejected());
    let (slow, quick) = (one.execute(Command::Finish).await.tally, other.execute(Command::Finish).await.tally);
    println!("slow: {:?} {:?}, quick: {:?} {:?}", slow.admitted, slow.rejected, quick.admitted, quick.rejected);
    for tally in [slow, quick] {
        assert_eq!(tally.reasons(), ["circuit_open"], "{tally:#?}");
    }
}

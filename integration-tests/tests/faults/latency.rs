//! Latencies are the fleet's: one replica sees what the others measure, and a new one starts with what they know.

use std::time::Duration;

use phalanx::store::StateKey;
use phalanx::store::{LatencyDigestStore, Store};
use phalanx::{BreakerSpec, Policy};
use phalanx_integration_tests::replica::{Behaviour, Load, Order, Setup, Worker};
use phalanx_integration_tests::server::Redis;
use tokio::time::{sleep, timeout};

use crate::kit::{MS, PATIENCE, SECOND, worker, workers};

const WINDOW: Duration = Duration::from_secs(10);

/// The fleet's 90th percentile, as this replica has it.
fn p90(replica: &Worker) -> Option<Duration> {
    let store = replica.module().redis_store().unwrap();
    let digest = store.digest(&StateKey::new("timed", "r"), WINDOW);
    store.quantile(&digest, store.clock().now(), 0.9)
}

async fn until_p90(replica: &Worker, wanted: impl Fn(Duration) -> bool) -> Duration {
    let seen = async {
        loop {
            match p90(replica) {
                Some(latency) if wanted(latency) => return latency,
                _ => sleep(5 * MS).await,
            }
        }
    };
    timeout(PATIENCE, seen).await.unwrap_or_else(|_| panic!("its 90th percentile stays at {:?}", p90(replica)))
}

#[tokio::test]
async fn what_one_replica_measures_another_sees_and_a_new_one_starts_with() {
    let spec = BreakerSpec::latency(0.9, 10 * SECOND, Duration::ZERO).window(WINDOW);
    let setup = Setup::new(Redis::shared().await).policy(Policy::named("timed").breaker(spec)).patient();
    let [mut one, mut other] = workers(&setup).await;
    // Many quick ones here, so few there that they would mean nothing alone.
    other.run(Load::once("timed", "r").callers(10)).await;
    one.obey(Order::Behave(Behaviour::Slowly(80 * MS))).await;
    one.run(Load::once("timed", "r").callers(100)).await;
    let there = until_p90(&other, |latency| latency > 70 * MS).await;
    let mut newcomer = worker(&setup).await;
    newcomer.run(Load::once("timed", "r")).await;
    let new = until_p90(&newcomer, |latency| latency > 70 * MS).await;
    println!("p90 of 80 ms: {there:?} at the other, {new:?} at a newcomer");
}

#[tokio::test]
async fn latencies_measured_by_one_trip_the_circuit_of_all() {
    let spec = BreakerSpec::latency(0.9, 40 * MS, Duration::ZERO).window(WINDOW).break_for(60 * SECOND);
    let setup = Setup::new(Redis::shared().await).policy(Policy::named("timed").breaker(spec)).patient();
    let [mut one, mut other] = workers(&setup).await;
    other.start(Load::lasting("timed", "r", PATIENCE).pause(10 * MS).until_rejected());
    one.obey(Order::Behave(Behaviour::Slowly(80 * MS))).await;
    one.start(Load::lasting("timed", "r", PATIENCE).callers(40).until_rejected());
    let (slow, quick) = (one.obey(Order::Finish).await.tally, other.obey(Order::Finish).await.tally);
    println!("slow: {:?} {:?}, quick: {:?} {:?}", slow.admitted, slow.rejected, quick.admitted, quick.rejected);
    for tally in [slow, quick] {
        assert_eq!(tally.reasons(), ["circuit_open"], "{tally:#?}");
    }
}

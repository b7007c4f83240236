//! A trip on one replica opens the circuit on all of them.

use std::time::Duration;

use phalanx::{BreakerSpec, Policy};
use phalanx_integration_tests::replica::{Command, DependencyBehavior, Load, ReplicaProcess, Setup, WaitStats};
use phalanx_testkit::server::{Proxy, Redis};
use tokio::time::sleep;

use crate::harness::{MS, SECOND, WAIT_TIMEOUT, exclusive, fleet};

/// Breakers tripped at a time.
const WAVE: usize = 5;
/// Pause between two calls of the other replicas.
const PAUSE: Duration = Duration::from_micros(500);
/// What a busy machine may add to a single trip.
const BUSY: Duration = SECOND;

fn setup(url: &str) -> Setup {
    let spec = BreakerSpec::consecutive_failures(1).break_for(60 * SECOND);
    Setup::new(url).policy(Policy::named("guarded").breaker(spec)).generous_budget()
}

/// Measures, over many breakers, how long after a failure on one replica the others still admit calls. (The last admission
/// is measured and not the first rejection, because a starved caller makes no calls and would delay the rejection.)
async fn delays([one, others @ ..]: &[ReplicaProcess; 3], trips: usize) -> WaitStats {
    one.execute(Command::SetDependency(DependencyBehavior::Fail)).await;
    let mut delays = Vec::new();
    for wave in 0..trips.div_ceil(WAVE) {
        let routes: Vec<_> = (0..WAVE).map(|n| format!("{wave}-{n}")).collect();
        for other in others {
            let load = Load::lasting("guarded", "", 5 * SECOND).routes(routes.clone()).callers(WAVE);
            other.start_load(load.pause(PAUSE).until_rejected()).await;
        }
        for other in others {
            let calling = |calls: u64| calls >= 3 * WAVE as u64;
            other.until(WAIT_TIMEOUT, "calls are admitted", |seen| calling(seen.tally.admitted())).await;
        }
        let failed = one.run(Load::once("guarded", "").routes(routes.clone()).callers(WAVE)).await.tally;
        for other in others {
            let tally = other.execute(Command::Finish).await.tally;
            for route in &routes {
                assert!(tally.first_rejected.contains_key(route), "the trip of {route} was not received within 5 s");
                // The next call would have been one pause later.
                delays.push(tally.last_admitted_on[route].since(failed.first_failed[route]) + PAUSE);
            }
        }
    }
    WaitStats::of(delays)
}

#[tokio::test]
async fn a_trip_is_pushed_to_all_other_replicas_within_20_ms() {
    let _exclusive = exclusive().await;
    let replicas = fleet(&setup(Redis::shared().await)).await;
    let delays = delays(&replicas, 200).await;
    println!("with push: {delays:?}");
    // A host that takes the processor away delays single ones; a poll would take a quarter of a second.
    assert!(delays.p50 <= 20 * MS && delays.p99 <= 100 * MS, "with push: {delays:?}");
}

#[tokio::test]
async fn a_trip_whose_push_is_lost_is_received_with_the_next_heartbeat() {
    const SYNC_INTERVAL: Duration = Duration::from_millis(250);
    const HEARTBEAT: Duration = SECOND;
    let _exclusive = exclusive().await;
    let redis = Redis::start().await;
    let proxy = Proxy::start(redis.address()).await;
    let replicas = fleet(&setup(&redis.url()).with_push_url(proxy.url()).sync_interval(SYNC_INTERVAL)).await;
    // Subscriptions receive nothing any more, and neither do new ones.
    proxy.stall_all();
    sleep(10 * MS).await;
    let delays = delays(&replicas, 60).await;
    println!("without push: {delays:?}, {:?}", proxy.stats());
    // With a heartbeat, until the replicas notice that nothing arrives any more, and then within one sync interval. A busy
    // machine delays single ones. The bound itself is an oracle of the simulator.
    assert!(delays.p50 <= HEARTBEAT + 50 * MS && delays.worst <= HEARTBEAT + BUSY, "without push: {delays:?}");
    assert!(delays.p50 > 20 * MS, "the push still worked: {delays:?}");
}

//! One replica's trip is everybody's.

use std::time::Duration;

use phalanx::{BreakerSpec, Policy};
use phalanx_integration_tests::replica::{Behaviour, Child, Load, Order, Setup, Waits};
use phalanx_integration_tests::server::{Proxy, Redis};
use tokio::time::sleep;

use crate::kit::{MS, PATIENCE, SECOND, fleet, quiet};

/// Circuits tripped at a time.
const WAVE: usize = 5;
/// Between two calls of those who watch.
const PAUSE: Duration = Duration::from_micros(500);

fn setup(url: &str) -> Setup {
    let spec = BreakerSpec::consecutive_failures(1).break_for(60 * SECOND);
    Setup::new(url).policy(Policy::named("guarded").breaker(spec)).patient()
}

/// How long after one replica's dependency failed the others still let calls through, over many circuits. (A caller
/// that has no processor makes no calls, so a crowded machine delays this less than it would delay the first rejection.)
async fn delays([one, others @ ..]: &[Child; 3], trips: usize) -> Waits {
    one.obey(Order::Behave(Behaviour::Badly)).await;
    let mut delays = Vec::new();
    for wave in 0..trips.div_ceil(WAVE) {
        let routes: Vec<_> = (0..WAVE).map(|n| format!("{wave}-{n}")).collect();
        for other in others {
            let load = Load::lasting("guarded", "", 5 * SECOND).routes(routes.clone()).callers(WAVE);
            other.start_load(load.pause(PAUSE).until_rejected()).await;
        }
        for other in others {
            let calling = |calls: u64| calls >= 3 * WAVE as u64;
            other.until(PATIENCE, "callers pass", |seen| calling(seen.tally.admitted())).await;
        }
        let failed = one.run(Load::once("guarded", "").routes(routes.clone()).callers(WAVE)).await.tally;
        for other in others {
            let tally = other.obey(Order::Finish).await.tally;
            for route in &routes {
                assert!(tally.first_rejected.contains_key(route), "the trip of {route} was not seen within 5 s");
                // The next call would have been a pause later.
                delays.push(tally.last_admitted_on[route].since(failed.first_failed[route]) + PAUSE);
            }
        }
    }
    Waits::of(delays)
}

#[tokio::test]
async fn a_trip_is_pushed_to_all_others_within_20_ms() {
    let _quiet = quiet().await;
    let replicas = fleet(&setup(Redis::shared().await)).await;
    let delays = delays(&replicas, 200).await;
    println!("with push: {delays:?}");
    assert!(delays.p99 <= 20 * MS, "with push: {delays:?}");
}

#[tokio::test]
async fn a_trip_whose_push_is_lost_is_seen_within_one_round() {
    const ROUND: Duration = Duration::from_millis(250);
    let _quiet = quiet().await;
    let redis = Redis::start().await;
    let proxy = Proxy::start(redis.address()).await;
    let replicas = fleet(&setup(&redis.url()).push_by(proxy.url()).sync_interval(ROUND)).await;
    // Whoever listens hears nothing any more, and whoever tries again hears nothing either.
    proxy.stall_all();
    sleep(10 * MS).await;
    let delays = delays(&replicas, 60).await;
    println!("without push: {delays:?}, {:?}", proxy.stats());
    assert!(delays.p99 <= ROUND + 50 * MS, "without push: {delays:?}");
    assert!(delays.p50 > 20 * MS, "the push was not cut: {delays:?}");
}

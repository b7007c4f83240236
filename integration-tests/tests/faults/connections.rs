//! Connections that break, and connections that swallow everything.

use phalanx::{BreakerSpec, Policy, RejectionCode, Source};
use phalanx_integration_tests::replica::{Behaviour, Heard, Load, Moment, Order, Setup};
use phalanx_integration_tests::server::{Proxy, Spawned};
use tokio::time::sleep;

use crate::kit::{MS, PATIENCE, SECOND, assert_one_outage, callers, plenty, worker, workers};

fn guarded() -> Policy {
    Policy::named("guarded").breaker(BreakerSpec::consecutive_failures(1).break_for(60 * SECOND))
}

#[tokio::test]
async fn scripts_flushed_again_and_again_are_sent_again_and_nobody_notices() {
    let redis = Spawned::start().await;
    let mut worker = worker(&Setup::new(redis.url()).policy(plenty()).patient()).await;
    worker.start(callers());
    let began = Moment::now();
    let mut flushes = 0;
    while began.elapsed() < SECOND {
        redis.cli(&["SCRIPT", "FLUSH"]).await;
        flushes += 1;
    }
    let seen = worker.obey(Order::Enough).await;
    let tally = &seen.tally;
    println!("{flushes} flushes, {:?}, waits {:?}", tally.admitted, tally.asking);
    assert_eq!(seen.outages(), Vec::<&str>::new());
    assert_eq!(tally.decided_by(Source::Degraded), 0, "decided without Redis");
    assert!(flushes > 100 && tally.admitted_by(Source::Fleet) > 100, "{flushes} flushes, {:?}", tally.admitted);
}

#[tokio::test]
async fn connections_killed_again_and_again_are_opened_again_and_callers_see_no_error() {
    const KILLS: u32 = 20;
    let redis = Spawned::start().await;
    let round = 2 * SECOND;
    let setup = Setup::new(redis.url()).policy(plenty()).policy(guarded()).sync_interval(round).patient();
    let [mut one, mut other] = workers(&setup).await;
    // So many keys that several round trips are under way at a time: what breaks is one connection all the same.
    one.start(callers().routes((0..16).map(|n| n.to_string())).callers(16));
    let mut delays = Vec::new();
    for _ in 0..KILLS {
        sleep(50 * MS).await;
        let killed = Moment::now();
        for kind in ["pubsub", "normal"] {
            redis.cli(&["CLIENT", "KILL", "TYPE", kind]).await;
        }
        let fleet = one.look().tally.admitted_by(Source::Fleet);
        // More than were on their way when it broke.
        let seen =
            one.until(PATIENCE, "Redis decides", |seen| seen.tally.admitted_by(Source::Fleet) > fleet + 16).await;
        delays.push(seen.at.since(killed));
    }
    let seen = one.obey(Order::Enough).await;
    delays.sort_unstable();
    println!("{KILLS} kills: Redis decided again after {delays:?}; {:?}", seen.tally.admitted);
    assert!(seen.tally.rejected.is_empty(), "{:?}", seen.tally.rejected);
    // Two of twenty may be the machine's doing.
    assert!(delays[KILLS as usize - 3] < 100 * MS, "Redis decided again after {delays:?}");
    assert_eq!(seen.outages(), Vec::<&str>::new(), "a broken connection is no outage");
    let alone = seen.tally.decided_by(Source::Degraded);
    assert!(alone <= u64::from(KILLS) * 16, "{alone} calls decided alone, of 16 callers at {KILLS} kills");

    // Whoever listens does so again: another one's trip comes by push, well before the next round could bring it.
    let channel = format!("ph1:{}:c", setup.environment);
    redis.until(&["PUBSUB", "NUMSUB", &channel], |answer| answer.ends_with("\n2")).await;
    other.run(Load::once("guarded", "r")).await;
    one.obey(Order::Behave(Behaviour::Badly)).await;
    let failed = one.run(Load::once("guarded", "r")).await.tally.first_failed["r"];
    other.start(Load::lasting("guarded", "r", 5 * SECOND).pause(MS).until_rejected());
    let rejected = other.obey(Order::Finish).await.tally;
    let after = rejected.first_rejected["r"].since(failed);
    assert_eq!(rejected.rejected(RejectionCode::CircuitOpen), 1);
    println!("a trip was pushed after {after:?}");
    assert!(after < SECOND, "a trip was seen after {after:?}: not by push, at rounds of {round:?}");
}

#[tokio::test]
async fn a_connection_that_swallows_everything_is_left_for_a_new_one() {
    let redis = Spawned::start().await;
    let proxy = Proxy::start(redis.address()).await;
    let mut worker = worker(&Setup::new(proxy.url()).policy(plenty())).await;
    worker.start(callers());
    worker.until(PATIENCE, "all is well", |seen| seen.tally.admitted_by(Source::Fleet) > 20).await;
    let swallowed = Moment::now();
    proxy.stall();
    worker.until(PATIENCE, "Redis is back", |seen| seen.recoveries() == 1).await;
    let seen = worker.obey(Order::Enough).await;
    let back = seen.moments(|what| matches!(what, Heard::Recovered { .. }))[0].since(swallowed);
    println!("back {back:?} after the connection went silent; lost at most {:?}", seen.tally.most_lost);
    assert_one_outage(&seen, "timeout");
    assert!(back < 500 * MS, "back after {back:?}");
}

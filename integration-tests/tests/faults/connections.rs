//! Connections that break, and connections that hang silently.

use phalanx::{BreakerSpec, Policy, RejectionCode, Source};
use phalanx_integration_tests::replica::{Command, DependencyBehavior, Load, LoggedKind, Moment, Setup};
use phalanx_testkit::server::{Proxy, RedisProcess};
use tokio::time::sleep;

use crate::harness::{MS, SECOND, WAIT_TIMEOUT, assert_one_outage, callers, plenty, replica, replicas};

fn guarded() -> Policy {
    Policy::named("guarded").breaker(BreakerSpec::consecutive_failures(1).break_for(60 * SECOND))
}

#[tokio::test]
async fn flushed_scripts_are_sent_again_without_a_degraded_decision() {
    let redis = RedisProcess::start().await;
    let mut replica = replica(&Setup::new(redis.url()).policy(plenty()).generous_budget()).await;
    replica.start(callers());
    let began = Moment::now();
    let mut flushes = 0;
    while began.elapsed() < SECOND {
        redis.cli(&["SCRIPT", "FLUSH"]).await;
        flushes += 1;
    }
    let seen = replica.execute(Command::Stop).await;
    let tally = &seen.tally;
    println!("{flushes} flushes, {:?}, waits {:?}", tally.admitted, tally.store_waits);
    assert_eq!(seen.outages(), Vec::<&str>::new());
    assert_eq!(tally.decided_by(Source::Degraded), 0, "decided without Redis");
    assert!(flushes > 100 && tally.admitted_by(Source::Fleet) > 100, "{flushes} flushes, {:?}", tally.admitted);
}

#[tokio::test]
async fn killed_connections_are_reopened_and_callers_see_no_error() {
    const KILLS: u32 = 20;
    let redis = RedisProcess::start().await;
    let round = 2 * SECOND;
    let setup = Setup::new(redis.url()).policy(plenty()).policy(guarded()).sync_interval(round).generous_budget();
    let [mut one, mut other] = replicas(&setup).await;
    // Many keys, so that several round trips are in flight when the one connection breaks.
    one.start(callers().routes((0..16).map(|n| n.to_string())).callers(16));
    let mut delays = Vec::new();
    for _ in 0..KILLS {
        sleep(50 * MS).await;
        let killed = Moment::now();
        for kind in ["pubsub", "normal"] {
            redis.cli(&["CLIENT", "KILL", "TYPE", kind]).await;
        }
        let fleet = one.report().tally.admitted_by(Source::Fleet);
        // More than were in flight when it broke.
        let seen =
            one.until(WAIT_TIMEOUT, "Redis decides", |seen| seen.tally.admitted_by(Source::Fleet) > fleet + 16).await;
        delays.push(seen.at.since(killed));
    }
    let seen = one.execute(Command::Stop).await;
    delays.sort_unstable();
    println!("{KILLS} kills: Redis decided again after {delays:?}; {:?}", seen.tally.admitted);
    assert!(seen.tally.rejected.is_empty(), "{:?}", seen.tally.rejected);
    // Half of them in time: on a busy machine the processes of this test wait for a core.
    assert!(delays[KILLS as usize / 2] < 100 * MS, "Redis decided again after {delays:?}");
    assert_eq!(seen.outages(), Vec::<&str>::new(), "a broken connection is not an outage");
    let degraded = seen.tally.decided_by(Source::Degraded);
    assert!(degraded <= u64::from(KILLS) * 16, "{degraded} degraded decisions, of 16 callers at {KILLS} kills");

    // The subscription is restored too: another replica's trip is pushed, well before the next periodic sync.
    let channel = format!("ph2:test.{}:c", setup.environment);
    redis.until(&["PUBSUB", "NUMSUB", &channel], |reply| reply.ends_with("\n2")).await;
    other.run(Load::once("guarded", "r")).await;
    one.execute(Command::SetDependency(DependencyBehavior::Fail)).await;
    let failed = one.run(Load::once("guarded", "r")).await.tally.first_failed["r"];
    other.start(Load::lasting("guarded", "r", 5 * SECOND).pause(MS).until_rejected());
    let rejected = other.execute(Command::Finish).await.tally;
    let after = rejected.first_rejected["r"].since(failed);
    assert_eq!(rejected.rejected(RejectionCode::CircuitOpen), 1);
    println!("a trip was pushed after {after:?}");
    assert!(after < SECOND, "a trip was received after {after:?}: not by push, with a sync interval of {round:?}");
}

#[tokio::test]
async fn a_connection_that_swallows_everything_is_replaced_by_a_new_one() {
    let redis = RedisProcess::start().await;
    let proxy = Proxy::start(redis.address()).await;
    let mut replica = replica(&Setup::new(proxy.url()).policy(plenty())).await;
    replica.start(callers());
    replica.until(WAIT_TIMEOUT, "Redis decides", |seen| seen.tally.admitted_by(Source::Fleet) > 20).await;
    let stalled = Moment::now();
    proxy.stall();
    replica.until(WAIT_TIMEOUT, "the store recovers", |seen| seen.recoveries() == 1).await;
    let seen = replica.execute(Command::Stop).await;
    let back = seen.moments(|kind| matches!(kind, LoggedKind::Recovered { .. }))[0].since(stalled);
    println!("recovered {back:?} after the connection stalled; lost at most {:?}", seen.tally.max_lost);
    assert_one_outage(&seen, "timeout");
    assert!(back < 500 * MS, "recovered after {back:?}");
}

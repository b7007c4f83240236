//! From shared to degraded decisions and back: a share of the rate while degraded, which is charged afterwards, open circuits
//! kept.

use std::time::Duration;

use phalanx::{BreakerSpec, Policy, RateLimitSpec, RejectionCode, Source};
use phalanx_integration_tests::replica::{Command, DependencyBehavior, Load, LoggedKind, Moment, Setup};
use phalanx_testkit::server::RedisProcess;
use tokio::time::sleep;

use crate::harness::{MS, SECOND, WAIT_TIMEOUT, replica, replicas};

/// Longer than usual, because on a busy machine a missed reply of a healthy Redis would be a degraded decision.
const BUDGET: Duration = Duration::from_millis(60);

#[tokio::test]
async fn while_degraded_each_of_three_replicas_admits_a_third_of_the_rate_and_of_the_burst() {
    const RATE: u64 = 30;
    const BURST: u64 = 90;
    let redis = RedisProcess::start().await;
    let policy = Policy::named("limited").rate_limit(RateLimitSpec::per_second(RATE).burst(BURST));
    let mut replicas = replicas::<3>(&Setup::new(redis.url()).policy(policy).store_budget(BUDGET)).await;
    for replica in &mut replicas {
        replica.run(Load::once("limited", "r")).await; // all replicas have the level of the bucket
    }
    let began = Moment::now();
    redis.stop();
    for replica in &mut replicas {
        replica.start(Load::lasting("limited", "r", 1_500 * MS).callers(20).pause(5 * MS));
    }
    let mut total = 0;
    for replica in &mut replicas {
        let seen = replica.execute(Command::Finish).await;
        let (admitted, time) = (seen.tally.admitted(), seen.tally.last_admitted.unwrap().since(began));
        let most = (BURST as f64 + RATE as f64 * time.as_secs_f64()) / 3.0;
        println!("degraded: {admitted} admitted in {time:?}, at most {most:.1}");
        assert_eq!(seen.tally.admitted_by(Source::Degraded), admitted);
        assert!(admitted as f64 <= most, "{admitted} admitted while degraded in {time:?}, at most {most:.1}");
        assert!(admitted as f64 >= 0.9 * most, "{admitted} admitted while degraded in {time:?}, of {most:.1}");
        total += admitted;
    }
    let most = BURST as f64 + RATE as f64 * began.elapsed().as_secs_f64();
    assert!(total as f64 <= most, "{total} admitted by all three, at most {most:.1}");
}

#[tokio::test]
async fn permits_granted_while_degraded_are_charged_after_recovery() {
    let redis = RedisProcess::start().await;
    // A rate so low that nothing is refilled during the test.
    let policy = Policy::named("limited").rate_limit(RateLimitSpec::new(1, 3_600 * SECOND).burst(100));
    let mut replica = replica(&Setup::new(redis.url()).policy(policy).store_budget(BUDGET)).await;
    let left = async |replica: &phalanx_integration_tests::replica::LocalReplica| {
        replica.module().pipeline("limited", "r").unwrap().available_permits().await
    };
    replica.run(Load::once("limited", "r").callers(10)).await;
    assert_eq!(left(&replica).await, Some(90));
    redis.stop();
    replica.start(Load::lasting("limited", "r", 10 * BUDGET).callers(10).pause(5 * MS));
    let degraded = replica.execute(Command::Finish).await.tally;
    assert_eq!(
        degraded.admitted_by(Source::Degraded),
        90,
        "the degraded bucket starts at the last level: {degraded:#?}"
    );
    redis.resume();
    replica.until(WAIT_TIMEOUT, "the store recovers", |seen| seen.recoveries() == 1).await;
    // Requests sent while Redis hung are executed late: they cost permits, and charge what was granted before they were
    // sent. The rest is charged by the next call.
    let before = left(&replica).await.unwrap();
    println!("{before} left before the first call");
    assert!(before <= 90, "{before} left");
    let next = replica.run(Load::once("limited", "r")).await.tally;
    assert_eq!(next.admitted(), 0, "the burst of a hundred is used up: {next:#?}");
    assert_eq!(left(&replica).await, Some(0));
}

#[tokio::test]
async fn a_circuit_opened_while_degraded_stays_open_on_its_replica_until_its_break_is_over() {
    const BREAK: Duration = Duration::from_secs(4);
    let redis = RedisProcess::start().await;
    let policy = Policy::named("guarded").breaker(BreakerSpec::consecutive_failures(3).break_for(BREAK));
    let [mut one, mut other] = replicas(&Setup::new(redis.url()).policy(policy)).await;
    for replica in [&mut one, &mut other] {
        replica.run(Load::once("guarded", "r")).await;
    }
    redis.stop();
    // Calls on a closed circuit do not ask Redis, so only a heartbeat or a failure detects the outage.
    one.execute(Command::SetDependency(DependencyBehavior::Fail)).await;
    one.start(Load::lasting("guarded", "r", 60 * SECOND).pause(5 * MS).until_rejected());
    let seen = one.execute(Command::Finish).await;
    let opened = seen.moments(|kind| matches!(kind, LoggedKind::Opened { .. }))[0];
    assert_eq!(seen.tally.rejected[RejectionCode::CircuitOpen.name()].get("degraded"), Some(&1), "{:#?}", seen.tally);
    one.execute(Command::SetDependency(DependencyBehavior::Succeed)).await;
    redis.resume();
    for replica in [&one, &other] {
        let recovered = |outages: usize, recoveries| outages == recoveries && outages <= 1;
        replica
            .until(WAIT_TIMEOUT, "the store recovers", |seen| {
                !seen.degraded && recovered(seen.outages().len(), seen.recoveries())
            })
            .await;
    }
    assert!(opened.elapsed() < BREAK - SECOND, "the machine is too slow for this test: {:?}", opened.elapsed());

    // The fleet's circuit is closed, and the other replica uses it.
    let tally = other.run(Load::once("guarded", "r")).await.tally;
    assert_eq!(tally.admitted_by(Source::Fleet), 1, "{tally:#?}");
    sleep(300 * MS).await; // a periodic sync has received the fleet's phase
    one.start(Load::lasting("guarded", "r", 60 * SECOND).pause(5 * MS).until_rejected());
    assert_eq!(one.execute(Command::Finish).await.tally.admitted(), 0, "it is held open on this replica");
    one.start(Load::lasting("guarded", "r", 2 * BREAK).pause(5 * MS));
    one.until(2 * BREAK, "calls are admitted again", |seen| seen.tally.admitted() > 0).await;
    let tally = one.execute(Command::Stop).await.tally;
    let passed = tally.first_admitted.unwrap().since(opened);
    println!("closed {passed:?} after it opened while degraded, with a break of {BREAK:?}");
    assert!(passed >= BREAK - 10 * MS && passed <= BREAK + 200 * MS, "{passed:?} with a break of {BREAK:?}");
    assert_eq!(tally.admitted_by(Source::Fleet), tally.admitted());
}

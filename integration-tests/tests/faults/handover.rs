//! From the fleet's word to one's own and back: a share of the rate alone, nothing counted twice, an open circuit kept.

use std::time::Duration;

use phalanx::{BreakerSpec, Policy, RateLimitSpec, RejectionCode, Source};
use phalanx_integration_tests::replica::{Behaviour, Heard, Load, Moment, Order, Setup};
use phalanx_integration_tests::server::Spawned;
use tokio::time::sleep;

use crate::kit::{MS, PATIENCE, SECOND, worker, workers};

/// Longer than usual: what a busy machine makes a healthy Redis miss would be taken alone.
const BUDGET: Duration = Duration::from_millis(60);

#[tokio::test]
async fn alone_each_of_three_takes_a_third_of_the_rate_and_a_third_of_the_burst() {
    const RATE: u64 = 30;
    const BURST: u64 = 90;
    let redis = Spawned::start().await;
    let policy = Policy::named("limited").rate_limit(RateLimitSpec::per_second(RATE).burst(BURST));
    let mut replicas = workers::<3>(&Setup::new(redis.url()).policy(policy).store_budget(BUDGET)).await;
    for replica in &mut replicas {
        replica.run(Load::once("limited", "r")).await; // all have seen how full it is
    }
    let began = Moment::now();
    redis.stop();
    for replica in &mut replicas {
        replica.start(Load::lasting("limited", "r", 1_500 * MS).callers(20).pause(5 * MS));
    }
    let mut total = 0;
    for replica in &mut replicas {
        let seen = replica.obey(Order::Finish).await;
        let (admitted, time) = (seen.tally.admitted(), seen.tally.last_admitted.unwrap().since(began));
        let most = (BURST as f64 + RATE as f64 * time.as_secs_f64()) / 3.0;
        println!("alone: {admitted} admitted in {time:?}, at most {most:.1}");
        assert_eq!(seen.tally.admitted_by(Source::Degraded), admitted);
        assert!(admitted as f64 <= most, "{admitted} admitted alone in {time:?}, at most {most:.1}");
        assert!(admitted as f64 >= 0.9 * most, "{admitted} admitted alone in {time:?}, of {most:.1}");
        total += admitted;
    }
    let most = BURST as f64 + RATE as f64 * began.elapsed().as_secs_f64();
    assert!(total as f64 <= most, "{total} admitted by all three, at most {most:.1}");
}

#[tokio::test]
async fn what_was_taken_alone_is_not_taken_again_when_redis_is_back() {
    let redis = Spawned::start().await;
    // So slow that nothing comes back while the test runs.
    let policy = Policy::named("limited").rate_limit(RateLimitSpec::new(1, 3_600 * SECOND).burst(100));
    let mut replica = worker(&Setup::new(redis.url()).policy(policy).store_budget(BUDGET)).await;
    let left = async |replica: &phalanx_integration_tests::replica::Worker| {
        replica.module().pipeline("limited", "r").unwrap().available_permits().await
    };
    replica.run(Load::once("limited", "r").callers(10)).await;
    assert_eq!(left(&replica).await, Some(90));
    redis.stop();
    replica.start(Load::lasting("limited", "r", 10 * BUDGET).callers(10).pause(5 * MS));
    let alone = replica.obey(Order::Finish).await.tally;
    assert_eq!(alone.admitted_by(Source::Degraded), 90, "alone it has what was left: {alone:#?}");
    redis.cont();
    replica.until(PATIENCE, "Redis is back", |seen| seen.recoveries() == 1).await;
    // What was asked while it hung is executed late, and costs the fleet; what was taken alone does not.
    let late = alone.decided_by(Source::Degraded) - alone.alone.count as u64;
    let left = left(&replica).await.unwrap();
    println!("{left} left; {late} calls were asked for while it hung");
    assert!(left >= 90_u64.saturating_sub(late) && left <= 90, "{left} left, {late} asked for in vain");
    assert!(left > 0, "the test shows nothing");
}

#[tokio::test]
async fn a_circuit_opened_alone_stays_open_here_until_its_own_break_is_over() {
    const BREAK: Duration = Duration::from_secs(4);
    let redis = Spawned::start().await;
    let policy = Policy::named("guarded").breaker(BreakerSpec::consecutive_failures(3).break_for(BREAK));
    let [mut one, mut other] = workers(&Setup::new(redis.url()).policy(policy)).await;
    for replica in [&mut one, &mut other] {
        replica.run(Load::once("guarded", "r")).await;
    }
    redis.stop();
    // Nobody asks while a circuit is closed, so nobody would notice; a sign of life does, or bad news.
    one.obey(Order::Behave(Behaviour::Badly)).await;
    one.start(Load::lasting("guarded", "r", 60 * SECOND).pause(5 * MS).until_rejected());
    let seen = one.obey(Order::Finish).await;
    let opened = seen.moments(|what| matches!(what, Heard::Opened { .. }))[0];
    assert_eq!(seen.tally.rejected[RejectionCode::CircuitOpen.name()].get("degraded"), Some(&1), "{:#?}", seen.tally);
    one.obey(Order::Behave(Behaviour::Well)).await;
    redis.cont();
    for replica in [&one, &other] {
        let told = |outages: usize, recoveries| outages == recoveries && outages <= 1;
        replica
            .until(PATIENCE, "Redis is back", |seen| !seen.alone && told(seen.outages().len(), seen.recoveries()))
            .await;
    }
    assert!(opened.elapsed() < BREAK - SECOND, "the machine is too slow for this test: {:?}", opened.elapsed());

    // The fleet's circuit is closed, and others use it.
    let tally = other.run(Load::once("guarded", "r")).await.tally;
    assert_eq!(tally.admitted_by(Source::Fleet), 1, "{tally:#?}");
    sleep(300 * MS).await; // a round has told how the fleet's stands
    one.start(Load::lasting("guarded", "r", 60 * SECOND).pause(5 * MS).until_rejected());
    assert_eq!(one.obey(Order::Finish).await.tally.admitted(), 0, "it is held open here");
    one.start(Load::lasting("guarded", "r", 2 * BREAK).pause(5 * MS));
    one.until(2 * BREAK, "it passes again", |seen| seen.tally.admitted() > 0).await;
    let tally = one.obey(Order::Enough).await.tally;
    let passed = tally.first_admitted.unwrap().since(opened);
    println!("closed {passed:?} after it was opened alone for {BREAK:?}");
    assert!(passed >= BREAK - 10 * MS && passed <= BREAK + 200 * MS, "{passed:?}, and its break is {BREAK:?}");
    assert_eq!(tally.admitted_by(Source::Fleet), tally.admitted());
}

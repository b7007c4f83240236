//! `FaultyRedis` through the front door: outages and recoveries in virtual time.

#![allow(clippy::unwrap_used)] // a failed test panics, also in helpers

use std::time::Duration;

use phalanx::store::StoreMode;
use phalanx::{BreakerSpec, Error, Kind, Policy, RateLimitSpec, RejectionCode, ResilienceModule};
use phalanx_testkit::FaultyRedis;
use tokio::time::{Instant, sleep};

fn limited(redis: &FaultyRedis, per_second: u64) -> ResilienceModule {
    let policy = Policy::named("vendor").rate_limit(RateLimitSpec::per_second(per_second));
    ResilienceModule::with_redis(redis).service("shop").policy(policy).build().unwrap()
}

async fn admitted(module: &ResilienceModule, calls: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..calls {
        admitted += usize::from(module.run("vendor", "eu", || async { Ok::<_, Kind>(()) }).await.is_ok());
    }
    admitted
}

#[tokio::test(start_paused = true)]
async fn two_replicas_share_one_limit() {
    let redis = FaultyRedis::new();
    let (one, other) = (limited(&redis, 10), limited(&redis, 10));
    assert_eq!(admitted(&one, 7).await + admitted(&other, 7).await, 10);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_server_degrades_and_a_started_one_recovers() {
    let redis = FaultyRedis::new();
    let module = limited(&redis, 10);
    admitted(&module, 1).await;
    redis.stop();
    admitted(&module, 5).await;
    assert_eq!(module.store_mode(), Some(StoreMode::Degraded));
    redis.start();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(module.store_mode(), Some(StoreMode::Shared));
}

#[tokio::test(start_paused = true)]
async fn a_hang_costs_a_caller_at_most_the_budget() {
    let redis = FaultyRedis::new();
    let module = limited(&redis, 10);
    admitted(&module, 1).await;
    redis.hang();
    for _ in 0..5 {
        let start = Instant::now();
        admitted(&module, 1).await;
        assert!(start.elapsed() <= Duration::from_millis(25), "{:?}", start.elapsed());
    }
    assert_eq!(module.store_mode(), Some(StoreMode::Degraded));
    redis.resume();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(module.store_mode(), Some(StoreMode::Shared));
}

#[tokio::test(start_paused = true)]
async fn a_trip_is_pushed_to_the_other_replica_and_a_lost_push_is_found_with_the_heartbeat() {
    for (lose, most) in [(false, 20), (true, 1_050)] {
        let redis = FaultyRedis::new();
        redis.set_latency(Duration::from_millis(1));
        let module = || {
            let policy = Policy::named("vendor").breaker(BreakerSpec::consecutive_failures(3));
            ResilienceModule::with_redis(&redis).policy(policy).build().unwrap()
        };
        let (one, other) = (module(), module());
        other.run("vendor", "eu", || async { Ok::<_, Kind>(()) }).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        redis.lose_pushes(lose);
        // The other replica has a failure too: it is not asked for its outcomes, because that message is lost as well.
        other.run("vendor", "eu", || async { Err::<(), _>(Kind::Infrastructure) }).await.unwrap_err();
        for _ in 0..3 {
            one.run("vendor", "eu", || async { Err::<(), _>(Kind::Infrastructure) }).await.unwrap_err();
        }
        let tripped = Instant::now();
        loop {
            match other.run("vendor", "eu", || async { Err::<(), _>(Kind::Throttled) }).await {
                Err(Error::Rejected(rejection)) if rejection.code() == RejectionCode::CircuitOpen => break,
                _ => sleep(Duration::from_millis(1)).await,
            }
        }
        assert!(tripped.elapsed() <= Duration::from_millis(most), "{:?}", tripped.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_without_data_gives_one_burst_and_a_restart_with_data_none() {
    let redis = FaultyRedis::new();
    let module = limited(&redis, 10);
    assert_eq!(admitted(&module, 20).await, 10);
    redis.restart_with_data_of(Duration::ZERO);
    assert!(admitted(&module, 20).await <= 1);
    redis.restart_empty();
    sleep(Duration::from_millis(200)).await; // the last rejection is remembered for its time
    let again = admitted(&module, 40).await;
    assert!((10..=14).contains(&again), "{again}");
}

#[tokio::test(start_paused = true)]
async fn in_a_cluster_a_stopped_master_degrades_only_its_own_keys() {
    let redis = FaultyRedis::cluster(3);
    // The buckets of one policy are on one master.
    let policy = |number: u32| Policy::named(format!("vendor {number}")).rate_limit(RateLimitSpec::per_second(1_000));
    let module = ResilienceModule::with_redis(&redis).policies((0..30).map(policy)).build().unwrap();
    let call_all = async || {
        for number in 0..30 {
            module.run(&format!("vendor {number}"), "eu", || async { Ok::<_, Kind>(()) }).await.unwrap();
        }
    };
    call_all().await;
    assert_eq!(module.store_mode(), Some(StoreMode::Shared));
    redis.stop_master(1);
    call_all().await;
    sleep(Duration::from_millis(50)).await;
    assert_eq!(module.store_mode(), Some(StoreMode::Partial));
    redis.start_master(1);
    sleep(Duration::from_secs(4)).await;
    assert_eq!(module.store_mode(), Some(StoreMode::Shared));
    redis.move_slots(0..5_000, 2);
    call_all().await;
    assert_eq!(module.store_mode(), Some(StoreMode::Shared), "slots move without a degraded decision");
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_opened_in_one_outage_stays_open_in_the_next() {
    let redis = FaultyRedis::new();
    let spec = BreakerSpec::consecutive_failures(3).break_for(Duration::from_secs(20));
    let policy = Policy::named("vendor").breaker(spec);
    let module = ResilienceModule::with_redis(&redis).policy(policy).build().unwrap();
    let succeed = || module.run("vendor", "eu", || async { Ok::<_, Kind>(()) });
    succeed().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    redis.stop();
    sleep(Duration::from_secs(1)).await;
    for _ in 0..3 {
        module.run("vendor", "eu", || async { Err::<(), _>(Kind::Infrastructure) }).await.unwrap_err();
    }
    assert!(succeed().await.is_err(), "it opened without Redis");
    redis.start();
    sleep(Duration::from_secs(4)).await;
    assert_eq!(module.store_mode(), Some(StoreMode::Shared));
    assert!(succeed().await.is_err(), "Redis does not know of it, but this replica does");
    redis.stop();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(module.store_mode(), Some(StoreMode::Degraded));
    assert!(succeed().await.is_err(), "the break has not ended");
    sleep(Duration::from_secs(20)).await;
    succeed().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_is_not_executed_and_a_lost_reply_is() {
    let redis = FaultyRedis::new();
    let module = limited(&redis, 10);
    admitted(&module, 1).await;
    for (lose, executed) in
        [(FaultyRedis::lose_request as fn(&FaultyRedis, &str, u64), 1), (FaultyRedis::lose_reply, 2)]
    {
        let before = redis.runs_of("rate_limit_acquire");
        lose(&redis, "rate_limit_acquire", 2);
        for _ in 0..2 {
            assert_eq!(module.store_mode(), Some(StoreMode::Shared));
            admitted(&module, 1).await;
        }
        assert_eq!((redis.runs_of("rate_limit_acquire") - before, redis.pending_faults()), (executed, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_is_executed_behind_later_ones() {
    let redis = FaultyRedis::new();
    let module = limited(&redis, 10);
    admitted(&module, 1).await;
    let before = redis.runs_of("rate_limit_acquire");
    redis.delay_request("rate_limit_acquire", 1, Duration::from_millis(100));
    admitted(&module, 2).await;
    assert_eq!(redis.runs_of("rate_limit_acquire") - before, 1, "the second request has overtaken");
    sleep(Duration::from_millis(100)).await;
    assert_eq!(redis.runs_of("rate_limit_acquire") - before, 2);
}

#[tokio::test(start_paused = true)]
async fn scripts_take_their_time_one_after_the_other() {
    let redis = FaultyRedis::new();
    let module = limited(&redis, 1_000);
    admitted(&module, 1).await;
    redis.set_script_time(Duration::from_millis(3));
    let start = Instant::now();
    admitted(&module, 4).await;
    assert_eq!(start.elapsed(), Duration::from_millis(12));
}

#[tokio::test(start_paused = true)]
async fn subscriptions_break_are_denied_or_stay_at_a_former_master() {
    let redis = FaultyRedis::new();
    let module = limited(&redis, 1_000);
    admitted(&module, 1).await;
    let subscribers = || {
        let before = redis.pushes();
        redis.publish("ph2:shop.default:c", "foreign");
        redis.pushes() - before
    };
    assert_eq!(subscribers(), 1);
    redis.break_subscriptions();
    assert_eq!(subscribers(), 0);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(subscribers(), 1, "made again");
    redis.fail_over_isolated(Duration::ZERO);
    assert_eq!(subscribers(), 0, "connected to a server on which nothing is published");
    admitted(&module, 3).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(subscribers(), 1, "made again with the new master, as the connection was");
    redis.deny_channels(true);
    redis.break_subscriptions();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(subscribers(), 0);
}

#[tokio::test(start_paused = true)]
async fn scripts_can_fail_while_health_checks_succeed() {
    let redis = FaultyRedis::new();
    let module = limited(&redis, 10);
    admitted(&module, 1).await;
    redis.fail_scripts(Some("READONLY You can't write against a read only replica."));
    admitted(&module, 1).await;
    assert_eq!(module.store_mode(), Some(StoreMode::Degraded));
    // A heartbeat that fails may end it again, so the moment does not matter.
    let mut recovered = false;
    for _ in 0..300 {
        sleep(Duration::from_millis(10)).await;
        recovered |= module.store_mode() == Some(StoreMode::Shared);
    }
    assert!(redis.runs_of("probe") >= 3);
    assert!(recovered, "by its health checks alone");
}

#[tokio::test(start_paused = true)]
async fn a_script_is_sent_by_its_source_until_the_server_knows_it() {
    let redis = FaultyRedis::new();
    let module = limited(&redis, 1_000);
    admitted(&module, 3).await;
    let known = redis.sources_sent();
    admitted(&module, 3).await;
    assert_eq!(redis.sources_sent(), known);
    redis.flush_scripts();
    admitted(&module, 3).await;
    assert_eq!(redis.sources_sent(), known + 1);
    assert!(
        redis.key_names().iter().any(|key| key.starts_with("ph2:{") && key.contains("}:r:")),
        "{:?}",
        redis.key_names()
    );
}

#[tokio::test(start_paused = true)]
async fn a_trip_that_is_pushed_to_a_degraded_replica_opens_its_breaker_too() {
    let redis = FaultyRedis::new();
    // Seeded: a push that meets a subscription which is just being renewed is lost to a degraded replica.
    let module = |seed| {
        let breaker = BreakerSpec::consecutive_failures(3).break_for(Duration::from_secs(20));
        let policy = Policy::named("vendor").rate_limit(RateLimitSpec::per_second(1_000)).breaker(breaker);
        ResilienceModule::with_redis(&redis).service("shop").seed(seed).policy(policy).build().unwrap()
    };
    let (one, other) = (module(1), module(2));
    assert_eq!((admitted(&one, 1).await, admitted(&other, 1).await), (1, 1));
    sleep(Duration::from_secs(1)).await;
    redis.hang();
    admitted(&other, 4).await;
    assert_eq!(other.store_mode(), Some(StoreMode::Degraded));
    sleep(Duration::from_millis(5)).await;
    assert_eq!(admitted(&other, 3).await, 3, "decided without Redis");
    (1..=100).for_each(|nth| redis.lose_reply("probe", nth)); // it stays degraded
    redis.resume();
    sleep(Duration::from_secs(3)).await; // it has subscribed again, with its new connection
    for _ in 0..3 {
        one.run("vendor", "eu", || async { Err::<(), _>(Kind::Infrastructure) }).await.unwrap_err();
    }
    sleep(Duration::from_millis(100)).await; // the degraded replica is asked for its outcomes and does not answer
    assert_eq!(admitted(&one, 1).await, 0, "it is open");
    assert_eq!(one.store_mode(), Some(StoreMode::Shared));
    assert_eq!(other.store_mode(), Some(StoreMode::Degraded), "its health checks fail");
    assert_eq!(admitted(&other, 1).await, 0, "the push has arrived");
}

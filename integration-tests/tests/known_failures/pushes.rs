//! Pushes that are denied, cut off, forged, or sent to a server that nothing is published on.

use std::time::Duration;

use phalanx_core::breaker::BreakerSpec;
use phalanx_core::kind::Outcome;
use phalanx_core::store::BreakerStore;
use phalanx_store_redis::{RedisOptions, StoreMode};
use phalanx_testkit::FaultyRedis;
use tokio::time::{Instant, sleep};

use crate::harness::*;

/// Five failures in a row, then calls until one is rejected. Returns how many passed.
async fn calls_until_own_trip(redis: &FaultyRedis) -> usize {
    let store = replica(redis, 1);
    let breaker = store.breaker(&key("eu"), &BreakerSpec::consecutive_failures(5).break_for(60 * SECOND));
    call(&store, &breaker, Outcome::Success).await.unwrap();
    sleep(SECOND).await;
    for _ in 0..5 {
        call(&store, &breaker, Outcome::Failure).await.unwrap();
        sleep(MS).await;
    }
    sleep(20 * MS).await; // failures after the first are paced
    for passed in 0..1_000 {
        if call(&store, &breaker, Outcome::Success).await.is_err() {
            return passed;
        }
        sleep(MS).await;
    }
    1_000
}

pub(crate) async fn review_1_14_a_trip_is_known_to_its_replica_although_the_channel_is_denied() -> Seen {
    let allowed = calls_until_own_trip(&FaultyRedis::new()).await;
    assert!(allowed <= 5, "{allowed} calls passed with channels");
    let redis = FaultyRedis::new();
    redis.deny_channels(true);
    let denied = calls_until_own_trip(&redis).await;
    promise(denied <= 5, || {
        format!("{denied} calls passed after the trip of this replica, {allowed} if its user may publish")
    })
}

pub(crate) async fn review_1_14_a_subscription_that_is_denied_is_emitted() -> Seen {
    let (redis, events) = (FaultyRedis::new(), Events::default());
    redis.deny_channels(true);
    let store = builder(&redis, 1).observers(events.observers()).build().unwrap();
    meet(std::slice::from_ref(&store)).await;
    sleep(60 * SECOND).await;
    let notable = events.notable();
    promise(!notable.is_empty(), || {
        "60 s without a subscription, and no event but those of a healthy replica".to_owned()
    })
}

pub(crate) async fn review_1_16_a_subscription_that_is_cut_at_once_is_retried_with_backoff() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let breakers: Vec<_> =
        (0..5).map(|route| store.breaker(&key(&format!("route {route}")), &BreakerSpec::failure_ratio(0.5))).collect();
    for breaker in &breakers {
        call(&store, breaker, Outcome::Success).await.unwrap();
    }
    sleep(3 * SECOND).await;
    let (before, start) = (redis.runs_of("log_heads"), Instant::now());
    while start.elapsed() < 5 * SECOND {
        redis.break_subscriptions();
        sleep(MS).await;
    }
    let checks = redis.runs_of("log_heads") - before;
    assert!(checks > 0, "it was made again");
    drop(breakers);
    // With waits that double from 50 ms to 2 s, five seconds are at most 20 attempts; and there are five heartbeats.
    promise(checks <= 25, || format!("{checks} times in 5 s a subscription checked what it had missed"))
}

pub(crate) async fn a_degraded_replica_stays_subscribed_while_it_connects_again() -> Seen {
    let redis = FaultyRedis::new();
    redis.set_latency(2 * MS);
    let store = replica(&redis, 1);
    meet(std::slice::from_ref(&store)).await;
    sleep(3 * SECOND).await;
    redis.reply_with_error(Some("READONLY You can't write against a read only replica."));
    degrade(&store).await;
    let channel = format!("ph2:{}.default:c", RedisOptions::default().service);
    let (mut published, mut lost, start) = (0, 0, Instant::now());
    while start.elapsed() < 10 * SECOND {
        let before = redis.pushes();
        redis.publish(&channel, "foreign");
        published += 1;
        lost += u64::from(redis.pushes() == before);
        sleep(MS).await;
    }
    assert_eq!(store.mode(), StoreMode::Degraded, "it connects again after every health check");
    promise(lost == 0, || {
        format!(
            "{lost} of {published} messages in 10 s of an outage found no subscription of a replica that was connected"
        )
    })
}

pub(crate) async fn review_1_16_a_forged_push_does_not_cause_writes_for_ever() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let breaker = store.breaker(&key("eu"), &BreakerSpec::failure_ratio(0.5));
    let use_for = async |seconds: u32| {
        let before = redis.pushes();
        for _ in 0..10 * seconds {
            call(&store, &breaker, Outcome::Success).await.ok();
            sleep(100 * MS).await;
        }
        redis.pushes() - before
    };
    call(&store, &breaker, Outcome::Failure).await.unwrap(); // it is stored only once there is bad news
    use_for(2).await;
    let calm = use_for(10).await;
    assert_eq!(calm, 0, "nothing changes");
    let names = redis.key_names();
    let id = names.iter().find_map(|name| name.split_once("}:b:").map(|(_, id)| id)).expect("the breaker is stored");
    let (epoch, at) = (1_u64 << 60, 1_700_000_100_000_000_u64);
    let service = RedisOptions::default().service;
    redis.publish(
        &format!("ph2:{service}.default:c"),
        &format!("{id}@1 0 {at} {at} 1 {epoch} 0 0 0 0 0 -1 0 0 0 0 0 0 -1 - -"),
    );
    let forged = use_for(10).await;
    promise(forged <= 2, || format!("{forged} messages published in the 10 s after one forged push, {calm} before"))
}

pub(crate) async fn review_1_16_pushes_arrive_after_a_failover_that_leaves_the_old_master_running() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    let spec = BreakerSpec::consecutive_failures(5).break_for(SECOND);
    let pair = (one.breaker(&key("eu"), &spec), other.breaker(&key("eu"), &spec));
    let arrival = async || {
        call(&one, &pair.0, Outcome::Success).await.ok();
        sleep(3 * SECOND).await;
        call(&one, &pair.0, Outcome::Success).await.ok();
        sleep(SECOND).await;
        call(&other, &pair.1, Outcome::Success).await.unwrap();
        trip(&one, &pair.0).await;
        let tripped = Instant::now();
        while call(&other, &pair.1, Outcome::Success).await.is_ok() {
            assert!(tripped.elapsed() < 10 * SECOND);
            sleep(MS).await;
        }
        tripped.elapsed()
    };
    let before = arrival().await;
    assert!(before <= 20 * MS, "a push arrives within 20 ms: {before:?}");
    sleep(5 * SECOND).await;
    redis.fail_over_isolated(MS);
    sleep(30 * SECOND).await;
    recover(&one).await;
    recover(&other).await;
    let mut after = Duration::ZERO;
    for _ in 0..8 {
        after = after.max(arrival().await);
    }
    promise(after <= 20 * MS, || {
        format!("a trip reached the other replica after {before:?}, and half a minute after a failover after {after:?}")
    })
}

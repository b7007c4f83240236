//! Overrides of a breaker: set by an operator, and not lost or resurrected by what happens to Redis.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{BreakerSpec, Override, OverrideRequest};
use phalanx_core::kind::Outcome;
use phalanx_core::rejection::RejectionCode;
use phalanx_core::store::BreakerStore;
use phalanx_store_redis::{RedisStore, SharedBreaker, StoreMode};
use phalanx_testkit::FaultyRedis;
use tokio::time::sleep;

use crate::harness::*;

fn breaker(store: &RedisStore) -> Arc<SharedBreaker> {
    // Short times, so that its key expires after six minutes without use.
    let spec = BreakerSpec::failure_ratio(0.5).break_for(SECOND).escalate(1.0, SECOND);
    store.breaker(&key("eu"), &spec)
}

async fn succeed(store: &RedisStore) -> Result<(), RejectionCode> {
    call(store, &breaker(store), Outcome::Success).await
}

/// Uses the breaker on every replica, so that Redis and all of them know it.
async fn use_everywhere(stores: &[&RedisStore]) {
    for store in stores {
        assert_eq!(succeed(store).await, Ok(()));
        store.settle().await;
    }
    sleep(5 * SECOND).await;
}

async fn rejections(stores: &[&RedisStore]) -> Vec<Result<(), RejectionCode>> {
    let mut results = Vec::new();
    for store in stores {
        results.push(succeed(store).await);
    }
    results
}

pub(crate) async fn review_1_3_an_override_survives_a_failover_that_lost_its_write() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    use_everywhere(&[&one, &other]).await;
    one.force(&breaker(&one), Some(Override::Open)).await;
    sleep(100 * MS).await;
    assert_eq!(rejections(&[&one, &other]).await, [Err(RejectionCode::ForcedOpen); 2], "both replicas know it");
    redis.fail_over(200 * MS);
    sleep(3 * SECOND).await;
    rejections(&[&one, &other]).await; // the breaker is in use
    sleep(SECOND).await;
    assert!([&one, &other].iter().all(|store| store.mode() == StoreMode::Shared), "the failover is over");
    let after = rejections(&[&one, &other]).await;
    promise(after == [Err(RejectionCode::ForcedOpen); 2], || {
        format!("both replicas knew the override; 4 s after a failover that lost 200 ms: {after:?}")
    })
}

pub(crate) async fn review_1_3_an_override_survives_a_flush_whatever_replica_restores_the_breaker() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    let late = builder(redis.connection_without_pushes(), 3).build().unwrap();
    use_everywhere(&[&one, &other, &late]).await;
    one.force(&breaker(&one), Some(Override::Open)).await;
    sleep(100 * MS).await;
    assert_eq!(rejections(&[&one, &other]).await, [Err(RejectionCode::ForcedOpen); 2], "two replicas know it");
    redis.flush_all();
    succeed(&late).await.ok(); // has not been polled since, so it does not know the override
    late.settle().await;
    sleep(3 * SECOND).await;
    rejections(&[&one, &other, &late]).await;
    sleep(SECOND).await;
    let after = rejections(&[&one, &other, &late]).await;
    promise(after == [Err(RejectionCode::ForcedOpen); 3], || {
        format!("2 of 3 replicas knew the override; 4 s after a flush: {after:?}")
    })
}

pub(crate) async fn review_1_3_a_released_override_does_not_come_back_when_the_key_is_lost() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    let late = builder(redis.connection_without_pushes(), 3).build().unwrap();
    use_everywhere(&[&one, &other, &late]).await;
    one.force(&breaker(&one), Some(Override::Open)).await;
    late.settle().await;
    assert_eq!(rejections(&[&one, &late]).await, [Err(RejectionCode::ForcedOpen); 2]);
    late.settle().await;
    one.force(&breaker(&one), None).await;
    sleep(SECOND).await;
    assert_eq!(rejections(&[&one, &other]).await, [Ok(()); 2], "the override is released");
    one.settle().await;
    let before = redis.keys();
    sleep(Duration::from_secs(7 * 60)).await; // nothing uses the breaker
    assert_eq!(redis.keys(), before, "the release is kept for a week");
    redis.flush_all();
    succeed(&late).await.ok();
    sleep(SECOND).await;
    let after = rejections(&[&one, &other]).await;
    promise(after == [Ok(()); 2], || {
        format!("the override was released 7 min ago; after one call of a replica without pushes: {after:?}")
    })
}

pub(crate) async fn review_1_3_an_override_set_in_an_outage_is_sent_until_redis_has_it() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    use_everywhere(&[&one, &other]).await;
    one.force(&breaker(&one), None).await; // loads the script
    redis.stop();
    degrade(&one).await;
    one.force(&breaker(&one), Some(Override::Open)).await;
    assert_eq!(succeed(&one).await, Err(RejectionCode::ForcedOpen), "in force on this replica");
    let before = redis.runs_of("breaker_force");
    redis.start();
    recover_without_override(&redis, &one).await;
    sleep(5 * SECOND).await;
    recover(&other).await;
    rejections(&[&one, &other]).await;
    sleep(SECOND).await;
    let (after, sent) = (rejections(&[&one, &other]).await, redis.runs_of("breaker_force") - before);
    promise(after == [Err(RejectionCode::ForcedOpen); 2], || {
        format!(
            "6 s after an outage in which the override was set, one request lost: {after:?}, Redis ran it {sent} times"
        )
    })
}

pub(crate) async fn an_override_with_an_end_ends_on_every_replica_and_stays_ended() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    use_everywhere(&[&one, &other]).await;
    let request = OverrideRequest::new(Some(Override::Open)).by("ops").because("maintenance").lasting(10 * SECOND);
    breaker(&one).force_with(&request).await;
    sleep(5 * SECOND).await;
    redis.flush_all();
    sleep(3 * SECOND).await;
    let during = rejections(&[&one, &other]).await;
    assert_eq!(during, [Err(RejectionCode::ForcedOpen); 2], "8 s after it was set for 10 s, and 3 s after a flush");
    sleep(2_500 * MS).await;
    let ended = rejections(&[&one, &other]).await;
    redis.flush_all();
    sleep(3 * SECOND).await;
    let after = rejections(&[&one, &other]).await;
    promise([&ended, &after].iter().all(|results| results[..] == [Ok(()); 2]), || {
        format!("set for 10 s; after 10.5 s {ended:?}, and 3 s after another flush {after:?}")
    })
}

pub(crate) async fn an_override_set_in_an_outage_yields_to_one_that_was_set_later() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    use_everywhere(&[&one, &other]).await;
    redis.stop();
    degrade(&one).await;
    one.force(&breaker(&one), Some(Override::Open)).await;
    degrade(&other).await;
    sleep(SECOND).await;
    other.force(&breaker(&other), Some(Override::MetricsOnly)).await;
    redis.start();
    recover(&one).await;
    recover(&other).await;
    sleep(3 * SECOND).await;
    rejections(&[&one, &other]).await;
    sleep(SECOND).await;
    let known = [&one, &other].map(|store| breaker(store).cached_phase().1);
    promise(known == [Some(Override::MetricsOnly); 2], || format!("open, and later metrics_only: {known:?}"))
}

/// Recovers, and loses the first request that carries an override.
async fn recover_without_override(redis: &FaultyRedis, store: &RedisStore) {
    redis.lose_request("breaker_force", 1);
    recover(store).await;
    sleep(SECOND).await;
    assert_eq!(redis.pending_faults(), 0, "a request with the override was lost");
}

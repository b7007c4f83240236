//! Rate limits: what replicas grant while Redis does not reply.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::rate_limit::RateLimitSpec;
use phalanx_core::rejection::Source;
use phalanx_core::store::RateLimitStore;
use phalanx_store_redis::{DegradedShare, RedisOptions, RedisStore, SharedBucket, StoreMode};
use phalanx_testkit::FaultyRedis;
use tokio::time::{Instant, sleep};

use crate::harness::*;

/// 100 permits a second, and 100 at once.
const LIMIT: RateLimitSpec = RateLimitSpec::per_second(100);

fn bucket(store: &RedisStore) -> Arc<SharedBucket> {
    store.bucket(&key("eu"), &LIMIT)
}

/// Lets the server hang for 25 ms, which is no outage, while this many callers ask at once. Returns how many were
/// granted without Redis.
async fn granted_in_a_stall(redis: &FaultyRedis, store: &RedisStore, callers: usize) -> usize {
    redis.hang();
    let bucket = bucket(store);
    let asking = acquire_at_once(store, &bucket, callers);
    let resuming = async {
        sleep(25 * MS).await;
        redis.resume();
    };
    let (grants, ()) = tokio::join!(asking, resuming);
    assert!(grants.iter().all(|grant| grant.source == Source::Degraded), "no caller had a reply");
    assert_eq!(store.mode(), StoreMode::Shared, "a stall of 25 ms is no outage");
    granted_by(&grants, Source::Degraded)
}

pub(crate) async fn review_1_1_replicas_that_start_before_their_first_connection_share_one_burst() -> Seen {
    let redis = FaultyRedis::new();
    redis.hang(); // the first connection takes longer than the budget
    let start = Instant::now();
    let callers = replicas(&redis, 10).into_iter().map(|store| async move {
        let bucket = bucket(&store);
        acquire_at_once(&store, &bucket, 100).await
    });
    let grants: Vec<_> = all(callers).await.into_iter().flatten().collect();
    assert!(grants.iter().all(|grant| grant.source == Source::Degraded), "Redis has not replied yet");
    let (granted, refilled) = (granted_by(&grants, Source::Degraded), 10.0 * 100.0 * start.elapsed().as_secs_f64());
    promise(granted as f64 <= 100.0 + refilled, || {
        format!("10 replicas granted {granted} calls within {:?}; the burst of the fleet is 100", start.elapsed())
    })
}

pub(crate) async fn review_1_1_a_stall_grants_only_the_share_of_the_fleet_that_is_known_now() -> Seen {
    let redis = FaultyRedis::new();
    let stores = replicas(&redis, 10);
    redis.hang();
    let first = acquire(&stores[0], &bucket(&stores[0]), 1).await;
    assert_eq!(first.source, Source::Degraded, "the first connection takes longer than the budget");
    redis.resume();
    meet(&stores).await;
    for _ in 0..100 {
        let grant = acquire(&stores[0], &bucket(&stores[0]), 1).await;
        assert_eq!(grant.source, Source::Fleet);
        sleep(20 * MS).await;
    }
    let granted = granted_in_a_stall(&redis, &stores[0], 1_000).await;
    promise(granted <= 10, || format!("one of 10 replicas granted {granted} calls in a stall; its share is 10"))
}

pub(crate) async fn review_1_1_a_stall_after_a_scale_out_grants_the_new_share() -> Seen {
    let redis = FaultyRedis::new();
    let mut stores = replicas(&redis, 2);
    meet(&stores).await;
    acquire(&stores[0], &bucket(&stores[0]), 1).await;
    redis.stop();
    degrade(&stores[0]).await;
    acquire(&stores[0], &bucket(&stores[0]), 1).await;
    redis.start();
    for store in &stores {
        recover(store).await;
    }
    stores.extend((3..=20).map(|seed| replica(&redis, seed)));
    meet(&stores).await;
    let granted = granted_in_a_stall(&redis, &stores[0], 1_000).await;
    promise(granted <= 5, || format!("one of 20 replicas granted {granted} calls in a stall; its share is 5"))
}

pub(crate) async fn review_1_2_late_replies_of_a_redis_that_serves_do_not_raise_the_limit() -> Seen {
    const LASTS: Duration = Duration::from_secs(10);
    let redis = FaultyRedis::new();
    redis.set_latency(MS);
    let events = Events::default();
    let stores: Vec<_> =
        (1..=2).map(|seed| builder(&redis, seed).observers(events.observers()).build().unwrap()).collect();
    meet(&stores).await;
    redis.delay_replies(Some((8, 25 * MS)));
    let end = Instant::now() + LASTS;
    let callers = stores.iter().flat_map(|store| std::iter::repeat_n(store, 25)).map(|store| {
        let (store, bucket) = (store.clone(), bucket(store));
        async move {
            let (mut granted, mut degraded) = (0, 0);
            while Instant::now() < end {
                let grant = acquire(&store, &bucket, 1).await;
                granted += usize::from(is_granted(&grant));
                degraded += usize::from(is_granted(&grant) && grant.source == Source::Degraded);
                sleep(10 * MS).await;
            }
            (granted, degraded)
        }
    });
    let counts = all(callers.collect::<Vec<_>>().into_iter()).await;
    let (granted, degraded) = counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    assert!(degraded > 0, "some replies were late");
    assert!(stores.iter().all(|store| store.mode() == StoreMode::Shared), "no outage");
    assert_eq!(events.count("StoreDegraded"), 0, "no outage");
    // One further burst is left for what a replica may grant while it waits for a late reply.
    promise(granted <= 100 + 100 * LASTS.as_secs() as usize + 100, || {
        format!("{granted} calls granted in {LASTS:?} ({degraded} without Redis); burst + rate x time is 1100")
    })
}

pub(crate) async fn review_1_9_a_retune_during_an_outage_mints_nothing() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    meet(std::slice::from_ref(&store)).await;
    acquire(&store, &bucket(&store), 1).await;
    redis.stop();
    degrade(&store).await;
    let first = drain(&store, &bucket(&store)).await;
    assert!(first > 0 && drain(&store, &bucket(&store)).await == 0, "the bucket is empty");
    store.bucket(&key("eu"), &RateLimitSpec::per_second(200));
    let second = drain(&store, &bucket(&store)).await; // tuned back
    promise(second == 0, || format!("{first} calls granted, and {second} more after a change to 200/s and back"))
}

pub(crate) async fn review_1_9_a_level_of_the_old_rate_is_converted_in_an_outage() -> Seen {
    let (slow, fast) = (RateLimitSpec::new(10, 3_600 * SECOND), RateLimitSpec::per_second(1_000));
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    meet(std::slice::from_ref(&store)).await;
    for _ in 0..9 {
        assert!(is_granted(&acquire(&store, &store.bucket(&key("eu"), &slow), 1).await));
    }
    redis.stop();
    degrade(&store).await;
    let granted = drain(&store, &store.bucket(&key("eu"), &fast)).await;
    promise(granted <= 2, || {
        format!("1 of 10 permits an hour was left; after a change to 1000/s {granted} were granted")
    })
}

pub(crate) async fn review_1_10_a_weighted_call_is_admitted_sometimes_while_degraded() -> Seen {
    let redis = FaultyRedis::new();
    let options = RedisOptions { degraded_share: DegradedShare::Fixed(50), ..RedisOptions::default() };
    let store = builder(&redis, 1).options(options).build().unwrap();
    meet(std::slice::from_ref(&store)).await;
    redis.stop();
    degrade(&store).await;
    assert!(is_granted(&acquire(&store, &store.bucket(&key("us"), &LIMIT), 1).await), "a call of cost 1 is granted");
    let mut granted = 0;
    for _ in 0..300 {
        granted += usize::from(is_granted(&acquire(&store, &bucket(&store), 5).await));
        sleep(100 * MS).await;
    }
    promise(granted > 0, || {
        "0 of 300 calls of cost 5 granted in an outage of 30 s; the share is 2 permits a second".to_owned()
    })
}

pub(crate) async fn review_7_2_shares_are_not_those_of_a_half_registered_fleet() -> Seen {
    let limit = RateLimitSpec::per_second(50);
    let redis = FaultyRedis::new();
    let stores = replicas(&redis, 5);
    meet(&stores).await;
    let overload = async |lasts: Duration| {
        let end = Instant::now() + lasts;
        let callers = stores.iter().map(|store| {
            let (store, bucket) = (store.clone(), store.bucket(&key("eu"), &limit));
            async move {
                let mut degraded = 0;
                while Instant::now() < end {
                    let grant = acquire(&store, &bucket, 1).await;
                    degraded += usize::from(is_granted(&grant) && grant.source == Source::Degraded);
                    sleep(5 * MS).await;
                }
                degraded
            }
        });
        all(callers.collect::<Vec<_>>().into_iter()).await.into_iter().sum::<usize>()
    };
    overload(2 * SECOND).await;
    redis.hang();
    let first = overload(5 * SECOND).await;
    assert!(first <= 300, "{first} calls granted in the first outage");
    redis.resume();
    overload(1_200 * MS).await;
    let seen: Vec<_> = stores.iter().map(|store| store.replicas().unwrap_or(0)).collect();
    redis.hang();
    let second = overload(5 * SECOND).await;
    promise(second <= 300, || {
        format!("{second} calls granted in the second outage of 5 s at 50/s; the replicas counted {seen:?} of 5")
    })
}

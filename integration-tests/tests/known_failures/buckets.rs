//! Rate limits: what replicas grant while Redis does not reply.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::rate_limit::{RateLimitSpec, Take};
use phalanx_core::rejection::Source;
use phalanx_core::store::{AcquireRequest, RateLimitStore, Store};
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

/// As [`promise`], and prints what was seen in any case: the figures of the documents come from here.
fn shown(kept: bool, seen: impl FnOnce() -> String) -> Seen {
    let seen = seen();
    println!("{seen}");
    promise(kept, || seen)
}

/// Makes one call on each of these stores every `pause`, for as long as `lasts`. Returns how many were granted.
async fn load(stores: &[RedisStore], limit: &RateLimitSpec, pause: Duration, lasts: Duration) -> usize {
    let end = Instant::now() + lasts;
    let callers = stores.iter().map(|store| {
        let (store, bucket) = (store.clone(), store.bucket(&key("eu"), limit));
        async move {
            let mut granted = 0;
            while Instant::now() < end {
                granted += usize::from(is_granted(&acquire(&store, &bucket, 1).await));
                sleep(pause).await;
            }
            granted
        }
    });
    all(callers.collect::<Vec<_>>().into_iter()).await.into_iter().sum()
}

pub(crate) async fn replicas_that_never_saw_redis_share_the_limit_by_what_they_expect() -> Seen {
    let limit = RateLimitSpec::new(30, 3_600 * SECOND);
    let start = async |expected_replicas: Option<u32>| {
        let redis = FaultyRedis::new();
        redis.stop();
        let options = RedisOptions { expected_replicas, ..RedisOptions::default() };
        let stores: Vec<_> =
            (1..=3).map(|seed| builder(&redis, seed).options(options.clone()).build().unwrap()).collect();
        let at_once = load(&stores, &limit, SECOND, 100 * SECOND).await;
        (at_once, at_once + load(&stores, &limit, 10 * SECOND, 3_500 * SECOND).await)
    };
    let (at_once, in_an_hour) = start(Some(3)).await;
    let (alone_at_once, alone_in_an_hour) = start(None).await;
    assert!(alone_in_an_hour > 80, "without a number each grants the whole rate: {alone_in_an_hour}");
    shown(at_once == 0 && alone_at_once == 0 && (27..=30).contains(&in_an_hour), || {
        format!("{in_an_hour} calls granted in an hour at 30 an hour, {at_once} and {alone_at_once} of them at once")
    })
}

pub(crate) async fn a_rate_that_changes_five_times_in_an_outage_mints_nothing() -> Seen {
    let hourly = |permits, burst| RateLimitSpec::new(permits, 3_600 * SECOND).burst(burst);
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    meet(std::slice::from_ref(&store)).await;
    assert!(is_granted(&acquire(&store, &store.bucket(&key("eu"), &hourly(25, 25)), 1).await));
    redis.stop();
    degrade(&store).await;
    let mut granted = 1;
    for limit in [hourly(25, 25), hourly(50, 25), hourly(7, 20), hourly(100, 25), hourly(31, 30), hourly(25, 25)] {
        let bucket = store.bucket(&key("eu"), &limit);
        for _ in 0..10 {
            granted += usize::from(is_granted(&acquire(&store, &bucket, 1).await));
        }
    }
    shown(granted <= 25, || format!("{granted} calls granted at 25 an hour while the rate changed five times"))
}

pub(crate) async fn a_crowd_of_waiters_that_leaves_leaves_no_queue() -> Seen {
    let limit = RateLimitSpec::per_second(10);
    let redis = FaultyRedis::new();
    redis.set_latency(MS);
    let stores = replicas(&redis, 2);
    meet(&stores).await;
    let ask = async |store: &RedisStore| {
        let request = AcquireRequest { cost: 1, max_wait: 20 * SECOND };
        store.acquire(&store.bucket(&key("eu"), &limit), store.clock().now(), request).await
    };
    for _ in 0..10 {
        ask(&stores[0]).await;
    }
    let mut crowd = Vec::new();
    for place in 0..100 {
        crowd.push((place % 2, ask(&stores[place % 2]).await));
    }
    // They leave from the front on, each by its own refund.
    for (of, grant) in crowd {
        stores[of].refund(&stores[of].bucket(&key("eu"), &limit), 1, grant.due, grant.source);
        sleep(MS).await;
    }
    sleep(10 * MS).await;
    let newcomer = ask(&stores[0]).await;
    let Take::Granted { wait } = newcomer.take else { panic!("{newcomer:?}") };
    shown(wait <= 200 * MS, || format!("a call waits {wait:?} behind an empty queue at 10 a second"))
}

pub(crate) async fn a_redis_with_many_late_replies_starves_no_caller() -> Seen {
    const LASTS: Duration = Duration::from_secs(10);
    let redis = FaultyRedis::new();
    redis.set_latency(MS);
    let stores = replicas(&redis, 2);
    meet(&stores).await;
    redis.delay_replies(Some((3, 25 * MS)));
    let granted = load(&stores, &LIMIT, MS, LASTS).await;
    assert!(stores.iter().all(|store| store.mode() == StoreMode::Shared), "no outage");
    shown((500..=1_200).contains(&granted), || {
        format!("{granted} calls granted in {LASTS:?} with every third reply late; burst + rate x time is 1100")
    })
}

pub(crate) async fn outages_that_follow_closely_add_no_burst_each() -> Seen {
    let redis = FaultyRedis::new();
    let stores = replicas(&redis, 2);
    meet(&stores).await;
    let start = Instant::now();
    let mut granted = load(&stores, &LIMIT, 2 * MS, 2 * SECOND).await;
    for _ in 0..6 {
        redis.hang();
        granted += load(&stores, &LIMIT, 2 * MS, 1_500 * MS).await;
        redis.resume();
        granted += load(&stores, &LIMIT, 2 * MS, 1_500 * MS).await;
    }
    let most = 100.0 + 100.0 * start.elapsed().as_secs_f64();
    // One burst is what the replicas may hold in their shares beside the bucket.
    shown(granted as f64 <= most + 100.0, || {
        format!("{granted} calls granted in {:?} with six outages; burst + rate x time is {most:.0}", start.elapsed())
    })
}

pub(crate) async fn an_exhausted_bucket_costs_few_scripts_and_is_shared_fairly() -> Seen {
    const LASTS: Duration = Duration::from_secs(10);
    let limit = RateLimitSpec::per_second(10);
    let redis = FaultyRedis::new();
    redis.set_latency(MS);
    let stores = replicas(&redis, 3);
    meet(&stores).await;
    let before = redis.runs_of("rate_limit_acquire");
    let end = Instant::now() + LASTS;
    // 21 calls a millisecond: seven callers on each of three replicas.
    let callers = stores.iter().flat_map(|store| std::iter::repeat_n(store, 7)).map(|store| {
        let (store, bucket) = (store.clone(), store.bucket(&key("eu"), &limit));
        async move {
            let (mut granted, mut rejected) = (0_usize, 0_usize);
            while Instant::now() < end {
                let grant = acquire(&store, &bucket, 1).await;
                assert_eq!(grant.source, Source::Fleet);
                if is_granted(&grant) {
                    granted += 1
                } else {
                    rejected += 1
                }
                sleep(MS).await;
            }
            (granted, rejected)
        }
    });
    let counts = all(callers.collect::<Vec<_>>().into_iter()).await;
    let scripts = redis.runs_of("rate_limit_acquire") - before;
    let rejected: usize = counts.iter().map(|count| count.1).sum();
    let granted: Vec<usize> = counts.chunks(7).map(|of| of.iter().map(|count| count.0).sum()).collect();
    let sum: usize = granted.iter().sum();
    assert!(rejected > 150_000, "{rejected} calls were rejected");
    let cost = scripts as f64 / rejected as f64 * 1_000.0;
    let fair = granted.iter().all(|granted| *granted >= 20);
    shown(cost <= 5.0 && (95..=110).contains(&sum) && fair, || {
        format!("{cost:.2} scripts for 1,000 rejected calls; {granted:?} granted to the replicas, of at most 110")
    })
}

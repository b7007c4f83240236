//! Requests in the queue of a replica, and how many of them there are: callers behind background work, storms and herds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{Admission, BreakerSpec, Phase};
use phalanx_core::clock::Clock;
use phalanx_core::kind::Outcome;
use phalanx_core::rate_limit::RateLimitSpec;
use phalanx_core::rejection::Source;
use phalanx_core::store::{BreakerStore, LatencyDigestStore, RateLimitStore, Store};
use phalanx_store_redis::transport::{Boxed, Response};
use phalanx_store_redis::{Failure, Invocation, RedisOptions, RedisStore, SharedBreaker, StoreMode, Wire};
use phalanx_testkit::FaultyRedis;
use tokio::time::{Instant, sleep};

use crate::harness::*;

const MICRO: Duration = Duration::from_micros(1);

/// What Redis 7.0 takes for a `breaker_sync` on the machine of the review, which also measured 39 to 214 µs for the
/// scripts of a digest.
const SCRIPT_TIME: Duration = Duration::from_micros(27);

/// A limit that rejects nothing.
fn plenty() -> RateLimitSpec {
    RateLimitSpec::per_second(1_000_000)
}

/// Registers this many breakers, and lets Redis know them.
async fn breakers(store: &RedisStore, count: usize, spec: &BreakerSpec) -> Vec<Arc<SharedBreaker>> {
    let breakers: Vec<_> = (0..count).map(|route| store.breaker(&key(&format!("route {route}")), spec)).collect();
    for (number, breaker) in breakers.iter().enumerate() {
        assert_eq!(call(store, breaker, Outcome::Success).await, Ok(()));
        if number % 32 == 31 {
            sleep(MS).await;
        }
    }
    sleep(3 * SECOND).await;
    breakers
}

pub(crate) async fn review_1_7_background_rounds_degrade_no_caller() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let breakers = breakers(&store, 600, &BreakerSpec::failure_ratio(0.5)).await;
    let digests: Vec<_> = (0..600).map(|route| store.digest(&key(&format!("route {route}")), 10 * SECOND)).collect();
    let bucket = store.bucket(&key("limited"), &plenty());
    redis.set_script_time(SCRIPT_TIME);
    let (mut degraded, mut calls, start) = (0, 0, Instant::now());
    while start.elapsed() < SECOND {
        if calls % 20 == 0 {
            for (breaker, digest) in breakers.iter().zip(&digests) {
                store.admit_now(breaker, store.clock().now());
                store.observe(digest, store.clock().now(), 5 * MS);
            }
        }
        degraded += usize::from(acquire(&store, &bucket, 1).await.source == Source::Degraded);
        calls += 1;
        sleep(MS).await;
    }
    assert_eq!(store.mode(), StoreMode::Shared);
    promise(degraded == 0, || {
        format!(
            "{degraded} of {calls} calls were decided without Redis, which takes {SCRIPT_TIME:?} a script: 600 routes in use"
        )
    })
}

pub(crate) async fn review_1_7_a_change_during_a_broken_subscription_is_found_among_a_thousand_breakers() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    let breakers = breakers(&other, 1_000, &brittle()).await;
    redis.set_script_time(SCRIPT_TIME);
    let mine = one.breaker(&key("route 500"), &brittle());
    call(&one, &mine, Outcome::Success).await.unwrap();
    sleep(SECOND).await;
    let before = redis.scripts();
    redis.break_subscriptions();
    trip(&one, &mine).await;
    sleep(1_050 * MS).await;
    let asked = redis.scripts() - before;
    assert!(asked < 50, "{asked} scripts for one change");
    let phase = breakers[500].cached_phase().0;
    promise(phase == Phase::Open, || {
        format!("1 s after a new subscription the breaker is {phase:?} on the other replica")
    })
}

pub(crate) async fn review_1_8_a_lost_push_is_made_up_for_in_a_heartbeat_whatever_the_number_of_routes() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    let spec = BreakerSpec::consecutive_failures(5).break_for(60 * SECOND);
    let registered: Vec<_> = (0..3_000).map(|route| other.breaker(&key(&format!("idle {route}")), &spec)).collect();
    let hot: Vec<_> = (0..4).map(|route| key(&format!("hot {route}"))).collect();
    let pairs: Vec<_> = hot.iter().map(|key| (one.breaker(key, &spec), other.breaker(key, &spec))).collect();
    for (mine, theirs) in &pairs {
        call(&one, mine, Outcome::Success).await.unwrap();
        call(&other, theirs, Outcome::Success).await.unwrap();
    }
    sleep(6 * SECOND).await;
    redis.lose_pushes(true);
    let mut slowest = Duration::ZERO;
    for (mine, theirs) in &pairs {
        call(&other, theirs, Outcome::Failure).await.unwrap(); // the other replica is not asked: that message is lost too
        trip(&one, mine).await;
        let tripped = Instant::now();
        while call(&other, theirs, Outcome::Neutral).await.is_ok() {
            assert!(tripped.elapsed() < 60 * SECOND);
            sleep(MS).await;
        }
        slowest = slowest.max(tripped.elapsed());
    }
    drop(registered);
    promise(slowest <= 1_050 * MS, || {
        format!(
            "with 3000 registered routes a lost push was made up for after {slowest:?}; a heartbeat is sent every second"
        )
    })
}

/// A wire that never replies.
#[derive(Debug)]
struct Silent;

impl Wire for Silent {
    fn send<'a>(&'a self, _: &'a [Invocation]) -> Boxed<'a, Result<Vec<Response>, Failure>> {
        Box::pin(std::future::pending())
    }
}

/// Returns how long a caller waits for a decision that is queued behind the polls of 200 breakers.
async fn wait_behind_polls(store: &RedisStore) -> Duration {
    let polled: Vec<_> = (0..200)
        .map(|route| store.breaker(&key(&format!("route {route}")), &BreakerSpec::failure_ratio(0.5)))
        .collect();
    let background = tokio::spawn({
        let store = store.clone();
        async move { store.settle().await }
    });
    tokio::task::yield_now().await;
    let (bucket, start) = (store.bucket(&key("limited"), &plenty()), Instant::now());
    let grant = acquire(store, &bucket, 1).await;
    assert_eq!(grant.source, Source::Degraded, "nothing replies");
    let waited = start.elapsed();
    background.abort();
    drop(polled);
    waited
}

/// Plays on two runtimes, so it is no future.
pub(crate) fn review_1_16_callers_wait_at_most_the_budget_after_a_runtime_has_ended() -> Seen {
    let store = || RedisStore::over_wire(Arc::new(Silent), Clock::manual(), RedisOptions::default());
    let fresh = paused_runtime().block_on(wait_behind_polls(&store()));
    assert!(fresh <= 25 * MS, "on its first runtime a caller waits {fresh:?}");
    let store = store();
    let first = paused_runtime();
    first.block_on(async {
        let asking = store.clone();
        tokio::spawn(async move { wait_behind_polls(&asking).await });
        sleep(5 * MS).await; // requests wait in the queue
    });
    drop(first);
    let waited = paused_runtime().block_on(wait_behind_polls(&store));
    promise(waited <= 25 * MS, || {
        format!("a caller on the second runtime waited {waited:?} for a budget of 20 ms; on the first {fresh:?}")
    })
}

pub(crate) async fn review_1_16_a_script_that_has_to_be_loaded_fails_no_other_call() -> Seen {
    let redis = FaultyRedis::new();
    redis.set_latency(MS);
    let store = replica(&redis, 1);
    let (bucket, other) = (store.bucket(&key("eu"), &plenty()), store.bucket(&key("us"), &plenty()));
    acquire(&store, &bucket, 1).await; // loads rate_limit_acquire, and not rate_limit_refund
    sleep(SECOND).await;
    assert_eq!(redis.runs_of("rate_limit_refund"), 0);
    redis.lose_reply("rate_limit_refund", 1);
    let inline = tokio::spawn({
        let (store, other) = (store.clone(), other.clone());
        async move { acquire(&store, &other, 1).await }
    });
    tokio::task::yield_now().await;
    store.refund(&bucket, 1, store.clock().now(), Source::Fleet); // queued, and sent together with the next call
    let runs = redis.runs_of("rate_limit_acquire");
    let grant = acquire(&store, &bucket, 1).await;
    inline.await.unwrap();
    sleep(SECOND).await; // the other script is sent again
    assert_eq!(redis.pending_faults(), 0, "the reply to the script that had to be loaded was lost");
    assert_eq!(redis.runs_of("rate_limit_acquire"), runs + 2, "the scripts of both callers ran in time");
    promise(grant.source == Source::Fleet, || {
        format!("the caller's script was executed and replied to; its decision was {:?}", grant.source)
    })
}

pub(crate) async fn review_1_16_an_unknown_script_is_sent_by_source_once() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let breakers = breakers(&store, 64, &BreakerSpec::failure_ratio(0.5)).await;
    redis.flush_scripts();
    let (sources, runs) = (redis.sources_sent(), redis.runs_of("breaker_sync"));
    store.settle().await;
    let polled = redis.runs_of("breaker_sync") - runs;
    assert!(polled >= breakers.len() as u64, "{polled} polls");
    let sent = redis.sources_sent() - sources;
    promise(sent <= 4, || format!("for one unknown script its source was sent {sent} times, about 15 kB each"))
}

pub(crate) async fn review_2_1_rejections_of_a_half_open_breaker_are_not_a_round_trip_each() -> Seen {
    let redis = FaultyRedis::new();
    redis.set_latency(MS);
    let store = replica(&redis, 1);
    let breaker = store.breaker(&key("eu"), &brittle());
    trip(&store, &breaker).await;
    sleep(1_100 * MS).await;
    let Admission::Admitted(_probe) = admit(&store, &breaker).await else { panic!("the probe is admitted") };
    let (before, start) = (redis.runs_of("breaker_admit"), Instant::now());
    let mut rejected = 0;
    while start.elapsed() < 2 * SECOND {
        rejected += usize::from(matches!(admit(&store, &breaker).await, Admission::Rejected { .. }));
        sleep(MS).await;
    }
    let asked = redis.runs_of("breaker_admit") - before;
    assert!(rejected > 100, "the probe takes 2 s");
    promise(asked <= 50, || {
        format!("{asked} scripts for {rejected} rejections within 2 s of one probe; one each 50 ms are 40")
    })
}

pub(crate) async fn review_2_1_rejections_of_an_exhausted_bucket_are_not_a_round_trip_each() -> Seen {
    let redis = FaultyRedis::new();
    redis.set_latency(MS);
    let store = replica(&redis, 1);
    let bucket = store.bucket(&key("eu"), &RateLimitSpec::per_second(1));
    assert!(is_granted(&acquire(&store, &bucket, 1).await));
    let (before, start) = (redis.runs_of("rate_limit_acquire"), Instant::now());
    let mut rejected = 0;
    while start.elapsed() < 2 * SECOND {
        rejected += usize::from(!is_granted(&acquire(&store, &bucket, 1).await));
        sleep(MS).await;
    }
    let asked = redis.runs_of("rate_limit_acquire") - before;
    assert!(rejected > 100);
    promise(asked <= 50, || {
        format!(
            "{asked} scripts for {rejected} rejections within 2 s at 1 permit a second, whose replies contain their end"
        )
    })
}

/// What callers on new keys got.
struct Overload {
    calls: usize,
    by_redis: usize,
    scripts: u64,
    events: Vec<String>,
}

impl fmt::Display for Overload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, by_redis, scripts, events } = self;
        write!(f, "Redis executed {scripts} scripts and decided {by_redis} of {calls} calls; events {events:?}")
    }
}

/// Lets this many callers ask for permits on new keys one after the other, for a quarter of a second.
async fn overload(script_time: Duration, callers: usize) -> Overload {
    let (redis, events) = (FaultyRedis::new(), Events::default());
    let store = builder(&redis, 1).observers(events.observers()).build().unwrap();
    meet(std::slice::from_ref(&store)).await;
    redis.set_script_time(script_time);
    let (before, end) = (redis.runs_of("rate_limit_acquire"), Instant::now() + 250 * MS);
    let callers = (0..callers).map(|caller| {
        let store = store.clone();
        async move {
            let (mut calls, mut by_redis) = (0, 0);
            while Instant::now() < end {
                let bucket = store.bucket(&key(&format!("{calls} {caller}")), &plenty());
                by_redis += usize::from(acquire(&store, &bucket, 1).await.source == Source::Fleet);
                calls += 1;
            }
            (calls, by_redis)
        }
    });
    let counts = all(callers.collect::<Vec<_>>().into_iter()).await;
    let (calls, by_redis) = counts.into_iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    Overload { calls, by_redis, scripts: redis.runs_of("rate_limit_acquire") - before, events: events.notable() }
}

pub(crate) async fn review_2_2_replies_of_an_overloaded_redis_are_not_thrown_away() -> Seen {
    let calm = overload(50 * MICRO, 256).await;
    assert_eq!(calm.by_redis, calm.calls, "at 50 µs a script every call is decided by Redis: {calm}");
    let busy = overload(100 * MICRO, 256).await;
    promise(busy.by_redis as u64 * 10 >= busy.scripts * 8, || {
        format!("256 callers at 100 µs a script: {busy}; at 50 µs: {calm}")
    })
}

pub(crate) async fn review_7_7_degraded_decisions_of_an_overloaded_replica_are_visible() -> Seen {
    let busy = overload(100 * MICRO, 256).await;
    let degraded = busy.calls - busy.by_redis;
    promise(degraded == 0 || !busy.events.is_empty(), || {
        format!("{degraded} degraded decisions on a Redis that serves, and nothing is emitted: {busy}")
    })
}

/// Twenty replicas with 60 breakers, of which six are in use. Returns the scripts of the busiest second of three before
/// `disturb` and of three afterwards, and how often a store degraded afterwards.
async fn herd(disturb: impl AsyncFnOnce(&FaultyRedis, &[RedisStore])) -> (u64, u64, usize) {
    let (redis, events, spec) = (FaultyRedis::new(), Events::default(), BreakerSpec::failure_ratio(0.5));
    let stores: Vec<_> =
        (1..=20).map(|seed| builder(&redis, seed).observers(events.observers()).build().unwrap()).collect();
    let register = |store: &RedisStore| {
        let (store, spec) = (store.clone(), spec.clone());
        async move { breakers(&store, 60, &spec).await }
    };
    let fleet = all(stores.iter().map(register).collect::<Vec<_>>().into_iter()).await;
    redis.set_script_time(SCRIPT_TIME);
    let busiest_of_three = async || {
        let mut busiest = 0;
        for _ in 0..3 {
            let before = redis.scripts();
            for _ in 0..20 {
                for (store, breakers) in stores.iter().zip(&fleet) {
                    for breaker in &breakers[..6] {
                        store.admit_now(breaker, store.clock().now());
                    }
                }
                sleep(50 * MS).await;
            }
            busiest = busiest.max(redis.scripts() - before);
        }
        busiest
    };
    let steady = busiest_of_three().await;
    disturb(&redis, &stores).await;
    let outages = events.count("StoreDegraded");
    (steady, busiest_of_three().await, events.count("StoreDegraded") - outages)
}

pub(crate) async fn review_2_3_a_new_subscription_of_all_replicas_causes_no_herd() -> Seen {
    let (steady, herd, outages) = herd(async |redis, _| redis.break_subscriptions()).await;
    promise(herd as f64 <= 1.2 * steady as f64 + 200.0 && outages == 0, || {
        let times = herd as f64 / steady as f64;
        format!(
            "{herd} scripts a second after 20 subscriptions broke, {steady} before: {times:.1} times, {outages} outages"
        )
    })
}

pub(crate) async fn review_2_3_the_end_of_an_outage_causes_no_herd() -> Seen {
    let outage = async |redis: &FaultyRedis, stores: &[RedisStore]| {
        redis.stop();
        for store in stores {
            degrade(store).await;
        }
        sleep(5 * SECOND).await;
        redis.start();
    };
    let (steady, herd, outages) = herd(outage).await;
    promise(herd as f64 <= 1.2 * steady as f64 + 200.0 && outages == 0, || {
        let times = herd as f64 / steady as f64;
        format!(
            "{herd} scripts a second after an outage of 20 replicas, {steady} before: {times:.1} times, {outages} outages"
        )
    })
}

pub(crate) async fn review_2_6_failures_below_the_threshold_are_paced() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let breaker = store.breaker(&key("eu"), &BreakerSpec::failure_ratio(0.5));
    for _ in 0..100 {
        call(&store, &breaker, Outcome::Success).await.unwrap();
    }
    sleep(SECOND).await;
    let (before, start) = (redis.runs_of("breaker_sync"), Instant::now());
    while start.elapsed() < SECOND {
        call(&store, &breaker, Outcome::Failure).await.unwrap();
        for _ in 0..4 {
            call(&store, &breaker, Outcome::Success).await.unwrap();
        }
        sleep(MS).await;
    }
    let sent = redis.runs_of("breaker_sync") - before;
    promise(sent <= 210, || {
        format!(
            "{sent} scripts of one replica and one breaker in a second, a fifth of 5000 calls failed; one each 5 ms are 200"
        )
    })
}

pub(crate) async fn review_7_3_a_round_trip_of_more_than_half_the_budget_is_enough() -> Seen {
    let redis = FaultyRedis::new();
    redis.set_latency(6 * MS);
    let store = replica(&redis, 1);
    let bucket = store.bucket(&key("eu"), &plenty());
    acquire(&store, &bucket, 1).await; // connects
    sleep(SECOND).await;
    let callers = (0..20).map(|caller| {
        let (store, bucket) = (store.clone(), bucket.clone());
        async move {
            let mut degraded = 0;
            for _ in 0..100 {
                sleep(MS * (1 + caller % 7)).await;
                degraded += usize::from(acquire(&store, &bucket, 1).await.source == Source::Degraded);
            }
            degraded
        }
    });
    let degraded: usize = all(callers.collect::<Vec<_>>().into_iter()).await.into_iter().sum();
    promise(degraded == 0, || {
        format!("{degraded} of 2000 calls were decided without a Redis that replies after 12 ms; the budget is 20 ms")
    })
}

/// Lets a replica decide for ten seconds while `fail` makes every script fail.
async fn failing_scripts(fail: impl FnOnce(&FaultyRedis)) -> Seen {
    let (redis, events) = (FaultyRedis::new(), Events::default());
    let store = builder(&redis, 1).observers(events.observers()).build().unwrap();
    meet(std::slice::from_ref(&store)).await;
    let before = redis.scripts();
    fail(&redis);
    let bucket = store.bucket(&key("eu"), &plenty());
    let mut degraded = 0;
    for _ in 0..1_000 {
        degraded += usize::from(acquire(&store, &bucket, 1).await.source == Source::Degraded);
        sleep(10 * MS).await;
    }
    assert_eq!(degraded, 1_000, "no script succeeds");
    promise(events.count("StoreDegraded") > 0, || {
        let sent = redis.scripts() - before;
        format!("{degraded} degraded decisions in 10 s after {sent} scripts that failed, without StoreDegraded")
    })
}

pub(crate) async fn review_7_1_a_permission_revoked_at_run_time_is_an_outage() -> Seen {
    let error = "ERR ACL failure in script: User app has no permissions to run the 'set' command";
    failing_scripts(|redis| redis.reply_with_error(Some(error))).await
}

pub(crate) async fn a_redis_that_serves_only_health_checks_is_an_outage() -> Seen {
    failing_scripts(|redis| redis.fail_scripts(Some("ERR user_script:1: attempt to index a nil value"))).await
}

/// A Cluster client sends a request again if its connection breaks before the reply, unless it is told that it may have
/// run.
pub(crate) async fn in_a_cluster_a_script_whose_connection_breaks_runs_once() -> Seen {
    let redis = FaultyRedis::cluster(3);
    let store = replica(&redis, 1);
    let bucket = store.bucket(&key("eu"), &plenty());
    acquire(&store, &bucket, 1).await;
    redis.set_script_time(5 * MS); // executed at once, and the reply is under way
    let runs = redis.runs_of("rate_limit_acquire");
    let caller = tokio::spawn({
        let (store, bucket) = (store.clone(), bucket.clone());
        async move { acquire(&store, &bucket, 1).await }
    });
    sleep(MS).await;
    assert_eq!(redis.runs_of("rate_limit_acquire"), runs + 1);
    redis.break_connections();
    let source = caller.await.unwrap().source;
    let ran = redis.runs_of("rate_limit_acquire") - runs;
    promise(ran == 1, || format!("the script of one call, decided by {source:?}, ran {ran} times"))
}

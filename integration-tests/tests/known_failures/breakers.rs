//! Breakers: outcomes, probes and leases that get lost, and windows that do not count.

use std::sync::Arc;
use std::time::Duration;

use phalanx::{Kind, ResilienceModule};
use phalanx_core::breaker::{Admission, BreakerSpec, Phase, Sample};
use phalanx_core::kind::Outcome;
use phalanx_core::policy::Policy;
use phalanx_core::rate_limit::RateLimitSpec;
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::store::{BreakerStore, RateLimitStore, Store};
use phalanx_store_redis::{RedisStore, SharedBreaker, StoreMode};
use phalanx_testkit::FaultyRedis;
use tokio::time::{Instant, sleep};

use crate::harness::*;

async fn is_admitted(store: &RedisStore, breaker: &SharedBreaker) -> bool {
    call(store, breaker, Outcome::Success).await.is_ok()
}

/// Trips the breaker and waits until its break is over.
async fn end_of_break(store: &RedisStore, breaker: &SharedBreaker) {
    trip(store, breaker).await;
    sleep(1_100 * MS).await;
}

/// Two replicas with these windows fail in turn, 200 calls a second for 5 s. Returns after how many it tripped.
async fn failures_until_trip(windows: [u32; 2]) -> Option<usize> {
    let redis = FaultyRedis::new();
    let breakers = [1, 2].map(|seed| {
        let store = replica(&redis, seed);
        let spec = BreakerSpec::failure_ratio(0.5).window(windows[seed as usize - 1] * SECOND);
        (store.breaker(&key("eu"), &spec), store)
    });
    for failed in 0..500 {
        for (breaker, store) in &breakers {
            if call(store, breaker, Outcome::Failure).await == Err(RejectionCode::CircuitOpen) {
                return Some(2 * failed);
            }
        }
        sleep(10 * MS).await;
    }
    None
}

pub(crate) async fn review_1_5_two_sampling_windows_in_one_fleet_still_trip() -> Seen {
    let alike = failures_until_trip([10, 10]).await;
    assert!(alike.is_some_and(|failures| failures < 100), "with one window it trips: {alike:?}");
    let mixed = failures_until_trip([10, 20]).await;
    promise(mixed.is_some_and(|failures| failures <= 200), || {
        format!("with one window it tripped after {alike:?} failures, with 10 s and 20 s after {mixed:?} of 1000")
    })
}

pub(crate) async fn review_1_6_a_probe_whose_outcome_was_not_sent_is_sent_again() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let breaker = store.breaker(&key("eu"), &brittle());
    end_of_break(&store, &breaker).await;
    assert!(is_admitted(&store, &breaker).await, "the probe");
    sleep(100 * MS).await;
    assert_eq!(breaker.cached_phase().0, Phase::Closed, "without a fault the probe closes the breaker");
    end_of_break(&store, &breaker).await;
    redis.lose_request("breaker_settle", 1);
    assert!(is_admitted(&store, &breaker).await, "the probe, which succeeds");
    sleep(SECOND).await;
    assert_eq!(redis.pending_faults(), 0, "the request with its outcome was lost");
    let start = Instant::now();
    while !is_admitted(&store, &breaker).await && start.elapsed() < 60 * SECOND {
        sleep(100 * MS).await;
    }
    promise(start.elapsed() < SECOND, || {
        format!("after a probe that succeeded, the breaker rejected for {:?} more", start.elapsed())
    })
}

pub(crate) async fn review_1_6_a_lease_whose_reply_was_lost_is_given_to_its_owner_again() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let breaker = store.breaker(&key("eu"), &brittle());
    end_of_break(&store, &breaker).await;
    redis.lose_reply("breaker_admit", 1);
    assert!(!is_admitted(&store, &breaker).await, "its reply is lost");
    assert_eq!(redis.pending_faults(), 0, "its reply is lost");
    let start = Instant::now();
    while !is_admitted(&store, &breaker).await && start.elapsed() < 60 * SECOND {
        sleep(100 * MS).await;
    }
    promise(start.elapsed() < SECOND, || {
        format!("after one lost reply no call held the lease, and the breaker rejected for {:?}", start.elapsed())
    })
}

pub(crate) async fn review_1_6_outcomes_that_were_never_sent_are_sent_later() -> Seen {
    let redis = FaultyRedis::new();
    redis.set_latency(MS);
    let store = replica(&redis, 1);
    let spec = BreakerSpec::consecutive_failures(5);
    let route = |name: &str| store.breaker(&key(name), &spec);
    let blockers: Vec<_> = (0..4).map(|n| route(&format!("blocker {n}"))).collect();
    let breaker = route("eu");
    for breaker in blockers.iter().chain([&breaker]) {
        assert!(is_admitted(&store, breaker).await);
    }
    sleep(SECOND).await;
    redis.hang();
    for blocker in &blockers {
        call(&store, blocker, Outcome::Failure).await.unwrap(); // each is sent in a round trip of its own
        tokio::task::yield_now().await;
    }
    for _ in 0..5 {
        call(&store, &breaker, Outcome::Failure).await.unwrap();
    }
    sleep(25 * MS).await;
    redis.resume();
    sleep(SECOND).await;
    assert_eq!(store.mode(), StoreMode::Shared, "a stall of 25 ms is no outage");
    for blocker in &blockers {
        assert_eq!(store.inspect(blocker, store_now(&store)).await.streak, 1, "what was sent is executed");
    }
    let view = store.inspect(&breaker, store_now(&store)).await;
    promise(view.phase == Phase::Open, || {
        format!("1 s after 5 failures in a row Redis counts {} and the breaker is {:?}", view.streak, view.phase)
    })
}

fn store_now(store: &RedisStore) -> phalanx_core::clock::Time {
    phalanx_core::store::Store::clock(store).now()
}

pub(crate) async fn review_1_15_any_valid_number_of_probes_keeps_the_breaker_half_open() -> Seen {
    const PROBES: u32 = 50_000;
    let spec = brittle().probes(PROBES, PROBES);
    if !Policy::named("policy").breaker(spec.clone()).mistakes().is_empty() {
        return Ok(()); // rejected by validation
    }
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let breaker = store.breaker(&key("eu"), &spec);
    end_of_break(&store, &breaker).await;
    let probes = (0..PROBES).map(|_| {
        let (store, breaker) = (store.clone(), breaker.clone());
        async move { matches!(admit(&store, &breaker).await, phalanx_core::breaker::Admission::Admitted(_)) }
    });
    let admitted = all(probes).await.into_iter().filter(|admitted| *admitted).count();
    assert!(admitted >= 10_000, "{admitted} probes"); // the most that are leased at a time
    let view = store.inspect(&breaker, store_now(&store)).await;
    promise(view.phase == Phase::HalfOpen, || {
        format!(
            "with {PROBES} probes in flight, which validation allows, the stored state is discarded: {:?}",
            view.phase
        )
    })
}

pub(crate) async fn review_1_16_a_reply_that_is_late_during_a_ramp_admits_only_the_ramp() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let breaker = store.breaker(&key("eu"), &brittle().ramp(30 * SECOND, 10));
    end_of_break(&store, &breaker).await;
    assert!(is_admitted(&store, &breaker).await, "the probe");
    sleep(100 * MS).await;
    let ask = async || {
        let calls = (0..110).map(|_| {
            let (store, breaker) = (store.clone(), breaker.clone());
            async move { is_admitted(&store, &breaker).await }
        });
        all(calls).await.into_iter().filter(|admitted| *admitted).count()
    };
    let ramp = ask().await;
    assert!((1..=20).contains(&ramp), "the ramp admits a tenth: {ramp}");
    sleep(100 * MS).await; // a replica asks again after 50 ms
    redis.lose_reply("breaker_admit", 1);
    let late = ask().await;
    assert_eq!(redis.pending_faults(), 0, "a reply was lost");
    promise(late <= 2 * ramp, || format!("the ramp admitted {ramp} of 110 calls, and {late} when a reply was lost"))
}

/// Ten replicas make 400 calls a second each, and those of the first fail. Returns whether the breaker stays closed on
/// the others, and what it counted.
async fn one_sick_replica(spec: &BreakerSpec, lasts: u32) -> Seen {
    let redis = FaultyRedis::new();
    let stores = replicas(&redis, 10);
    meet(&stores).await;
    let breakers: Vec<Arc<SharedBreaker>> = stores.iter().map(|store| store.breaker(&key("eu"), spec)).collect();
    let start = Instant::now();
    while start.elapsed() < lasts * SECOND {
        for (number, (store, breaker)) in stores.iter().zip(&breakers).enumerate() {
            let outcome = if number == 0 { Outcome::Failure } else { Outcome::Success };
            if number > 0
                && let Err(code) = call(store, breaker, outcome).await
            {
                let calls = 4_000.0 * start.elapsed().as_secs_f64();
                return Err(format!(
                    "{code:?} on a healthy replica after {:?}: 1 replica of 10 fails, a tenth of {calls:.0} calls",
                    start.elapsed()
                ));
            }
            if number == 0 {
                call(store, breaker, outcome).await.ok();
            }
        }
        sleep(Duration::from_micros(2_500)).await;
    }
    Ok(())
}

pub(crate) async fn review_2_4_a_replica_that_fails_a_tenth_of_the_calls_does_not_reach_a_ratio_of_a_half() -> Seen {
    one_sick_replica(&BreakerSpec::failure_ratio(0.5), 3).await
}

pub(crate) async fn review_2_4_failures_between_the_successes_of_others_are_not_in_a_row() -> Seen {
    one_sick_replica(&BreakerSpec::consecutive_failures(5), 3).await
}

/// Calls of which one in twenty is slow, until the breaker trips on their p99, while this many replicas start, one every
/// two seconds. Returns when it tripped.
async fn slow_until_trip(starting: usize) -> Option<Duration> {
    let redis = FaultyRedis::new();
    redis.set_latency(2 * MS);
    let spec = BreakerSpec::latency(0.99, 100 * MS, 5 * SECOND).window(5 * SECOND);
    let module = |seed| {
        let policy = Policy::named("policy").breaker(spec.clone());
        ResilienceModule::with_redis(&redis).seed(seed).policy(policy).build().unwrap()
    };
    let run = |module: &ResilienceModule, takes: Duration| {
        let module = module.clone();
        async move {
            let operation = || async {
                sleep(takes).await;
                Ok::<_, Kind>(())
            };
            module.run("policy", "eu", operation).await.is_ok()
        }
    };
    let (first, mut others, start) = (module(1), Vec::new(), Instant::now());
    while start.elapsed() < 40 * SECOND {
        if others.len() < starting && start.elapsed() >= 2 * SECOND * (others.len() as u32 + 1) {
            let started = module(2 + others.len() as u64);
            run(&started, MS).await;
            others.push(started);
        }
        let calls = (0..20).map(|call| run(&first, if call == 0 { 200 * MS } else { MS }));
        if all(calls.collect::<Vec<_>>().into_iter()).await.contains(&false) {
            return Some(start.elapsed());
        }
    }
    None
}

pub(crate) async fn review_2_5_replicas_that_start_do_not_reset_a_latency_trip() -> Seen {
    let alone = slow_until_trip(0).await;
    assert!(alone.is_some_and(|after| after < 12 * SECOND), "without starts it trips: {alone:?}");
    let rollout = slow_until_trip(15).await;
    promise(rollout.is_some_and(|after| after < 15 * SECOND), || {
        format!(
            "p99 over its threshold for 5 s: tripped after {alone:?}, and after {rollout:?} while 15 replicas started"
        )
    })
}

pub(crate) async fn a_call_right_after_the_latch_has_tripped_is_decided_by_the_twin() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let breaker = store.breaker(&key("eu"), &brittle());
    let bucket = store.bucket(&key("bucket"), &RateLimitSpec::per_second(1_000_000));
    assert!(is_admitted(&store, &breaker).await);
    sleep(SECOND).await;
    assert_eq!(store.admit_now(&breaker, store_now(&store)).map(|reply| reply.source), Some(Source::Fleet));
    redis.hang();
    for _ in 0..1_000 {
        acquire(&store, &bucket, 1).await; // the caller sees the failure of its own round trip
        if store.mode() == StoreMode::Degraded {
            let source = store.admit_now(&breaker, store_now(&store)).map(|reply| reply.source);
            return promise(source == Some(Source::Degraded), || format!("decided by {source:?}"));
        }
        sleep(MS).await;
    }
    panic!("the store did not degrade");
}

pub(crate) async fn review_7_5_an_open_breaker_is_not_evicted_for_new_routes() -> Seen {
    let redis = FaultyRedis::new();
    let policy = Policy::named("policy").breaker(BreakerSpec::consecutive_failures(5).break_for(60 * SECOND));
    // One route, so that it does not depend on the order of a hash table which one makes room.
    let module = ResilienceModule::with_redis(&redis).seed(1).max_routes(1).policy(policy).build().unwrap();
    let fail = async || module.run("policy", "eu", || async { Err::<(), _>(Kind::Infrastructure) }).await;
    for _ in 0..5 {
        fail().await.ok();
        sleep(MS).await;
    }
    sleep(20 * MS).await; // failures after the first are paced
    assert!(fail().await.unwrap_err().rejection().is_some(), "the breaker is open for 60 s");
    for route in 0..20 {
        module.run("policy", format!("new {route}").as_str(), || async { Ok::<_, Kind>(()) }).await.unwrap();
        sleep(100 * MS).await;
    }
    redis.flush_all();
    let mut passed = 0;
    for _ in 0..20 {
        passed += usize::from(module.run("policy", "eu", || async { Ok::<_, Kind>(()) }).await.is_ok());
        sleep(100 * MS).await;
    }
    promise(passed == 0, || format!("{passed} of 20 calls passed during the break, after 20 new routes and a flush"))
}

pub(crate) async fn review_7_6_the_successes_of_routes_beyond_max_routes_are_sent() -> Seen {
    const ROUTES: usize = 100;
    let redis = FaultyRedis::new();
    let policy = Policy::named("policy").breaker(BreakerSpec::failure_ratio(0.5));
    let module = ResilienceModule::with_redis(&redis).seed(1).max_routes(1).policy(policy).build().unwrap();
    for route in 0..ROUTES {
        module.run("policy", format!("new {route}").as_str(), || async { Ok::<_, Kind>(()) }).await.unwrap();
        sleep(MS).await;
    }
    sleep(SECOND).await;
    let counted = redis.key_names().iter().filter(|key| key.contains(":b:") && !key.ends_with(":e")).count();
    // The last route is still here, and keeps its good news to itself.
    promise(counted >= ROUTES - 1, || format!("Redis counted a success of {counted} routes of {ROUTES}"))
}

/// Found by the simulator (I-25).
pub(crate) async fn a_probe_whose_lease_a_trip_has_overtaken_is_rejected() -> Seen {
    let redis = FaultyRedis::new();
    let (one, other) = (replica(&redis, 1), replica(&redis, 2));
    let spec = BreakerSpec { half_open_max_calls: 2, ..brittle() };
    let (mine, theirs) = (one.breaker(&key("eu"), &spec), other.breaker(&key("eu"), &spec));
    call(&one, &mine, Outcome::Success).await.unwrap();
    call(&other, &theirs, Outcome::Success).await.unwrap();
    sleep(3 * SECOND).await;
    trip(&other, &theirs).await;
    sleep(1_100 * MS).await;
    call(&other, &theirs, Outcome::Failure).await.unwrap(); // loads the script
    sleep(1_100 * MS).await;
    let Admission::Admitted(probe) = admit(&other, &theirs).await else { panic!("the probe is admitted") };
    redis.delay_replies(Some((1, 8 * MS)));
    let asking = tokio::spawn({
        let (one, mine) = (one.clone(), mine.clone());
        async move { admit(&one, &mine).await }
    });
    sleep(2 * MS).await;
    other.record(&theirs, other.clock().now(), probe, Sample { outcome: Outcome::Failure, latency: MS });
    let admission = asking.await.unwrap();
    promise(matches!(admission, Admission::Rejected { .. }), || {
        format!("the breaker opened again before the lease of another probe arrived: {admission:?}")
    })
}

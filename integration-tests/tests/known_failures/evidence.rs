//! Cost in proportion to trouble, and trips by the evidence of the fleet.

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{Admission, BreakerSpec, Override, Phase, Sample};
use phalanx_core::kind::Outcome;
use phalanx_core::rate_limit::RateLimitSpec;
use phalanx_core::rejection::RejectionCode;
use phalanx_core::store::{BreakerStore, RateLimitStore, Store};
use phalanx_store_redis::{RedisStore, SharedBreaker};
use phalanx_testkit::FaultyRedis;
use tokio::time::{Instant, sleep};

use crate::harness::*;

/// Replicas that all use one breaker, and know each other.
async fn fleet(redis: &FaultyRedis, count: u64, spec: &BreakerSpec) -> Vec<(RedisStore, Arc<SharedBreaker>)> {
    let stores = replicas(redis, count);
    meet(&stores).await;
    let users: Vec<_> = stores.into_iter().map(|store| (store.breaker(&key("eu"), spec), store)).collect();
    for (breaker, store) in &users {
        call(store, breaker, Outcome::Success).await.unwrap();
    }
    sleep(SECOND).await;
    users.into_iter().map(|(breaker, store)| (store, breaker)).collect()
}

pub(crate) async fn a_healthy_fleet_costs_redis_its_heartbeats_however_many_routes_it_uses() -> Seen {
    const REPLICAS: u64 = 10;
    const ROUTES: usize = 200;
    let redis = FaultyRedis::new();
    let stores = replicas(&redis, REPLICAS);
    meet(&stores).await;
    let routes = |store: &RedisStore| -> Vec<_> {
        let route = |number| store.breaker(&key(&format!("route {number}")), &BreakerSpec::failure_ratio(0.5));
        (0..ROUTES).map(route).collect()
    };
    let breakers: Vec<Vec<_>> = stores.iter().map(routes).collect();
    let use_for = async |rounds: usize| {
        for _ in 0..rounds {
            for (store, breakers) in stores.iter().zip(&breakers) {
                for breaker in breakers {
                    call(store, breaker, Outcome::Success).await.unwrap();
                }
            }
            sleep(100 * MS).await;
        }
    };
    use_for(10).await;
    let before = redis.scripts();
    use_for(50).await;
    let each = (redis.scripts() - before) as f64 / 5.0 / REPLICAS as f64;
    // A heartbeat and the numbers of the changes (I-37: at most two scripts a second and replica).
    promise(each <= 2.2, || format!("{each:.1} scripts a second for each replica, {ROUTES} routes in use"))
}

pub(crate) async fn one_replica_of_five_with_broken_egress_opens_its_own_circuit_only() -> Seen {
    let redis = FaultyRedis::new();
    let events = Events::default();
    let spec = BreakerSpec::failure_ratio(0.5).min_throughput(10).break_for(2 * SECOND).quorum_share(0.5);
    let sick = builder(&redis, 77).observers(events.observers()).build().unwrap();
    let mut users = fleet(&redis, 4, &spec).await;
    users.push((sick.clone(), sick.breaker(&key("eu"), &spec)));
    sleep(2 * SECOND).await;
    let (mut rejected_by_sick, mut rejected_by_others) = (0, 0);
    let start = Instant::now();
    while start.elapsed() < SECOND {
        for (number, (store, breaker)) in users.iter().enumerate() {
            let outcome = if number == 4 { Outcome::Failure } else { Outcome::Success };
            match call(store, breaker, outcome).await {
                Err(RejectionCode::CircuitOpen) if number == 4 => rejected_by_sick += 1,
                Err(_) if number < 4 => rejected_by_others += 1,
                _ => {}
            }
        }
        sleep(5 * MS).await;
    }
    let odd = events.count("OddReplica");
    let others: Vec<Phase> = users[..4].iter().map(|(_, breaker)| breaker.cached_phase().0).collect();
    if rejected_by_sick < 100 || rejected_by_others > 0 || odd != 1 || others != [Phase::Closed; 4] {
        return Err(format!(
            "the sick replica rejected {rejected_by_sick} of its calls, the others {rejected_by_others}; {odd} events; {others:?}"
        ));
    }
    assert_eq!((sick.odd_breakers(), users[4].1.cached_phase().0), (1, Phase::Open));
    // Its egress is mended: its own probe closes its own circuit.
    sleep(2 * SECOND).await;
    call(&sick, &users[4].1, Outcome::Success).await.unwrap();
    call(&sick, &users[4].1, Outcome::Success).await.unwrap();
    let odd = (sick.odd_breakers(), users[4].1.cached_phase().0);
    promise(odd == (0, Phase::Closed), || format!("after its probe succeeded: {odd:?}"))
}

/// A fleet of three healthy replicas and one that has opened a circuit of its own, for two seconds.
async fn fleet_with_an_odd_replica(
    redis: &FaultyRedis,
) -> (Vec<(RedisStore, Arc<SharedBreaker>)>, RedisStore, Arc<SharedBreaker>) {
    let spec = BreakerSpec::failure_ratio(0.5).min_throughput(10).break_for(2 * SECOND).quorum_share(0.5);
    let mut users = fleet(redis, 4, &spec).await;
    for _ in 0..1_000 {
        for (number, (store, breaker)) in users.iter().enumerate() {
            let outcome = if number == 3 { Outcome::Failure } else { Outcome::Success };
            call(store, breaker, outcome).await.ok();
        }
        if users[3].0.odd_breakers() == 1 {
            let (odd, breaker) = users.pop().unwrap();
            return (users, odd, breaker);
        }
        sleep(MS).await;
    }
    panic!("no replica opened a circuit of its own");
}

pub(crate) async fn what_the_twin_of_an_odd_replica_has_opened_stays_open_after_the_outage() -> Seen {
    let redis = FaultyRedis::new();
    let (_others, odd, breaker) = fleet_with_an_odd_replica(&redis).await;
    sleep(3 * SECOND).await; // its own break is over
    redis.stop();
    degrade(&odd).await;
    trip(&odd, &breaker).await;
    let opened = Instant::now();
    redis.start();
    recover(&odd).await;
    assert_eq!(breaker.cached_phase().0, Phase::Open, "the breaker of the outage is still open");
    while opened.elapsed() < 1_900 * MS {
        if call(&odd, &breaker, Outcome::Success).await.is_ok() {
            return Err(format!("a call was admitted {:?} after the twin had opened for 2 s", opened.elapsed()));
        }
        sleep(10 * MS).await;
    }
    Ok(())
}

pub(crate) async fn the_circuit_of_an_odd_replica_stays_open_in_an_outage() -> Seen {
    let redis = FaultyRedis::new();
    let (_others, odd, breaker) = fleet_with_an_odd_replica(&redis).await;
    redis.stop();
    degrade(&odd).await;
    let admitted = call(&odd, &breaker, Outcome::Success).await;
    promise(admitted == Err(RejectionCode::CircuitOpen), || format!("{admitted:?} in its own break of 2 s"))
}

pub(crate) async fn an_outcome_that_comes_after_the_circuit_of_an_odd_replica_is_gone_does_not_count() -> Seen {
    let redis = FaultyRedis::new();
    let (others, odd, breaker) = fleet_with_an_odd_replica(&redis).await;
    sleep(2 * SECOND).await;
    let Admission::Admitted(ticket) = admit(&odd, &breaker).await else { panic!("its own break is over") };
    // The fleet begins another epoch, and with it the circuit of the odd replica goes.
    let (store, shared) = &others[0];
    store.reset(shared, store.clock().now()).await;
    sleep(2 * SECOND).await;
    assert_eq!(odd.odd_breakers(), 0, "the circuit is gone");
    odd.record(&breaker, odd.clock().now(), ticket, Sample { outcome: Outcome::Failure, latency: MS });
    sleep(2 * SECOND).await;
    let view = store.inspect(shared, store.clock().now()).await;
    promise(view.failures == 0, || format!("{} failures count in epoch {}", view.failures, view.epoch))
}

pub(crate) async fn with_a_quorum_a_dependency_that_fails_for_most_replicas_opens_for_all() -> Seen {
    let redis = FaultyRedis::new();
    redis.set_latency(MS);
    let spec = BreakerSpec::failure_ratio(0.5).min_throughput(10).break_for(60 * SECOND).quorum_share(0.5);
    let users = fleet(&redis, 5, &spec).await;
    let start = Instant::now();
    while start.elapsed() < SECOND {
        for (number, (store, breaker)) in users.iter().enumerate() {
            let outcome = if number < 4 { Outcome::Failure } else { Outcome::Success };
            call(store, breaker, outcome).await.ok();
        }
        if users.iter().all(|(_, breaker)| breaker.cached_phase().0 == Phase::Open) {
            return promise(start.elapsed() < 200 * MS, || format!("open for all after {:?}", start.elapsed()));
        }
        sleep(2 * MS).await;
    }
    Err("it did not open for all".to_owned())
}

pub(crate) async fn a_dependency_that_fails_wholly_trips_at_once_although_some_replicas_do_not_use_it() -> Seen {
    let redis = FaultyRedis::new();
    redis.set_latency(MS);
    let spec = BreakerSpec::failure_ratio(0.5).min_throughput(10).break_for(60 * SECOND);
    let (idle, users) = (replicas(&redis, 3), fleet(&redis, 2, &spec).await);
    for store in &idle {
        let bucket = store.bucket(&key("bucket"), &RateLimitSpec::per_second(1_000));
        acquire(store, &bucket, 1).await;
    }
    sleep(2 * SECOND).await;
    let (store, breaker) = &users[0];
    let mut failures = 0;
    while call(store, breaker, Outcome::Failure).await.is_ok() {
        failures += 1;
        sleep(MS).await;
        assert!(failures < 1_000);
    }
    promise(failures <= 60, || format!("{failures} calls reached a dependency of which every call fails"))
}

pub(crate) async fn outcomes_whose_reply_was_lost_count_once() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let breaker = store.breaker(&key("eu"), &BreakerSpec::failure_ratio(1.0).min_throughput(1_000));
    call(&store, &breaker, Outcome::Success).await.unwrap();
    sleep(SECOND).await;
    for lost in 0..10 {
        redis.lose_reply("breaker_sync", 1);
        for _ in 0..3 {
            call(&store, &breaker, Outcome::Failure).await.unwrap();
        }
        sleep(400 * MS).await;
        assert_eq!(redis.pending_faults(), 0, "reply {lost} was lost");
    }
    sleep(SECOND).await;
    let view = store.inspect(&breaker, store.clock().now()).await;
    promise(view.failures == 30, || format!("{} of 30 failures were counted, after ten lost replies", view.failures))
}

pub(crate) async fn an_override_whose_push_is_lost_is_known_with_the_next_heartbeat() -> Seen {
    let redis = FaultyRedis::new();
    let spec = brittle();
    let users = fleet(&redis, 2, &spec).await;
    redis.lose_pushes(true);
    let (store, breaker) = &users[0];
    let mut slowest = Duration::ZERO;
    for _ in 0..3 {
        store.force(breaker, Some(Override::Open)).await;
        let start = Instant::now();
        while users[1].1.cached_phase().1.is_none() && start.elapsed() < 10 * SECOND {
            sleep(MS).await;
        }
        slowest = slowest.max(start.elapsed());
        store.force(breaker, None).await;
        sleep(3 * SECOND).await;
    }
    promise(slowest <= 1_050 * MS, || format!("an override whose push was lost was known after {slowest:?}"))
}

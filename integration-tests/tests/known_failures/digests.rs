//! Latency digests: they cost Redis something only where a stage reads a quantile, and a replica that is sent only what it
//! lacks has everything.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use phalanx::policy::AdaptiveSpec;
use phalanx::{BreakerSpec, BulkheadSpec, HedgeSpec, Policy, ResilienceModule};
use phalanx_core::kind::Outcome;
use phalanx_core::store::{BreakerStore, LatencyDigestStore, Store};
use phalanx_store_redis::{RedisStore, SharedDigest, StoreMode};
use phalanx_testkit::FaultyRedis;
use tokio::time::{Instant, sleep};

use crate::harness::*;

/// How often a script of a digest has been executed.
fn digest_scripts(redis: &FaultyRedis) -> u64 {
    redis.runs_of("digest_flush") + redis.runs_of("digest_read")
}

/// Calls every five milliseconds. Returns how many scripts of digests that cost.
async fn call_for(module: &ResilienceModule, redis: &FaultyRedis, time: Duration) -> u64 {
    let (start, before) = (Instant::now(), digest_scripts(redis));
    while start.elapsed() < time {
        let operation = || async {
            sleep(MS).await;
            Ok::<_, Infallible>(())
        };
        module.run("policy", "eu", operation).await.unwrap();
        sleep(4 * MS).await;
    }
    digest_scripts(redis) - before
}

pub(crate) async fn a_policy_costs_a_digest_only_as_long_as_it_reads_a_quantile() -> Seen {
    let redis = FaultyRedis::new();
    let breaker = || BreakerSpec::failure_ratio(0.5).or_slow_call_ratio(0.5, SECOND);
    let limit = || AdaptiveSpec::threshold(SECOND);
    let hedge = || HedgeSpec::after(SECOND);
    let without = || {
        Policy::named("policy")
            .idempotent()
            .breaker(breaker())
            .bulkhead(BulkheadSpec::adaptive(100, limit()))
            .hedge(hedge())
    };
    let readers = [
        ("breaker", without().breaker(breaker().or_latency(0.9, SECOND, SECOND))),
        ("bulkhead", without().bulkhead(BulkheadSpec::adaptive(100, limit().quantile(0.9)))),
        ("hedge", without().hedge(hedge().at_quantile(0.9).between(MS, SECOND))),
    ];
    let module = ResilienceModule::with_redis(&redis).seed(1).policy(without()).build().unwrap();
    let mut seen = vec![("none", call_for(&module, &redis, 3 * SECOND).await, 0)];
    for (reader, policy) in readers {
        module.retune(policy).unwrap();
        let during = call_for(&module, &redis, 3 * SECOND).await;
        module.retune(without()).unwrap();
        call_for(&module, &redis, SECOND).await; // what was pending is sent
        seen.push((reader, during, call_for(&module, &redis, 3 * SECOND).await));
    }
    // Three seconds have 12 to 14 intervals of 225 to 250 ms.
    let kept = seen.iter().all(|(reader, during, after)| {
        let expected = if *reader == "none" { 0..=0 } else { 11..=14 };
        expected.contains(during) && *after == 0
    });
    promise(kept, || format!("scripts in three seconds with each reader of a quantile, and after it: {seen:?}"))
}

pub(crate) async fn a_digest_in_use_costs_a_script_per_interval_and_an_idle_one_none() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let digest = store.digest(&key("eu"), 10 * SECOND);
    let mut costs = Vec::new();
    for (feeds, reads) in [(true, true), (true, false), (false, true), (false, false)] {
        sleep(SECOND).await;
        let before = digest_scripts(&redis);
        for _ in 0..100 {
            let now = store.clock().now();
            if feeds {
                store.observe(&digest, now, 5 * MS);
            }
            if reads {
                store.quantile(&digest, now, 0.5);
            }
            sleep(50 * MS).await;
        }
        costs.push(digest_scripts(&redis) - before);
    }
    // Five seconds have 20 to 23 intervals.
    let kept = costs[..3].iter().all(|cost| (19..=23).contains(cost)) && costs[3] == 0;
    promise(kept, || {
        format!("scripts in five seconds of a digest that is fed and read, fed, read, and idle: {costs:?}")
    })
}

/// What happens to Redis, and its name.
type Fault = (&'static str, fn(&FaultyRedis));

fn quantiles(store: &RedisStore, digest: &Arc<SharedDigest>) -> [Option<Duration>; 4] {
    [0.1, 0.5, 0.7, 0.95].map(|quantile| store.quantile(digest, store.clock().now(), quantile))
}

pub(crate) async fn a_replica_that_is_sent_only_changes_has_the_quantiles_of_a_new_one() -> Seen {
    const WINDOW: Duration = Duration::from_secs(100);
    let faults: [Fault; 6] = [
        ("nothing", |_| {}),
        ("a flush", FaultyRedis::flush_all),
        ("a failover that lost 400 ms", |redis| redis.fail_over(400 * MS)),
        ("a restart with the data of a second ago", |redis| redis.restart_with_data_of(SECOND)),
        ("a step back of the clock by 30 s", |redis| redis.step_clock_back(30 * SECOND)),
        ("a leap of the clock by 30 s", |redis| redis.step_clock_forward(30 * SECOND)),
    ];
    let redis = FaultyRedis::new();
    let stores = replicas(&redis, 2);
    let [one, other] = [&stores[0], &stores[1]].map(|store| (store, store.digest(&key("eu"), WINDOW)));
    let mut wrong = Vec::new();
    for (round, (fault, happens)) in (0..).zip(faults.iter().cycle().take(24)) {
        for step in 0..10 {
            for (number, (store, digest)) in (1..).zip([&one, &other]) {
                let latency = MS * (number + step * (round % 7));
                (0..number).for_each(|_| store.observe(digest, store.clock().now(), latency));
            }
            sleep(120 * MS).await;
        }
        happens(&redis);
        sleep(4 * SECOND).await; // both are back
        let fresh = replica(&redis, 100 + u64::from(round));
        let digest = fresh.digest(&key("eu"), WINDOW);
        sleep(2 * SECOND).await;
        for (store, digest) in [&one, &other] {
            quantiles(store, digest); // in use
        }
        sleep(SECOND).await;
        let all = [(one.0, &one.1), (other.0, &other.1), (&fresh, &digest)];
        assert!(all.iter().all(|(store, _)| store.mode() == StoreMode::Shared), "after {fault} in round {round}");
        let [a, b, new] = all.map(|(store, digest)| quantiles(store, digest));
        if [a, b] != [new; 2] {
            wrong.push((round, fault, a, b, new));
        }
        fresh.leave().await;
    }
    promise(wrong.is_empty(), || format!("the quantiles of two replicas and of a new one: {wrong:#?}"))
}

pub(crate) async fn digests_of_many_partitions_are_flushed_with_one_script() -> Seen {
    let redis = FaultyRedis::new();
    let store = replica(&redis, 1);
    let spec = BreakerSpec::failure_ratio(0.5);
    let used: Vec<_> = (0..20)
        .map(|number| key(&format!("route {number}")))
        .map(|key| (store.breaker(&key, &spec), store.digest(&key, 10 * SECOND)))
        .collect();
    let use_for = async |time: Duration| {
        let start = Instant::now();
        while start.elapsed() < time {
            for (breaker, digest) in &used {
                call(&store, breaker, Outcome::Success).await.unwrap();
                store.observe(digest, store.clock().now(), MS);
            }
            sleep(10 * MS).await;
        }
    };
    use_for(3 * SECOND).await; // a heartbeat has shown that the server takes scripts over several slots
    let (scripts, cells) = (redis.scripts(), redis.runs_of("digest_flush"));
    use_for(2 * SECOND).await;
    let (scripts, cells) = (redis.scripts() - scripts, redis.runs_of("digest_flush") - cells);
    assert!(cells >= 100, "{cells} digests were flushed");
    // Four rounds a second, and two scripts a heartbeat.
    promise(scripts <= 2 * (4 + 2) + 2, || format!("{scripts} scripts for {cells} digests"))
}

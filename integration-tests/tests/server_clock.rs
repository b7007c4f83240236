//! The shipped scripts on the server's own clock, in real time.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation panics, in helpers too

use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::{Admission, BreakerSpec, Phase, Sample, Ticket};
use phalanx_core::key::StateKey;
use phalanx_core::kind::Outcome;
use phalanx_core::rate_limit::{RateLimitSpec, Take};
use phalanx_core::rejection::{RejectionCode, Source};
use phalanx_core::store::{AcquireRequest, BreakerStore, Grant, LatencyDigestStore, RateLimitStore, Store};
use phalanx_store_redis::{RedisOptions, RedisStore, SharedBreaker};
use phalanx_testkit::replies::admit_call;
use phalanx_testkit::server::Redis;
use tokio::time::sleep;

const MS: Duration = Duration::from_millis(1);

/// Replicas with the same environment.
struct Fleet {
    url: &'static str,
    environment: String,
}

impl Fleet {
    async fn new(name: &str) -> Self {
        Self { url: Redis::shared().await, environment: format!("{name}-{}", std::process::id()) }
    }

    fn replica(&self) -> RedisStore {
        let environment = self.environment.clone();
        let options = RedisOptions { environment, store_budget: 500 * MS, ..RedisOptions::default() };
        RedisStore::over(redis::Client::open(self.url).unwrap()).options(options).build().unwrap()
    }
}

async fn acquire(store: &RedisStore, spec: &RateLimitSpec, cost: u32) -> Grant {
    let bucket = store.bucket(&StateKey::new("p", "r"), spec);
    let grant = store.acquire(&bucket, store.clock().now(), AcquireRequest { cost, max_wait: Duration::ZERO }).await;
    assert_eq!(grant.source, Source::Fleet);
    grant
}

async fn admit(store: &RedisStore, circuit: &SharedBreaker) -> Result<Ticket, RejectionCode> {
    let (answer, _) = admit_call(store, circuit, store.clock().now()).await;
    assert_eq!(answer.source, Source::Fleet);
    match answer.admission {
        Admission::Admitted(ticket) => Ok(ticket),
        Admission::Rejected { code, .. } => Err(code),
    }
}

fn record(store: &RedisStore, circuit: &SharedBreaker, ticket: Ticket, outcome: Outcome) {
    store.record(circuit, store.clock().now(), ticket, Sample { outcome, latency: MS });
}

/// Returns two replicas with one breaker that trips on the first failure.
async fn circuit_of_two(name: &str, spec: &BreakerSpec) -> [(RedisStore, Arc<SharedBreaker>); 2] {
    let fleet = Fleet::new(name).await;
    [fleet.replica(), fleet.replica()].map(|store| {
        let circuit = store.breaker(&StateKey::new("p", "r"), spec);
        (store, circuit)
    })
}

#[tokio::test]
async fn permits_are_refilled_by_the_servers_clock() {
    let fleet = Fleet::new("refill").await;
    let (one, two) = (fleet.replica(), fleet.replica());
    let spec = RateLimitSpec::new(1, 100 * MS).burst(2);
    assert_eq!(acquire(&one, &spec, 2).await.take, Take::Granted { wait: Duration::ZERO });
    let now = two.clock().now();
    let Take::Rejected { until } = acquire(&two, &spec, 1).await.take else { panic!("there were only two") };
    let wait = until.since(now);
    assert!(wait > 20 * MS && wait <= 200 * MS, "{wait:?}");
    sleep(wait).await;
    assert_eq!(acquire(&two, &spec, 1).await.take, Take::Granted { wait: Duration::ZERO });
}

#[tokio::test]
async fn a_trip_rejects_on_other_replicas_and_a_break_ends_by_the_servers_clock() {
    let spec = BreakerSpec::consecutive_failures(1).break_for(150 * MS);
    let [(one, a), (two, b)] = circuit_of_two("trip", &spec).await;
    let (ticket, _) = (admit(&one, &a).await.unwrap(), admit(&two, &b).await.unwrap());
    record(&one, &a, ticket, Outcome::Failure);
    one.settle().await;
    two.settle().await;
    assert_eq!(admit(&two, &b).await, Err(RejectionCode::CircuitOpen));
    sleep(170 * MS).await;
    let probe = admit(&two, &b).await.unwrap();
    assert!(probe.lease.is_some());
    assert_eq!(admit(&one, &a).await, Err(RejectionCode::ProbeQuota), "the other replica has the only probe");
    record(&two, &b, probe, Outcome::Success);
    two.settle().await;
    assert_eq!(one.inspect(&a, one.clock().now()).await.phase, Phase::Closed);
    assert!(admit(&one, &a).await.is_ok());
}

#[tokio::test]
async fn an_unsettled_lease_expires_by_the_servers_clock() {
    let spec = BreakerSpec::consecutive_failures(1).break_for(20 * MS).probe_lease(120 * MS);
    let [(one, a), (two, b)] = circuit_of_two("lease", &spec).await;
    let ticket = admit(&one, &a).await.unwrap();
    record(&one, &a, ticket, Outcome::Failure);
    one.settle().await;
    sleep(30 * MS).await;
    assert!(admit(&one, &a).await.unwrap().lease.is_some());
    assert_eq!(admit(&two, &b).await, Err(RejectionCode::ProbeQuota));
    sleep(130 * MS).await;
    assert!(admit(&two, &b).await.unwrap().lease.is_some());
}

#[tokio::test]
async fn latencies_of_one_replica_are_in_the_quantile_of_another() {
    let fleet = Fleet::new("digest").await;
    let (one, two) = (fleet.replica(), fleet.replica());
    let key = StateKey::new("p", "r");
    let window = Duration::from_secs(10);
    let (a, b) = (one.digest(&key, window), two.digest(&key, window));
    for _ in 0..100 {
        one.observe(&a, one.clock().now(), 40 * MS);
    }
    one.settle().await;
    two.settle().await;
    let seen = two.quantile(&b, two.clock().now(), 0.95).unwrap();
    assert!(seen.abs_diff(40 * MS) <= MS, "{seen:?}");
}

#[tokio::test]
async fn a_new_replica_that_only_reads_starts_with_the_fleets_quantile() {
    let fleet = Fleet::new("fresh").await;
    let (one, fresh) = (fleet.replica(), fleet.replica());
    let (key, window) = (StateKey::new("p", "r"), Duration::from_secs(60));
    let digest = one.digest(&key, window);
    for _ in 0..100 {
        one.observe(&digest, one.clock().now(), 40 * MS);
    }
    one.settle().await;
    let digest = fresh.digest(&key, window);
    let warm = async {
        loop {
            match fresh.quantile(&digest, fresh.clock().now(), 0.95) {
                Some(seen) => return seen,
                None => sleep(5 * MS).await,
            }
        }
    };
    let seen = tokio::time::timeout(Duration::from_secs(20), warm).await.unwrap();
    assert!(seen.abs_diff(40 * MS) <= MS, "{seen:?}");
}

#[tokio::test]
async fn every_key_has_a_ttl() {
    let fleet = Fleet::new("ttl").await;
    let store = fleet.replica();
    acquire(&store, &RateLimitSpec::per_second(10), 1).await;
    let circuit = store.breaker(&StateKey::new("p", "r"), &BreakerSpec::consecutive_failures(1));
    let ticket = admit(&store, &circuit).await.unwrap();
    record(&store, &circuit, ticket, Outcome::Failure);
    let digest = store.digest(&StateKey::new("p", "r"), Duration::from_secs(10));
    store.observe(&digest, store.clock().now(), MS);
    store.settle().await;
    let mut server = redis::Client::open(fleet.url).unwrap().get_multiplexed_async_connection().await.unwrap();
    let ours = format!("ph2:{{*.{}:*", fleet.environment);
    let keys: Vec<String> = redis::cmd("KEYS").arg(ours).query_async(&mut server).await.unwrap();
    let kinds: Vec<_> =
        ["r", "b", "d"].into_iter().filter(|kind| keys.iter().any(|key| key.contains(&format!(":{kind}:")))).collect();
    assert_eq!(kinds, ["r", "b", "d"], "{keys:?}");
    for key in keys {
        let left: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut server).await.unwrap();
        assert!(left > 0, "{key} never expires");
    }
}

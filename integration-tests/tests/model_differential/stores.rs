//! Whole stores: what replicas decide and emit through outages, a promotion and a reshard.

use std::sync::Arc;
use std::time::Duration;

use phalanx::store::StateKey;
use phalanx_core::clock::Clock;
use phalanx_core::event::Observers;
use phalanx_core::lock::LockStore;
use phalanx_core::rate_limit::{RateLimitSpec, Take};
use phalanx_core::store::{AcquireRequest, RateLimitStore};
use phalanx_store_redis::{RedisConnection, RedisOptions, RedisStore};
use phalanx_testkit::replies::acquire_permits;

use crate::cluster::ThreeMasters;
use crate::events::{BUDGET, EventLog};
use crate::harness::{Log, NOW, SECOND, ZERO, compare};
use crate::one_server::OneServer;
use crate::promotion::Pair;

/// A replica on a virtual clock that does not move, and its events.
struct Replica {
    store: RedisStore,
    events: EventLog,
}

impl Replica {
    fn new(redis: RedisConnection) -> Self {
        let (clock, events) = (Clock::manual(), EventLog::default());
        clock.set(NOW);
        let options = RedisOptions { store_budget: BUDGET, ..RedisOptions::default() };
        let store = RedisStore::over(redis).options(options).virtual_clock(clock);
        let store = store.observers(Observers::new(vec![Arc::new(events.clone())])).build().unwrap();
        Self { store, events }
    }

    /// Takes a permit out of a bucket of ten that gains one an hour.
    async fn acquire(&self, log: &mut Log, policy: &str) {
        let bucket = self.store.bucket(&StateKey::new(policy, ()), &hourly());
        let request = AcquireRequest { cost: 1, max_wait: ZERO };
        let grant = acquire_permits(&self.store, &bucket, NOW, request).await;
        let granted = matches!(grant.take, Take::Granted { .. });
        log.note(format!("acquire {policy}"), format!("granted {granted} by {:?}", grant.source));
    }

    /// Reads the whole permits of a bucket.
    async fn peek(&self, log: &mut Log, policy: &str) {
        let bucket = self.store.bucket(&StateKey::new(policy, ()), &hourly());
        log.note(format!("peek {policy}"), self.store.peek(&bucket, NOW).await.permits());
    }

    async fn lock(&self, log: &mut Log, owner: &str) {
        let acquired = self.store.locks().acquire("lock", owner, 3_600 * SECOND).await;
        log.note(format!("lock for {owner}"), format!("{acquired:?}"));
    }

    /// Waits for the end of the first outage, and notes its reason.
    async fn until_recovered(&self, log: &mut Log) {
        self.events.until_recovered(1).await;
        log.note("outages", format!("{:?}, {:?}", self.events.outages(), self.store.mode()));
    }
}

fn hourly() -> RateLimitSpec {
    RateLimitSpec::new(10, Duration::from_secs(36_000))
}

#[test]
fn a_replica_decides_without_a_stopped_server_and_finds_its_saved_state_again() {
    let seen = compare::<OneServer>(async |server, log| {
        let replica = Replica::new(server.redis());
        for _ in 0..3 {
            replica.acquire(log, "a").await;
        }
        replica.lock(log, "me").await;
        server.save().await;
        server.stop();
        replica.acquire(log, "a").await;
        replica.events.until_degraded(1).await;
        replica.lock(log, "other").await;
        server.start_again().await;
        replica.until_recovered(log).await;
        replica.peek(log, "a").await;
        replica.acquire(log, "a").await;
        replica.lock(log, "other").await;
    });
    assert!(seen.contains(&"acquire a: granted true by Degraded".to_owned()), "{seen:?}");
}

#[test]
fn a_replica_leaves_a_demoted_primary_and_finds_the_promoted_one() {
    let seen = compare::<Pair>(async |pair, log| {
        let replica = Replica::new(pair.redis());
        replica.acquire(log, "a").await;
        replica.lock(log, "me").await;
        pair.switch_over().await;
        replica.lock(log, "me").await;
        replica.events.until_degraded(1).await;
        replica.until_recovered(log).await;
        replica.acquire(log, "a").await;
        replica.peek(log, "a").await;
        replica.lock(log, "other").await;
    });
    assert!(seen.iter().any(|step| step.contains("READONLY")), "{seen:?}");
}

#[test]
fn a_reshard_costs_a_replica_no_decision() {
    let seen = compare::<ThreeMasters>(async |cluster, log| {
        let replica = Replica::new(cluster.redis());
        let policies: Vec<String> = (0..12).map(|policy| policy.to_string()).collect();
        for round in 0..4 {
            for policy in &policies {
                replica.acquire(log, policy).await;
            }
            if round < 3 {
                cluster.move_bucket_slots(&policies[4 * round..4 * round + 4]).await;
            }
        }
        for policy in &policies {
            replica.peek(log, policy).await;
        }
        log.note("outages", format!("{:?}, {:?}", replica.events.outages(), replica.store.mode()));
    });
    let decided = seen.iter().filter(|step| step.starts_with("acquire"));
    assert!(decided.clone().count() == 48 && decided.clone().all(|step| step.ends_with("granted true by Fleet")));
}

//! A primary and its replica, which is promoted by `REPLICAOF NO ONE`: what is left, and what clients of the old primary
//! see. Clients reach the primary under one address, which moves with the promotion.

use std::cell::Cell;
use std::time::Duration;

use phalanx_lua as lua;
use phalanx_store_redis::RedisConnection;
use phalanx_store_redis::transport::ScriptForm;
use phalanx_testkit::FaultyRedis;
use phalanx_testkit::server::redis_cli::field;
use phalanx_testkit::server::{Options, Proxy, RedisProcess};
use tokio::time::{Instant, sleep};

use crate::harness::{CHANNEL, Deployment, MS, ZERO, compare, key, lock, peek, push, release, script, take};

/// A primary with one replica.
pub(crate) enum Pair {
    /// The model, and when its replication was stopped.
    Model(FaultyRedis, Cell<Option<Instant>>),
    Real(Box<RealPair>),
}

pub(crate) struct RealPair {
    primary: RedisProcess,
    replica: RedisProcess,
    /// Between the two.
    replication: Proxy,
    /// The address of the primary for clients.
    address: Proxy,
}

impl Deployment for Pair {
    fn model() -> Self {
        Self::Model(FaultyRedis::new(), Cell::default())
    }

    async fn start() -> Self {
        // By default a master waits five seconds for more replicas before it syncs the first.
        let options = Options::new().set("repl-diskless-sync-delay", &["0"]);
        let primary = RedisProcess::with(options.clone()).await;
        let (replication, address) = tokio::join!(Proxy::start(primary.address()), Proxy::start(primary.address()));
        let port = replication.port().to_string();
        let replica = RedisProcess::with(options.set("replicaof", &["127.0.0.1", &port])).await;
        until_linked(&replica).await;
        Self::Real(Box::new(RealPair { primary, replica, replication, address }))
    }
}

async fn until_linked(replica: &RedisProcess) {
    replica.until(&["INFO", "replication"], |info| field(info, "master_link_status") == Some("up")).await;
}

impl RealPair {
    /// Waits until the replica has received everything.
    async fn until_replicated(&self) {
        let info = self.primary.cli(&["INFO", "replication"]).await;
        let offset = |info: &str, name: &str| field(info, name).and_then(|offset| offset.parse::<u64>().ok());
        let written = offset(&info, "master_repl_offset").unwrap();
        let received = |info: &str| offset(info, "slave_repl_offset").is_some_and(|received| received >= written);
        self.replica.until(&["INFO", "replication"], received).await;
    }

    /// Promotes the replica, and moves the address.
    async fn promote(&self) {
        self.replica.cli(&["REPLICAOF", "NO", "ONE"]).await;
        self.address.retarget(self.replica.address());
    }
}

impl Pair {
    pub(crate) fn redis(&self) -> RedisConnection {
        match self {
            Self::Model(model, _) => model.into(),
            Self::Real(pair) => redis::Client::open(pair.address.url()).unwrap().into(),
        }
    }

    /// Publishes a message on the current primary, as a foreign client does.
    async fn publish(&self, message: &str) {
        match self {
            Self::Model(model, _) => model.publish(CHANNEL, message),
            Self::Real(pair) => {
                let url = pair.address.url();
                let publish = ["PUBLISH", CHANNEL, message];
                phalanx_testkit::server::redis_cli::redis_command(&url, &publish).await.unwrap();
            }
        }
    }

    async fn flush_all(&self) {
        match self {
            Self::Model(model, _) => model.flush_all(),
            Self::Real(pair) => drop(pair.primary.cli(&["FLUSHALL"]).await),
        }
    }

    /// Cuts the replica off, after it has received everything. What is written from now on is lost by a promotion.
    async fn stop_replication(&self) {
        match self {
            Self::Model(_, stopped) => {
                stopped.set(Some(Instant::now()));
                sleep(MS).await; // later writes have a later time
            }
            Self::Real(pair) => {
                pair.until_replicated().await;
                pair.replication.reject_connections().await;
                pair.replication.reset_connections().await;
            }
        }
    }

    /// How long the model has not replicated.
    fn lost(stopped: &Cell<Option<Instant>>) -> Duration {
        stopped.take().map_or(ZERO, |stopped| stopped.elapsed())
    }

    /// Kills the primary and promotes the replica.
    async fn fail_over(&self) {
        match self {
            Self::Model(model, stopped) => model.fail_over(Self::lost(stopped)),
            Self::Real(pair) => {
                if pair.replication.stats().open > 0 {
                    pair.until_replicated().await;
                }
                pair.primary.kill();
                pair.promote().await;
            }
        }
    }

    /// Promotes the replica, while the old primary goes on as if nothing had happened: it loses its clients, but not its
    /// subscribers.
    async fn fail_over_isolated(&self) {
        match self {
            Self::Model(model, stopped) => model.fail_over_isolated(Self::lost(stopped)),
            Self::Real(pair) => {
                pair.until_replicated().await;
                pair.promote().await;
                pair.primary.cli(&["CLIENT", "KILL", "TYPE", "normal"]).await;
            }
        }
    }

    /// Promotes the replica and makes the old primary its replica.
    pub(crate) async fn switch_over(&self) {
        match self {
            Self::Model(model, _) => model.switch_over(),
            Self::Real(pair) => {
                pair.until_replicated().await;
                pair.promote().await;
                let port = pair.replica.port().to_string();
                pair.primary.cli(&["REPLICAOF", "127.0.0.1", &port]).await;
                until_linked(&pair.primary).await;
            }
        }
    }
}

#[test]
fn a_promoted_replica_has_all_keys_it_received_and_no_scripts() {
    let seen = compare::<Pair>(async |pair, log| {
        let old = log.connected(&pair.redis()).await;
        let mut subscription = log.subscribed(&pair.redis()).await;
        log.run(&old, &[take("a", 4), lock("l", "me"), lock("m", "me"), release("m", "me")]).await;
        log.receive(&mut subscription, 1).await;
        pair.fail_over().await;
        log.receive(&mut subscription, 1).await;
        log.check(&mut subscription).await;
        log.run(&old, &[take("a", 1)]).await;
        let new = log.connected(&pair.redis()).await;
        log.send(&new, ScriptForm::Digest, &[take("a", 1), peek("a")]).await;
        log.run(&new, &[take("a", 1), peek("a"), lock("l", "other"), lock("l", "me"), lock("m", "other")]).await;
        let mut subscription = log.subscribed(&pair.redis()).await;
        log.run(&new, &push("after")).await;
        log.receive(&mut subscription, 1).await;
        log.run(&old, &[peek("a")]).await;
    });
    assert!(seen.iter().any(|step| step.ends_with("unknown script and unknown script")), "{seen:?}");
}

#[test]
fn writes_that_the_replica_did_not_receive_are_lost_by_its_promotion() {
    compare::<Pair>(async |pair, log| {
        let old = log.connected(&pair.redis()).await;
        log.run(&old, &[take("a", 2), take("b", 2), lock("l", "me"), lock("m", "me")]).await;
        pair.stop_replication().await;
        log.run(&old, &[take("a", 5), take("c", 5), release("l", "me"), lock("n", "me")]).await;
        log.run(&old, &[peek("a"), peek("b"), peek("c"), lock("l", "other")]).await;
        pair.fail_over().await;
        log.run(&old, &[peek("a")]).await;
        let new = log.connected(&pair.redis()).await;
        log.run(&new, &[peek("a"), peek("b"), peek("c")]).await;
        log.run(&new, &[lock("l", "other"), lock("m", "me"), lock("n", "other")]).await;
    });
}

#[test]
fn a_flushall_that_the_replica_did_not_receive_is_undone_by_its_promotion() {
    compare::<Pair>(async |pair, log| {
        let old = log.connected(&pair.redis()).await;
        log.run(&old, &[take("a", 2), lock("l", "me")]).await;
        pair.stop_replication().await;
        pair.flush_all().await;
        log.run(&old, &[take("a", 9), lock("l", "other")]).await;
        pair.fail_over().await;
        let new = log.connected(&pair.redis()).await;
        log.run(&new, &[peek("a"), lock("l", "other")]).await;
    });
}

#[test]
fn subscribers_of_an_isolated_primary_stay_and_receive_nothing_of_the_promoted_one() {
    compare::<Pair>(async |pair, log| {
        let old = log.connected(&pair.redis()).await;
        let mut isolated = log.subscribed(&pair.redis()).await;
        log.run(&old, &[take("a", 4)]).await;
        log.run(&old, &push("one")).await;
        log.receive(&mut isolated, 1).await;
        pair.fail_over_isolated().await;
        log.run(&old, &[take("a", 1)]).await;
        let new = log.connected(&pair.redis()).await;
        let mut subscription = log.subscribed(&pair.redis()).await;
        log.run(&new, &[peek("a")]).await;
        log.run(&new, &push("two")).await;
        pair.publish("three").await;
        log.receive(&mut subscription, 2).await;
        log.check(&mut isolated).await;
        log.receive_nothing(&mut isolated).await;
    });
}

#[test]
fn a_demoted_primary_keeps_its_connections_reads_and_rejects_writes() {
    let seen = compare::<Pair>(async |pair, log| {
        let old = log.connected(&pair.redis()).await;
        let mut kept = log.subscribed(&pair.redis()).await;
        log.run(&old, &[take("a", 4), peek("a"), lock("l", "me")]).await;
        pair.switch_over().await;
        // It has its scripts and replicates the keys.
        log.send(&old, ScriptForm::Digest, &[peek("a"), take("a", 1), lock("l", "other"), lock("l", "me")]).await;
        log.run(&old, &[take("full", 1), take("a", 10), peek("full")]).await;
        let heartbeat = ["ph2:{m}".to_owned(), "ph2:{m}:g".to_owned()];
        let keys: Vec<&str> = heartbeat.iter().map(String::as_str).collect();
        log.run(&old, &[script(&lua::MEMBERSHIP_HEARTBEAT, ZERO, &keys, &["1", "3500000", "token", "0"])]).await;
        log.run(&old, &[script(&lua::PROBE, ZERO, &[&key("p")], &["60000000"])]).await;
        let new = log.connected(&pair.redis()).await;
        log.send(&new, ScriptForm::Digest, &[take("a", 1)]).await;
        log.run(&new, &[take("a", 1), release("l", "me"), peek("a")]).await;
        log.receive(&mut kept, 1).await; // a replica passes on what is published on its primary
        log.run_until_changed(&old, peek("a"), "21600000000").await;
        log.check(&mut kept).await;
        log.run(&old, &[release("l", "me"), take("a", 1)]).await;
        pair.publish("end").await;
        log.receive(&mut kept, 1).await;
    });
    assert!(seen.iter().any(|step| step.contains("failed: READONLY")), "{seen:?}");
}

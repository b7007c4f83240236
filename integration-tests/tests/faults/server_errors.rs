//! Error replies of a server that cannot serve: one is enough for an outage, and its code is the reason.

use std::future::Future;
use std::time::Duration;

use phalanx::Source;
use phalanx::store::StoreMode;
use phalanx_integration_tests::replica::{Command, LocalReplica, LoggedKind, Moment, Report, Setup};
use phalanx_testkit::server::{AclServer, Options, Proxy, RedisProcess};

use crate::harness::{RECOVERY, SECOND, WAIT_TIMEOUT, assert_one_outage, callers, plenty, replica};

/// Injects a fault under load, ends it, and checks the outage. Returns the report and the time to recover.
async fn inject_and_recover(
    replica: &mut LocalReplica,
    reason: &str,
    inject: impl Future<Output = ()>,
    recover: impl Future<Output = ()>,
) -> (Report, Duration) {
    replica.start(callers());
    replica.until(WAIT_TIMEOUT, "Redis decides", |seen| seen.tally.admitted_by(Source::Fleet) > 20).await;
    inject.await;
    replica.until(WAIT_TIMEOUT, "the outage is emitted", |seen| !seen.outages().is_empty()).await;
    assert_eq!(replica.module().store_mode(), Some(StoreMode::Degraded));
    let degraded = replica.report().tally.decided_by(Source::Degraded);
    replica
        .until(WAIT_TIMEOUT, "decisions are degraded", |seen| seen.tally.decided_by(Source::Degraded) > degraded + 50)
        .await;
    recover.await;
    let ended = Moment::now();
    replica.until(WAIT_TIMEOUT, "the store recovers", |seen| seen.recoveries() == 1).await;
    let fleet = replica.report().tally.admitted_by(Source::Fleet);
    replica.until(WAIT_TIMEOUT, "Redis decides", |seen| seen.tally.admitted_by(Source::Fleet) > fleet + 20).await;
    let seen = replica.execute(Command::Stop).await;
    let back = seen.moments(|kind| matches!(kind, LoggedKind::Recovered { .. }))[0].since(ended);
    println!("{reason}: recovered {back:?} after the end of the fault; {:?}", seen.tally.admitted);
    assert_one_outage(&seen, reason);
    (seen, back)
}

/// Injects and ends a fault by server commands.
async fn set_and_reset(reason: &str, redis: &RedisProcess, inject: &[&str], recover: &[&str]) {
    let mut replica = replica(&Setup::new(redis.url()).policy(plenty()).generous_budget()).await;
    let run = |words| async move {
        redis.cli(words).await;
    };
    let (_, back) = inject_and_recover(&mut replica, reason, run(inject), run(recover)).await;
    assert!(back <= RECOVERY, "{back:?}");
}

#[tokio::test]
async fn out_of_memory() {
    let redis = RedisProcess::start().await;
    let set = |bytes| ["CONFIG", "SET", "maxmemory", bytes];
    set_and_reset("OOM", &redis, &set("1"), &set("0")).await;
}

#[tokio::test]
async fn too_few_replicas_to_write() {
    let redis = RedisProcess::start().await;
    let set = |count| ["CONFIG", "SET", "min-replicas-to-write", count];
    set_and_reset("NOREPLICAS", &redis, &set("1"), &set("0")).await;
}

#[tokio::test]
async fn failed_background_save() {
    let redis = RedisProcess::with(Options::new().set("save", &["3600", "1"])).await;
    let mut replica = replica(&Setup::new(redis.url()).policy(plenty()).generous_budget()).await;
    let inject = async {
        // Redis saves by renaming onto the file, which fails if a directory has that name, even for root.
        std::fs::create_dir_all(redis.directory().join("dump.rdb/full")).unwrap();
        redis.cli(&["BGSAVE"]).await;
        redis.until(&["INFO", "persistence"], |info| info.contains("rdb_last_bgsave_status:err")).await;
    };
    let recover = async {
        std::fs::remove_dir_all(redis.directory().join("dump.rdb")).unwrap();
        redis.cli(&["BGSAVE"]).await;
        redis.until(&["INFO", "persistence"], |info| info.contains("rdb_last_bgsave_status:ok")).await;
    };
    let (_, back) = inject_and_recover(&mut replica, "MISCONF", inject, recover).await;
    assert!(back <= RECOVERY, "{back:?}");
}

#[tokio::test]
async fn an_endless_script_of_another_client() {
    // The name of `busy-reply-threshold` before Redis 7, which every engine still knows.
    let redis = RedisProcess::with(Options::new().set("lua-time-limit", &["1"])).await;
    let mut replica = replica(&Setup::new(redis.url()).policy(plenty()).generous_budget()).await;
    let url = redis.url();
    let inject = async {
        let script = async move {
            let _ = phalanx_testkit::server::redis_cli::redis_command(&url, &["EVAL", "while true do end", "0"]).await;
        };
        tokio::spawn(script);
    };
    let recover = async {
        redis.cli(&["SCRIPT", "KILL"]).await;
    };
    let (_, back) = inject_and_recover(&mut replica, "BUSY", inject, recover).await;
    assert!(back <= RECOVERY, "{back:?}");
}

#[tokio::test]
async fn a_server_that_is_loading_its_data() {
    let redis = RedisProcess::with(Options::new().set("loading-process-events-interval-bytes", &["1024"])).await;
    redis.cli(&["DEBUG", "POPULATE", "2000", "foreign", "100"]).await;
    redis.cli(&["CONFIG", "SET", "key-load-delay", "400"]).await;
    let mut replica = replica(&Setup::new(redis.url()).policy(plenty()).generous_budget()).await;
    let url = redis.url();
    let inject = async {
        tokio::spawn(
            async move { phalanx_testkit::server::redis_cli::redis_command(&url, &["DEBUG", "RELOAD"]).await },
        );
    };
    let recover = async {
        redis.until(&["PING"], |answer| answer == "PONG").await;
    };
    let (_, back) = inject_and_recover(&mut replica, "LOADING", inject, recover).await;
    assert!(back <= RECOVERY, "{back:?}");
}

#[tokio::test]
async fn a_replica_whose_master_is_gone() {
    let redis = RedisProcess::with(Options::new().set("replica-serve-stale-data", &["no"])).await;
    let mut replica = replica(&Setup::new(redis.url()).policy(plenty()).generous_budget()).await;
    let inject = async {
        redis.cli(&["REPLICAOF", "127.0.0.1", "1"]).await;
    };
    let recover = async {
        redis.cli(&["REPLICAOF", "NO", "ONE"]).await;
    };
    let (_, back) = inject_and_recover(&mut replica, "MASTERDOWN", inject, recover).await;
    assert!(back <= RECOVERY, "{back:?}");
}

#[tokio::test]
async fn a_permission_revoked_at_run_time() {
    let line = "phalanx on >secret ~* &* +@all";
    for revoked in ["-evalsha", "-set"] {
        let redis = AclServer::start(line).await;
        let mut replica = replica(&Setup::new(redis.url()).policy(plenty()).generous_budget()).await;
        let (granted, redis) = (revoked.replace('-', "+"), &redis);
        let set_rule = |rule: String| async move {
            redis.server().cli(&["ACL", "SETUSER", "phalanx", &rule]).await;
        };
        inject_and_recover(&mut replica, "acl", set_rule(revoked.to_owned()), set_rule(granted)).await;
    }
}

#[tokio::test]
async fn a_master_that_became_a_replica_and_is_a_master_again() {
    let (redis, other) = (RedisProcess::start().await, RedisProcess::start().await);
    let mut replica = replica(&Setup::new(redis.url()).policy(plenty()).generous_budget()).await;
    let port = other.port().to_string();
    let inject = async {
        redis.cli(&["REPLICAOF", "127.0.0.1", &port]).await;
    };
    let recover = async {
        redis.cli(&["REPLICAOF", "NO", "ONE"]).await;
    };
    let (_, back) = inject_and_recover(&mut replica, "READONLY", inject, recover).await;
    assert!(back <= RECOVERY, "{back:?}");
}

#[tokio::test]
async fn a_failover_that_moves_the_address() {
    let (old, new) = (RedisProcess::start().await, RedisProcess::start().await);
    let proxy = Proxy::start(old.address()).await;
    new.cli(&["REPLICAOF", "127.0.0.1", &old.port().to_string()]).await;
    new.until(&["INFO", "replication"], |info| info.contains("master_link_status:up")).await;
    let mut replica = replica(&Setup::new(proxy.url()).policy(plenty()).generous_budget()).await;
    // Redis pauses writes during a failover, so the load starts afterwards: the test is about the state after it.
    old.cli(&["FAILOVER"]).await;
    old.until(&["INFO", "replication"], |info| info.contains("role:slave")).await;
    replica.start(callers());
    replica.until(WAIT_TIMEOUT, "the outage is emitted", |seen| !seen.outages().is_empty()).await;
    proxy.retarget(new.address());
    let moved = Moment::now();
    replica.until(WAIT_TIMEOUT, "the store recovers", |seen| seen.recoveries() == 1).await;
    let seen = replica.execute(Command::Stop).await;
    let back = seen.moments(|kind| matches!(kind, LoggedKind::Recovered { .. }))[0].since(moved);
    println!("recovered {back:?} after the address led to the new master");
    assert_one_outage(&seen, "READONLY");
    assert!(back <= SECOND, "{back:?}");
    assert_eq!(seen.moments(|kind| *kind == LoggedKind::StateLost), [], "the new master has what the old one had");
}

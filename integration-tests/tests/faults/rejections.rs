//! A server that answers that it cannot serve: one word is enough, and it is the reason that is told.

use std::future::Future;
use std::time::Duration;

use phalanx::Source;
use phalanx::store::StoreMode;
use phalanx_integration_tests::replica::{Heard, Moment, Order, Report, Setup, Worker};
use phalanx_integration_tests::server::{Options, Proxy, Restricted, Spawned};

use crate::kit::{PATIENCE, RECOVERY, SECOND, assert_one_outage, callers, plenty, worker};

/// Hurts a server under callers, heals it, and looks at what they saw. How long it took to notice each.
async fn hurt_and_heal(
    worker: &mut Worker,
    reason: &str,
    hurt: impl Future<Output = ()>,
    heal: impl Future<Output = ()>,
) -> (Report, Duration) {
    worker.start(callers());
    worker.until(PATIENCE, "all is well", |seen| seen.tally.admitted_by(Source::Fleet) > 20).await;
    hurt.await;
    worker.until(PATIENCE, "the outage is told", |seen| !seen.outages().is_empty()).await;
    assert_eq!(worker.module().store_mode(), Some(StoreMode::Degraded));
    let alone = worker.look().tally.decided_by(Source::Degraded);
    worker
        .until(PATIENCE, "calls are decided alone", |seen| seen.tally.decided_by(Source::Degraded) > alone + 50)
        .await;
    heal.await;
    let healed = Moment::now();
    worker.until(PATIENCE, "Redis is back", |seen| seen.recoveries() == 1).await;
    let fleet = worker.look().tally.admitted_by(Source::Fleet);
    worker.until(PATIENCE, "Redis decides", |seen| seen.tally.admitted_by(Source::Fleet) > fleet + 20).await;
    let seen = worker.obey(Order::Enough).await;
    let back = seen.moments(|what| matches!(what, Heard::Recovered { .. }))[0].since(healed);
    println!("{reason}: decided again {back:?} after it was well; {:?}", seen.tally.admitted);
    assert_one_outage(&seen, reason);
    (seen, back)
}

/// The same by settings of the server that are put right again.
async fn set_and_reset(reason: &str, redis: &Spawned, hurt: &[&str], heal: &[&str]) {
    let mut worker = worker(&Setup::new(redis.url()).policy(plenty()).patient()).await;
    let say = |words| async move {
        redis.cli(words).await;
    };
    let (_, back) = hurt_and_heal(&mut worker, reason, say(hurt), say(heal)).await;
    assert!(back <= RECOVERY, "{back:?}");
}

#[tokio::test]
async fn out_of_memory() {
    let redis = Spawned::start().await;
    let set = |bytes| ["CONFIG", "SET", "maxmemory", bytes];
    set_and_reset("OOM", &redis, &set("1"), &set("0")).await;
}

#[tokio::test]
async fn too_few_replicas_to_write() {
    let redis = Spawned::start().await;
    let set = |count| ["CONFIG", "SET", "min-replicas-to-write", count];
    set_and_reset("NOREPLICAS", &redis, &set("1"), &set("0")).await;
}

#[tokio::test]
async fn a_server_that_could_not_save() {
    let redis = Spawned::with(Options::new().set("save", &["3600", "1"])).await;
    let mut worker = worker(&Setup::new(redis.url()).policy(plenty()).patient()).await;
    let hurt = async {
        // It saves by renaming onto the file, which a directory of that name forbids, to root as well.
        std::fs::create_dir_all(redis.directory().join("dump.rdb/full")).unwrap();
        redis.cli(&["BGSAVE"]).await;
        redis.until(&["INFO", "persistence"], |info| info.contains("rdb_last_bgsave_status:err")).await;
    };
    let heal = async {
        std::fs::remove_dir_all(redis.directory().join("dump.rdb")).unwrap();
        redis.cli(&["BGSAVE"]).await;
        redis.until(&["INFO", "persistence"], |info| info.contains("rdb_last_bgsave_status:ok")).await;
    };
    let (_, back) = hurt_and_heal(&mut worker, "MISCONF", hurt, heal).await;
    assert!(back <= RECOVERY, "{back:?}");
}

#[tokio::test]
async fn a_foreign_script_that_does_not_end() {
    let redis = Spawned::with(Options::new().set("busy-reply-threshold", &["1"])).await;
    let mut worker = worker(&Setup::new(redis.url()).policy(plenty()).patient()).await;
    let url = redis.url();
    let hurt = async {
        let script = async move {
            let _ = phalanx_integration_tests::server::ask::ask(&url, &["EVAL", "while true do end", "0"]).await;
        };
        tokio::spawn(script);
    };
    let heal = async {
        redis.cli(&["SCRIPT", "KILL"]).await;
    };
    let (_, back) = hurt_and_heal(&mut worker, "BUSY", hurt, heal).await;
    assert!(back <= RECOVERY, "{back:?}");
}

#[tokio::test]
async fn a_server_that_loads_its_data() {
    let redis = Spawned::with(Options::new().set("loading-process-events-interval-bytes", &["1024"])).await;
    redis.cli(&["DEBUG", "POPULATE", "2000", "foreign", "100"]).await;
    redis.cli(&["CONFIG", "SET", "key-load-delay", "400"]).await;
    let mut worker = worker(&Setup::new(redis.url()).policy(plenty()).patient()).await;
    let url = redis.url();
    let hurt = async {
        tokio::spawn(async move { phalanx_integration_tests::server::ask::ask(&url, &["DEBUG", "RELOAD"]).await });
    };
    let heal = async {
        redis.until(&["PING"], |answer| answer == "PONG").await;
    };
    let (_, back) = hurt_and_heal(&mut worker, "LOADING", hurt, heal).await;
    assert!(back <= RECOVERY, "{back:?}");
}

#[tokio::test]
async fn a_replica_whose_master_is_gone() {
    let redis = Spawned::with(Options::new().set("replica-serve-stale-data", &["no"])).await;
    let mut worker = worker(&Setup::new(redis.url()).policy(plenty()).patient()).await;
    let hurt = async {
        redis.cli(&["REPLICAOF", "127.0.0.1", "1"]).await;
    };
    let heal = async {
        redis.cli(&["REPLICAOF", "NO", "ONE"]).await;
    };
    let (_, back) = hurt_and_heal(&mut worker, "MASTERDOWN", hurt, heal).await;
    assert!(back <= RECOVERY, "{back:?}");
}

#[tokio::test]
async fn a_rule_that_is_revoked_at_run_time() {
    let line = "phalanx on >secret ~* &* +@all";
    for revoked in ["-evalsha", "-set"] {
        let redis = Restricted::start(line).await;
        let mut worker = worker(&Setup::new(redis.url()).policy(plenty()).patient()).await;
        let (granted, redis) = (revoked.replace('-', "+"), &redis);
        let rule = |word: String| async move {
            redis.server().cli(&["ACL", "SETUSER", "phalanx", &word]).await;
        };
        hurt_and_heal(&mut worker, "NOPERM", rule(revoked.to_owned()), rule(granted)).await;
    }
}

#[tokio::test]
async fn a_master_that_became_a_replica_and_is_a_master_again() {
    let (redis, other) = (Spawned::start().await, Spawned::start().await);
    let mut worker = worker(&Setup::new(redis.url()).policy(plenty()).patient()).await;
    let port = other.port().to_string();
    let hurt = async {
        redis.cli(&["REPLICAOF", "127.0.0.1", &port]).await;
    };
    let heal = async {
        redis.cli(&["REPLICAOF", "NO", "ONE"]).await;
    };
    let (_, back) = hurt_and_heal(&mut worker, "READONLY", hurt, heal).await;
    assert!(back <= RECOVERY, "{back:?}");
}

#[tokio::test]
async fn a_failover_that_moves_the_address() {
    let (old, new) = (Spawned::start().await, Spawned::start().await);
    let proxy = Proxy::start(old.address()).await;
    new.cli(&["REPLICAOF", "127.0.0.1", &old.port().to_string()]).await;
    new.until(&["INFO", "replication"], |info| info.contains("master_link_status:up")).await;
    let mut worker = worker(&Setup::new(proxy.url()).policy(plenty()).patient()).await;
    // Writers are held up while it goes on, so nobody writes meanwhile: what they find afterwards is the subject.
    old.cli(&["FAILOVER"]).await;
    old.until(&["INFO", "replication"], |info| info.contains("role:slave")).await;
    worker.start(callers());
    worker.until(PATIENCE, "the outage is told", |seen| !seen.outages().is_empty()).await;
    proxy.retarget(new.address());
    let moved = Moment::now();
    worker.until(PATIENCE, "Redis is back", |seen| seen.recoveries() == 1).await;
    let seen = worker.obey(Order::Enough).await;
    let back = seen.moments(|what| matches!(what, Heard::Recovered { .. }))[0].since(moved);
    println!("decided again {back:?} after the address led to the new master");
    assert_one_outage(&seen, "READONLY");
    assert!(back <= SECOND, "{back:?}");
    assert_eq!(seen.moments(|what| *what == Heard::StateLost), [], "the new master has what the old one had");
}

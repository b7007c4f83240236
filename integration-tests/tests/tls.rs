//! The fleet over TLS: with the right authority it works, with any other it is degraded; nothing is sent in plain text.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

#[path = "cluster/harness.rs"]
mod harness;

use std::sync::Arc;
use std::time::Duration;

use phalanx::Source;
use phalanx::store::{RedisConnection, StoreMode};
use phalanx_store_redis::RedisStore;
use phalanx_testkit::server::{Options, RedisProcess, TlsServer};
use redis::Client;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::harness::{BUDGET, EventLog, LoggedEvent, SECOND, SLACK};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_right_authority_decisions_and_pushes_work() {
    let redis = TlsServer::start().await;
    let replica = || harness::replica(redis.client(), &EventLog::default()).sync_interval(60 * SECOND).build().unwrap();
    let (one, other) = (replica(), replica());
    let (here, there) = (one.pipeline("stack", "route").unwrap(), other.pipeline("stack", "route").unwrap());
    for pipeline in [&here, &there] {
        harness::until_fleet(pipeline).await;
    }
    redis.server().until(&["PUBSUB", "NUMSUB", "ph2:test.default:c"], |reply| reply.ends_with('2')).await;
    harness::fail(&here).await;
    let took = harness::until_rejected(&there).await;
    assert!(took < SLACK, "{took:?}: not pushed, as the sync interval is a minute");
}

/// Asserts that every decision is degraded, the reason is emitted once, and no script reached the server.
async fn assert_degraded(client: Client, server: &RedisProcess) {
    let log = EventLog::default();
    let module = harness::replica(client, &log).build().unwrap();
    let pipeline = module.pipeline("stack", "route").unwrap();
    for _ in 0..20 {
        let (decision, took) = harness::call(&pipeline).await;
        assert_eq!(decision.source, Source::Degraded);
        assert!(took < 2 * BUDGET + SLACK, "{took:?}");
    }
    log.until_degraded(1).await;
    assert_eq!(
        (log.read(), module.store_mode()),
        (vec![LoggedEvent::Degraded("tls".to_owned())], Some(StoreMode::Degraded))
    );
    let commands = server.cli(&["INFO", "commandstats"]).await;
    assert!(!commands.contains("eval"), "{commands}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_another_authority_or_an_expired_certificate_every_decision_is_degraded() {
    let (redis, other, expired) = tokio::join!(TlsServer::start(), TlsServer::start(), TlsServer::expired());
    tokio::join!(
        assert_degraded(redis.client_that_trusts(other.ca_pem()), redis.server()),
        assert_degraded(expired.client(), expired.server()),
    );
}

/// Listens in place of a server and records the first bytes of each connection.
async fn record_connections(connections: usize) -> (u16, Arc<Mutex<Vec<Vec<u8>>>>, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, received) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Vec::new())));
    let all = received.clone();
    let listening = tokio::spawn(async move {
        for _ in 0..connections {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut bytes = vec![0; 4_096];
            let length = client.read(&mut bytes).await.unwrap();
            bytes.truncate(length);
            all.lock().await.push(bytes);
        }
    });
    (port, received, listening)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_ever_sent_in_plain_text() {
    let _provider = TlsServer::start().await; // installs the one crypto provider
    let (port, received, listening) = record_connections(6).await;
    let log = EventLog::default();
    let client = Client::open(format!("rediss://phalanx:hunter2@localhost:{port}")).unwrap();
    let module = harness::replica(client, &log).build().unwrap();
    let pipeline = module.pipeline("stack", "route").unwrap();
    assert_eq!(harness::call(&pipeline).await.0.source, Source::Degraded);
    timeout(10 * SECOND, listening).await.unwrap().unwrap();
    for bytes in received.lock().await.iter() {
        assert_eq!(bytes.get(..2), Some(&[0x16, 0x03][..]), "a TLS handshake, and nothing else: {bytes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_debug_output_contains_a_password() {
    let server = RedisProcess::with(Options::new().password("hunter2")).await;
    let client = || Client::open(server.url()).unwrap();
    assert!(server.url().contains("hunter2"));
    let pool = || deadpool_redis::Config::from_url(server.url()).create_pool(None).unwrap();
    let push = RedisConnection::from(client()).with_push(client());
    let cluster = || redis::cluster::ClusterClient::new(vec![server.url()]).unwrap();
    let sources = [client().into(), RedisConnection::from(pool()), cluster().into(), push];
    for source in sources {
        let log = EventLog::default();
        let mut shown = format!("{source:?}");
        let store = RedisStore::over(source.clone());
        shown += &format!("{store:?}");
        shown += &format!("{:?}", store.build().unwrap());
        let module = harness::replica(source, &log);
        shown += &format!("{module:?}");
        let module = module.build().unwrap();
        let pipeline = module.pipeline("stack", "route").unwrap();
        let _ = timeout(Duration::from_secs(1), harness::call(&pipeline)).await;
        shown += &format!("{module:?}{pipeline:?}{:?}{:?}", module.redis_store(), log.read());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

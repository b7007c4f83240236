//! The fleet over TLS: with the right authority it works, with any other it decides alone; nothing goes out in the open.

#![allow(clippy::unwrap_used)] // a panic is how a test says no, in its helpers too

#[path = "cluster/harness.rs"]
mod harness;

use std::sync::Arc;
use std::time::Duration;

use phalanx::Source;
use phalanx::store::{RedisConnection, StoreMode};
use phalanx_integration_tests::server::{Options, RedisProcess, TlsServer};
use phalanx_store_redis::RedisStore;
use redis::Client;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::harness::{BUDGET, Log, SECOND, SLACK, Told};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_right_authority_all_is_as_without_tls() {
    let redis = TlsServer::start().await;
    let replica = || harness::replica(redis.client(), &Log::default()).sync_interval(60 * SECOND).build().unwrap();
    let (one, other) = (replica(), replica());
    let (here, there) = (one.pipeline("stack", "route").unwrap(), other.pipeline("stack", "route").unwrap());
    for pipeline in [&here, &there] {
        harness::until_fleet(pipeline).await;
    }
    redis.server().until(&["PUBSUB", "NUMSUB", "ph1:default:c"], |said| said.ends_with('2')).await;
    harness::fail(&here).await;
    let took = harness::until_rejected(&there).await;
    assert!(took < SLACK, "{took:?}, and nobody asks but once a minute");
}

/// Every call is decided here, the reason is told once, and no script ever reached the server.
async fn decides_alone(client: Client, server: &RedisProcess) {
    let log = Log::default();
    let module = harness::replica(client, &log).build().unwrap();
    let pipeline = module.pipeline("stack", "route").unwrap();
    for _ in 0..20 {
        let (decision, took) = harness::call(&pipeline).await;
        assert_eq!(decision.source, Source::Degraded);
        assert!(took < 2 * BUDGET + SLACK, "{took:?}");
    }
    log.until_degraded(1).await;
    assert_eq!((log.read(), module.store_mode()), (vec![Told::Degraded("TLS".to_owned())], Some(StoreMode::Degraded)));
    let commands = server.cli(&["INFO", "commandstats"]).await;
    assert!(!commands.contains("eval"), "{commands}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_another_authority_or_an_expired_certificate_every_decision_is_local() {
    let (redis, other, expired) = tokio::join!(TlsServer::start(), TlsServer::start(), TlsServer::expired());
    tokio::join!(
        decides_alone(redis.client_that_trusts(other.ca_pem()), redis.server()),
        decides_alone(expired.client(), expired.server()),
    );
}

/// What a stranger in the server's place gets to see of everybody who connects.
async fn overheard(connections: usize) -> (u16, Arc<Mutex<Vec<Vec<u8>>>>, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, heard) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Vec::new())));
    let all = heard.clone();
    let listening = tokio::spawn(async move {
        for _ in 0..connections {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut bytes = vec![0; 4_096];
            let length = client.read(&mut bytes).await.unwrap();
            bytes.truncate(length);
            all.lock().await.push(bytes);
        }
    });
    (port, heard, listening)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_ever_sent_in_plain_text() {
    let _provider = TlsServer::start().await; // installs the one crypto provider
    let (port, heard, listening) = overheard(6).await;
    let log = Log::default();
    let client = Client::open(format!("rediss://phalanx:hunter2@localhost:{port}")).unwrap();
    let module = harness::replica(client, &log).build().unwrap();
    let pipeline = module.pipeline("stack", "route").unwrap();
    assert_eq!(harness::call(&pipeline).await.0.source, Source::Degraded);
    timeout(10 * SECOND, listening).await.unwrap().unwrap();
    for bytes in heard.lock().await.iter() {
        assert_eq!(bytes.get(..2), Some(&[0x16, 0x03][..]), "a TLS handshake, and nothing else: {bytes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_password_is_shown() {
    let server = RedisProcess::with(Options::new().password("hunter2")).await;
    let client = || Client::open(server.url()).unwrap();
    assert!(server.url().contains("hunter2"));
    let pool = || deadpool_redis::Config::from_url(server.url()).create_pool(None).unwrap();
    let push = RedisConnection::from(client()).with_push(client());
    let cluster = || redis::cluster::ClusterClient::new(vec![server.url()]).unwrap();
    let sources = [client().into(), RedisConnection::from(pool()), cluster().into(), push];
    for source in sources {
        let log = Log::default();
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

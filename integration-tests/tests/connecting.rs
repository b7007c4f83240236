//! Why connecting to Redis fails, each cause with its own reason; and to which server a process is connected.

#![allow(clippy::unwrap_used)] // a failed expectation panics, in helpers too

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use phalanx::{Event, EventKind, Kind, Policy, RateLimitSpec, ResilienceModule};
use phalanx_core::event::Observer;
use phalanx_testkit::server::tls::install_crypto_provider;
use phalanx_testkit::server::{AclServer, Cluster, Engine, Options, RedisProcess};
use redis::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// The events about the store, but its round trips, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Observer for Log {
    fn on_event(&self, event: &Event<'_>) {
        let text = match event.kind {
            EventKind::StoreDegraded { reason } => format!("degraded {reason}"),
            EventKind::StoreConnectFailed { reason } => format!("connect {reason}"),
            EventKind::StoreConnected { server, version } => format!("connected {server} {}", version.unwrap_or("-")),
            EventKind::PushLost { reason } => format!("push lost {reason}"),
            EventKind::PushRestored => "push restored".to_owned(),
            _ => return,
        };
        self.0.lock().push(text);
    }
}

impl Log {
    fn read(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    /// Waits for a line.
    async fn until(&self, wanted: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            if let Some(line) = self.read().into_iter().find(|line| wanted(line)) {
                return line;
            }
            assert!(start.elapsed() < WAIT_TIMEOUT, "{:?}", self.read());
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A module whose calls need Redis. It is dropped with its background task.
fn module(source: impl Into<phalanx::store::RedisConnection>) -> (ResilienceModule, Log) {
    let log = Log::default();
    let policy = Policy::named("p").rate_limit(RateLimitSpec::per_second(1_000_000));
    let module = ResilienceModule::with_redis(source).observer(log.clone()).policy(policy).build().unwrap();
    (module, log)
}

async fn call(module: &ResilienceModule) {
    let _ = module.run("p", "r", || async { Ok::<_, Kind>(()) }).await;
}

/// Makes calls until this cause is emitted, and asserts that no other one is. Where connecting takes longer than a call waits,
/// the outage begins with `timeout` and the cause follows.
async fn assert_cause(url: &str, cause: &str) {
    let (module, log) = module(Client::open(url).unwrap());
    let calls = async {
        loop {
            call(&module).await;
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = calls => {}
        _ = log.until(|line| line.ends_with(&format!(" {cause}"))) => {}
    }
    let expected = [format!("degraded {cause}"), format!("connect {cause}"), "degraded timeout".to_owned()];
    assert!(log.read().iter().all(|line| expected.contains(line)), "{url}: {:?}", log.read());
}

/// A server that replies to every connection with this text, whatever it is sent.
async fn server_that_says(text: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4_096];
                while client.read(&mut buffer).await.is_ok_and(|length| length > 0) {
                    if client.write_all(text).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_port_is_refused() {
    let redis = RedisProcess::start().await;
    redis.kill();
    assert_cause(&redis.url(), "refused").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_host_name_is_dns() {
    // Reserved for this purpose (RFC 2606).
    assert_cause("redis://redis.invalid", "dns").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_speaks_http_is_not_redis() {
    let http = server_that_says(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").await;
    assert_cause(&format!("redis://{http}"), "not_redis").await;
    assert_cause(&format!("redis://:secret@{http}"), "not_redis").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_and_a_missing_one_are_auth() {
    let redis = RedisProcess::with(Options::new().password("hunter2")).await;
    assert_cause(&format!("redis://:wrong@{}", redis.address()), "auth").await;
    assert_cause(&format!("redis://nobody:hunter2@{}", redis.address()), "auth").await;
    // Not reported as connected either.
    assert_cause(&format!("redis://{}", redis.address()), "auth").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_permission_is_acl() {
    let redis = AclServer::start("phalanx on >secret ~* &* -@all +ping").await;
    let (module, log) = module(Client::open(redis.url()).unwrap());
    call(&module).await;
    log.until(|line| line == "degraded acl").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_to_a_port_that_speaks_plain_redis_is_tls() {
    install_crypto_provider();
    let plain = server_that_says(b"-ERR unknown command\r\n").await;
    assert_cause(&format!("rediss://{}", plain.replace("127.0.0.1", "localhost")), "tls").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_tells_to_which_server_a_process_is_connected_and_no_secret() {
    let redis = RedisProcess::with(Options::new().password("hunter2")).await;
    let (module, log) = module(Client::open(redis.url()).unwrap());
    call(&module).await;
    let line = log.until(|line| line.starts_with("connected")).await;
    let engine = Engine::installed().unwrap();
    let (major, minor, patch) = engine.version();
    assert_eq!(line, format!("connected {} {} {major}.{minor}.{patch}", redis.address(), engine.name()));
    // Another connection to the same server is not news.
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        call(&module).await;
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(log.read(), [line]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_to_a_cluster_names_its_masters() {
    let cluster = Cluster::start().await;
    let (module, log) = module(redis::cluster::ClusterClient::new(cluster.urls()).unwrap());
    call(&module).await;
    let line = log.until(|line| line.starts_with("connected")).await;
    assert!(line.starts_with("connected a Cluster of 3: 127.0.0.1:"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_channels_has_no_pushes_and_decides_with_redis() {
    let redis = AclServer::start("phalanx on >secret ~* resetchannels +@all").await;
    let (module, log) = module(Client::open(redis.url()).unwrap());
    call(&module).await;
    assert_eq!(log.until(|line| line.starts_with("push")).await, "push lost acl");
    redis.server().cli(&["ACL", "SETUSER", "phalanx", "allchannels"]).await;
    log.until(|line| line == "push restored").await;
    assert!(!log.read().iter().any(|line| line.starts_with("degraded")), "{:?}", log.read());
}

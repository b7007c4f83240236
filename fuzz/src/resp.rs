//! The bytes of a connection: any stream, cut into pieces anywhere, is a reply or a failure for every caller that waits,
//! and the store decides without Redis where it has to.
//!
//! The stream goes through the client (`redis`), the classification of errors and the decoders of the store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use phalanx_core::breaker::BreakerSpec;
use phalanx_core::clock::Clock;
use phalanx_core::key::StateKey;
use phalanx_core::lock::LockStore;
use phalanx_core::rate_limit::RateLimitSpec;
use phalanx_core::store::{AcquireRequest, BreakerStore, LatencyDigestStore, RateLimitStore, Store};
use phalanx_store_redis::transport::{Boxed, Response};
use phalanx_store_redis::{Failure, Invocation, RedisOptions, RedisStore, Wire, internal};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::block_on;
use crate::input::{Input, SERVER_NOW, random};

/// Runs one input: how the stream is cut, the protocol, and the stream.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (piece, resp3) = (usize::from(input.byte()).max(1), input.flag());
    block_on(play(input.rest().to_vec(), piece, resp3));
}

async fn play(stream: Vec<u8>, piece: usize, resp3: bool) {
    let (client, server) = tokio::io::duplex(64 << 10);
    tokio::spawn(serve(server, stream, piece, resp3));
    let protocol = if resp3 { ProtocolVersion::RESP3 } else { ProtocolVersion::RESP2 };
    let info = RedisConnectionInfo::default().set_protocol(protocol).set_skip_set_lib_name();
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let Ok((connection, driver)) = MultiplexedConnection::new_with_config(&info, client, config).await else { return };
    tokio::spawn(driver);
    let store = RedisStore::over_wire(Arc::new(DuplexWire(connection)), Clock::tokio(), RedisOptions::default());
    use_everything(&store).await;
}

/// Writes the stream in pieces, whatever the client asks. RESP3 begins with a good reply to `HELLO`, so that the stream
/// reaches the store.
async fn serve(mut server: DuplexStream, stream: Vec<u8>, piece: usize, resp3: bool) {
    let mut sink = [0; 4_096];
    let hello: &[u8] = if resp3 { b"%1\r\n+proto\r\n:3\r\n" } else { b"" };
    if !hello.is_empty() && (server.read(&mut sink).await.is_err() || server.write_all(hello).await.is_err()) {
        return;
    }
    for part in stream.chunks(piece.max(stream.len() / 64)) {
        // Waits for a request before each piece, so that replies and requests alternate.
        let asked = tokio::time::timeout(Duration::from_millis(1), server.read(&mut sink)).await;
        if matches!(asked, Ok(Ok(0) | Err(_))) || server.write_all(part).await.is_err() {
            return;
        }
    }
}

/// Asks for everything once. Every call must end within its budget: time is paused, so a call that hangs would let it run.
async fn use_everything(store: &RedisStore) {
    let started = tokio::time::Instant::now();
    let (key, now) = (StateKey::new("policy", "route"), store.clock().now());
    let bucket = store.bucket(&key, &RateLimitSpec::per_second(10));
    let breaker = store.breaker(&key, &BreakerSpec::consecutive_failures(1));
    let digest = store.digest(&key, Duration::from_secs(10));
    let request = AcquireRequest { cost: 1, max_wait: Duration::ZERO };
    let (first, second) = tokio::join!(store.acquire(&bucket, now, request), store.acquire(&bucket, now, request));
    assert!(first.left.permits() <= 10 && second.left.permits() <= 10, "{first:?} {second:?}");
    store.admit(&breaker, now).await;
    store.inspect(&breaker, now).await;
    assert!(store.peek(&bucket, now).await.permits() <= 10);
    store.observe(&digest, now, Duration::from_millis(1));
    store.settle().await;
    store.quantile_since(&digest, now, now, 0.5);
    let locks = store.locks();
    // Locks fail closed: what is not a reply of the script is an error.
    let _ = locks.acquire("lock", "owner", Duration::from_secs(1)).await;
    let _ = store.idempotency().claim("00", "00", "00", Duration::from_secs(1)).await;
    assert!(started.elapsed() <= Duration::from_secs(2), "{:?}", started.elapsed());
}

/// A wire over one connection.
struct DuplexWire(MultiplexedConnection);

impl Wire for DuplexWire {
    fn send<'a>(&'a self, calls: &'a [Invocation]) -> Boxed<'a, Result<Vec<Response>, Failure>> {
        Box::pin(async move { internal::send_scripts(self.0.clone(), calls).await })
    }
}

impl fmt::Debug for DuplexWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DuplexWire")
    }
}

/// Returns the inputs that the corpus starts with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let now = SERVER_NOW;
    let breaker = format!("*12\r\n:{now}\r\n:1\r\n:1\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n:0\r\n");
    let bucket = format!("*5\r\n:{now}\r\n:300000\r\n:0\r\n:1\r\n:1\r\n");
    let deep = "*1\r\n".repeat(200);
    let streams: [(&str, String); 18] = [
        ("good", bucket.clone() + &breaker),
        ("noscript", "-NOSCRIPT No matching script\r\n".to_owned() + &bucket),
        ("noscript-twice", "-NOSCRIPT x\r\n-NOSCRIPT x\r\n".to_owned()),
        ("loading", "-LOADING Redis is loading\r\n".to_owned()),
        ("readonly", "-READONLY You can't write against a read only replica.\r\n".to_owned()),
        ("wrapped-error", "-ERR Error running script: -OOM command not allowed\r\n".to_owned()),
        ("empty-error", "-\r\n- \r\n-X\r\n".to_owned()),
        ("moved", "-MOVED 99999 :0\r\n-ASK\r\n-MOVED\r\n".to_owned()),
        ("lowest-level", format!("*4\r\n:{now}\r\n:-9223372036854775808\r\n:0\r\n:1\r\n")),
        ("overflow", ":9223372036854775808\r\n*9223372036854775807\r\n".to_owned()),
        ("huge-array", "*2147483647\r\n:1\r\n".to_owned()),
        ("huge-bulk", "$536870913\r\nx".to_owned()),
        ("negative", "*-1\r\n$-1\r\n*-2\r\n$-2\r\n".to_owned()),
        ("deep", deep + ":1\r\n"),
        ("push", ">3\r\n+message\r\n+c\r\n$2\r\nab\r\n_\r\n#t\r\n,inf\r\n(123\r\n=7\r\ntxt:abc\r\n".to_owned()),
        ("nested-error", "*2\r\n-ERR a\r\n*1\r\n-NOSCRIPT b\r\n".to_owned()),
        ("attributes", "|1\r\n+a\r\n:1\r\n%1\r\n+k\r\n~1\r\n:1\r\n".to_owned()),
        ("cut-off", "*5\r\n:17000000".to_owned()),
    ];
    let mut seeds = Vec::new();
    for (name, stream) in streams {
        seeds.push((name.to_owned(), [&[64, 0][..], stream.as_bytes()].concat()));
        seeds.push((format!("{name}-resp3"), [&[3, 1][..], stream.as_bytes()].concat()));
    }
    seeds.extend(random(&[], 4, 64));
    seeds
}

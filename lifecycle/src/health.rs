//! Readiness and liveness over HTTP: `/readyz` and `/livez`, as axum routes or from a small listener of their own.
//!
//! Services with an axum router merge `health_routes` (feature `axum`). Workers without an HTTP server use [`serve`]:
//!
//! ```no_run
//! # async fn example(runtime: phalanx_lifecycle::Runtime) -> std::io::Result<()> {
//! let listener = tokio::net::TcpListener::bind("0.0.0.0:9000").await?;
//! tokio::spawn(phalanx_lifecycle::health::serve(runtime, listener)); // before `start`, so that startup is visible
//! # Ok(())
//! # }
//! ```
//!
//! The listener reads one request per connection: at most 1 KiB, for at most two seconds, on at most 64 connections at a
//! time. This bounds what a client of the port can cost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::runtime::Runtime;

const MAX_REQUEST_BYTES: usize = 1_024;
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_CONNECTIONS: usize = 64;
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The body of `/livez`. A draining replica is alive: an orchestrator must not kill it before its calls have ended.
const LIVE: &str = r#"{"status":"live"}"#;

/// Serves `/readyz` and `/livez` until the runtime has stopped.
pub async fn serve(runtime: Runtime, listener: TcpListener) {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let accepting = async {
        loop {
            let Ok(permit) = connections.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                sleep(ACCEPT_RETRY_DELAY).await; // out of file descriptors, which may pass
                continue;
            };
            let runtime = runtime.clone();
            tokio::spawn(async move {
                let _ = timeout(CONNECTION_TIMEOUT, serve_connection(&runtime, stream)).await;
                drop(permit);
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = runtime.stopped() => {}
    }
}

async fn serve_connection(runtime: &Runtime, mut stream: TcpStream) -> io::Result<()> {
    let mut request = Vec::with_capacity(MAX_REQUEST_BYTES);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MAX_REQUEST_BYTES {
        let mut part = [0; 256];
        match stream.read(&mut part).await? {
            0 => break,
            read => request.extend_from_slice(part.get(..read).unwrap_or_default()),
        }
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let (status, body) = respond(runtime, &String::from_utf8_lossy(line));
    let reason = match status {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        _ => "Service Unavailable",
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n");
    stream.write_all(format!("{head}cache-control: no-store\r\nconnection: close\r\n\r\n{body}").as_bytes()).await?;
    stream.shutdown().await
}

/// Returns status and body for a request line.
fn respond(runtime: &Runtime, line: &str) -> (u16, String) {
    let mut parts = line.split(' ');
    let (method, target) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET" | "HEAD", "/readyz") => {
            let readiness = runtime.readiness();
            (readiness.status.http_status(), readiness.to_json())
        }
        ("GET" | "HEAD", "/livez") => (200, LIVE.to_owned()),
        ("GET" | "HEAD", _) => (404, "{}".to_owned()),
        _ => (405, "{}".to_owned()),
    }
}

/// Returns the axum routes `/readyz` and `/livez`.
///
/// `GET /readyz` answers 200 `ready`, 503 `draining` or 503 `unavailable`, with details as JSON. `GET /livez` answers
/// 200 as long as the process serves requests.
///
/// # Examples
///
/// ```
/// use axum::Router;
/// use phalanx_lifecycle::{Runtime, health_routes};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = Runtime::builder().build()?;
/// let app: Router = Router::new().merge(health_routes(&runtime));
/// assert!(app.has_routes());
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "axum")]
pub fn health_routes<S: Clone + Send + Sync + 'static>(runtime: &Runtime) -> axum::Router<S> {
    use axum::Router;
    use axum::http::{StatusCode, header};
    use axum::response::IntoResponse;
    use axum::routing::get;

    fn json(status: u16, body: String) -> impl IntoResponse {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        (status, [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body)
    }

    let runtime = runtime.clone();
    let ready = move || {
        let readiness = runtime.readiness();
        std::future::ready(json(readiness.status.http_status(), readiness.to_json()))
    };
    Router::new().route("/readyz", get(ready)).route("/livez", get(async || json(200, LIVE.to_owned())))
}

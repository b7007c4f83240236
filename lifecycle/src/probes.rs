//! `/readyz` and `/livez` for workers that have no HTTP server: a listener of a few lines, and nothing to depend on.
//!
//! ```no_run
//! # async fn example(runtime: phalanx_lifecycle::Runtime) -> std::io::Result<()> {
//! let listener = tokio::net::TcpListener::bind("0.0.0.0:9000").await?;
//! tokio::spawn(phalanx_lifecycle::probes::serve(runtime, listener)); // before the first step, until after the last
//! # Ok(())
//! # }
//! ```
//!
//! It reads one request a connection, at most a kilobyte of it and for two seconds at most, and answers at most 64 at a
//! time: whoever can reach the port cannot do more with it than ask.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::runtime::Runtime;

const MOST_BYTES: usize = 1_024;
const PATIENCE: Duration = Duration::from_secs(2);
const AT_A_TIME: usize = 64;

/// Answers until the runtime has stopped.
pub async fn serve(runtime: Runtime, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    let accepting = async {
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                sleep(PATIENCE / 20).await; // out of file descriptors: it may pass
                continue;
            };
            let runtime = runtime.clone();
            tokio::spawn(async move {
                let _ = timeout(PATIENCE, answer(&runtime, stream)).await;
                drop(place);
            });
        }
    };
    tokio::select! {
        () = accepting => {}
        () = runtime.stopped() => {}
    }
}

async fn answer(runtime: &Runtime, mut stream: TcpStream) -> io::Result<()> {
    let mut request = Vec::with_capacity(MOST_BYTES);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MOST_BYTES {
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

/// The answer to a request line.
fn respond(runtime: &Runtime, line: &str) -> (u16, String) {
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    match (method, path) {
        ("GET" | "HEAD", "/readyz") => {
            let readiness = runtime.readiness();
            (readiness.status.http(), readiness.to_json())
        }
        ("GET" | "HEAD", "/livez") => (200, LIVE.to_owned()),
        ("GET" | "HEAD", _) => (404, "{}".to_owned()),
        _ => (405, "{}".to_owned()),
    }
}

/// Whoever can say this lives. A replica that drains does, and must not be killed for it.
pub(crate) const LIVE: &str = r#"{"status":"live"}"#;

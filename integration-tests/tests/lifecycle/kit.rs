//! A process and what it says, and a client of a few lines.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use phalanx_integration_tests::life::{Fleet, Role, Said};
use phalanx_integration_tests::replica::Moment;
use phalanx_integration_tests::server::Replica;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Nothing here takes half as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process with a role.
pub(crate) struct Life(pub(crate) Replica);

impl Life {
    pub(crate) fn begin(role: &Role) -> Self {
        Self(Replica::start(env!("CARGO_BIN_EXE_life"), &[&serde_json::to_string(role).unwrap()]))
    }

    /// What it says next, and when that happened; none when it has ended.
    pub(crate) async fn said(&self) -> Option<(Moment, Said)> {
        let line = self.0.recv_line(PATIENCE).await?;
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// Waits until it says something of a kind.
    pub(crate) async fn until<T>(&self, wanted: impl Fn(&Said) -> Option<T>) -> (Moment, T) {
        loop {
            let (at, said) = self.said().await.expect("a process that has not ended");
            if let Some(found) = wanted(&said) {
                return (at, found);
            }
        }
    }

    pub(crate) async fn until_said(&self, wanted: &Said) -> Moment {
        self.until(|said| (said == wanted).then_some(())).await.0
    }
}

/// A fleet that nobody else belongs to.
pub(crate) fn fleet(url: &str) -> Fleet {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let environment = format!("life{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    Fleet { url: url.to_owned(), environment }
}

/// An answer over HTTP.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<String>,
    pub(crate) body: String,
}

/// A connection of its own, ready to ask.
pub(crate) async fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).await.expect("somebody who listens")
}

pub(crate) async fn send(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("a server that reads");
}

pub(crate) async fn ask(mut stream: TcpStream, path: &str) -> Answer {
    send(&mut stream, path).await;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("an answer that ends");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("not an answer: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let retry_after = head.lines().find_map(|line| line.strip_prefix("retry-after: ")).map(str::to_owned);
    Answer { status, retry_after, body: body.to_owned() }
}

//! Test harness of the lifecycle tests: child processes with their events, and a minimal HTTP client.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use phalanx_integration_tests::lifecycle_process::{Fleet, ProcessEvent, Role};
use phalanx_integration_tests::replica::Moment;
use phalanx_testkit::server::ChildProcess;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest wait for an event.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// A child process with a role.
pub(crate) struct LifecycleProcess(pub(crate) ChildProcess);

impl LifecycleProcess {
    pub(crate) fn start(role: &Role) -> Self {
        Self(ChildProcess::start(env!("CARGO_BIN_EXE_lifecycle_process"), &[&serde_json::to_string(role).unwrap()]))
    }

    /// Waits for its next event; none when it has exited.
    pub(crate) async fn next_event(&self) -> Option<(Moment, ProcessEvent)> {
        let line = self.0.recv_line(WAIT_TIMEOUT).await?;
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// Waits for the first event for which `wanted` returns a value.
    pub(crate) async fn until<T>(&self, wanted: impl Fn(&ProcessEvent) -> Option<T>) -> (Moment, T) {
        loop {
            let (at, event) = self.next_event().await.expect("the process has not exited");
            if let Some(found) = wanted(&event) {
                return (at, found);
            }
        }
    }

    pub(crate) async fn until_event(&self, wanted: &ProcessEvent) -> Moment {
        self.until(|event| (event == wanted).then_some(())).await.0
    }
}

/// Returns a fleet of its own for one test.
pub(crate) fn fleet(url: &str) -> Fleet {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let environment = format!("life{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    Fleet { url: url.to_owned(), environment }
}

/// An HTTP response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<String>,
    pub(crate) body: String,
}

/// Opens a connection.
pub(crate) async fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).await.expect("the process listens")
}

pub(crate) async fn send(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the server reads");
}

pub(crate) async fn get(mut stream: TcpStream, path: &str) -> HttpResponse {
    send(&mut stream, path).await;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("the response ends");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("not a response: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let retry_after = head.lines().find_map(|line| line.strip_prefix("retry-after: ")).map(str::to_owned);
    HttpResponse { status, retry_after, body: body.to_owned() }
}

//! A TCP proxy for fault injection in front of a server.
//!
//! ```text
//! client ──── requests, at once ────▶ proxy ──▶ server
//!        ◀─── replies, later, slower ─      ◀──
//! ```
//!
//! Delay and pace affect replies only, so that an added delay is exactly the added round-trip time, and a request has long
//! been executed when its caller gives up. Connections are numbered in the order of acceptance, and faults apply to ranges
//! of numbers. [`Proxy::clear_faults`] ends all faults but one: a connection that has swallowed bytes stays a black hole,
//! because the bytes are lost.

mod connection;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use super::port::Port;

/// A running proxy, on the runtime that started it.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
    /// The task that owns the listener; none while connections are rejected.
    accepting: Mutex<Option<JoinHandle<()>>>,
}

/// Traffic counters of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now, including black holes.
    pub open: u64,
    /// Bytes forwarded to the server.
    pub to_server: u64,
    /// Bytes forwarded to clients.
    pub to_client: u64,
    /// Bytes swallowed by black holes.
    pub swallowed: u64,
}

#[derive(Debug)]
struct Shared {
    rules: watch::Sender<Rules>,
    /// The numbers of the open connections.
    open: watch::Sender<BTreeSet<u64>>,
    accepted: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
    swallowed: AtomicU64,
}

#[derive(Clone, Debug)]
struct Rules {
    target: String,
    /// Connections below this number are black holes.
    black_hole_below: u64,
    /// Connections below this number are reset.
    cut_below: u64,
    delay: Duration,
    pace: Option<Pace>,
}

/// A pause after every `piece` bytes.
#[derive(Clone, Copy, Debug)]
struct Pace {
    piece: usize,
    pause: Duration,
}

impl Proxy {
    /// Starts a proxy without faults in front of an address such as `127.0.0.1:6379`.
    pub async fn start(target: impl Into<String>) -> Self {
        let rules =
            Rules { target: target.into(), black_hole_below: 0, cut_below: 0, delay: Duration::ZERO, pace: None };
        let shared = Shared {
            rules: watch::Sender::new(rules),
            open: watch::Sender::default(),
            accepted: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            swallowed: AtomicU64::new(0),
        };
        let proxy = Self { port: Port::reserve(), shared: Arc::new(shared), accepting: Mutex::new(None) };
        proxy.accept().await;
        proxy
    }

    /// Returns the port it listens on.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns the URL of the server through the proxy.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Ends all faults. Connections that are black holes remain so.
    pub async fn clear_faults(&self) {
        let accepted = self.shared.accepted();
        self.shared.rules.send_modify(|rules| {
            rules.black_hole_below = rules.black_hole_below.min(accepted);
            rules.delay = Duration::ZERO;
            rules.pace = None;
        });
        self.accept().await;
    }

    /// Turns existing connections into black holes: they stay open and swallow all bytes. New ones work.
    pub fn stall(&self) {
        let accepted = self.shared.accepted();
        self.shared.rules.send_modify(|rules| rules.black_hole_below = accepted.max(rules.black_hole_below));
    }

    /// Turns existing and new connections into black holes. New ones are still accepted.
    pub fn stall_all(&self) {
        self.shared.rules.send_modify(|rules| rules.black_hole_below = u64::MAX);
    }

    /// Resets existing connections on both sides and waits until they are gone. New ones work.
    pub async fn reset_connections(&self) {
        let accepted = self.shared.accepted();
        self.shared.rules.send_modify(|rules| rules.cut_below = accepted);
        let mut open = self.shared.open.subscribe();
        let gone = open.wait_for(|open| open.first().is_none_or(|&first| first >= accepted)).await;
        gone.expect("the sender is in self");
    }

    /// Stops listening: new connections fail with "connection refused", existing ones continue.
    pub async fn reject_connections(&self) {
        if let Some(task) = self.accepting.lock().await.take() {
            task.abort();
            let _ = task.await;
        }
    }

    /// Delays every reply, independently of how many are in flight.
    pub fn delay(&self, by: Duration) {
        self.shared.rules.send_modify(|rules| rules.delay = by);
    }

    /// Sends replies byte by byte, with a pause after each.
    pub fn drip(&self, pause: Duration) {
        self.shared.rules.send_modify(|rules| rules.pace = Some(Pace { piece: 1, pause }));
    }

    /// Limits the rate of replies on each connection.
    pub fn throttle(&self, bytes_a_second: usize) {
        // A hundred pieces a second, because timers are not precise enough for smaller ones.
        let pace = Pace { piece: (bytes_a_second / 100).max(1), pause: Duration::from_millis(10) };
        self.shared.rules.send_modify(|rules| rules.pace = Some(pace));
    }

    /// Sends new connections to another server, like a failover that moves an address.
    pub fn retarget(&self, target: impl Into<String>) {
        self.shared.rules.send_modify(|rules| rules.target = target.into());
    }

    /// Returns the traffic counters.
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            accepted: self.shared.accepted(),
            open: self.shared.open.borrow().len() as u64,
            to_server: read(&self.shared.to_server),
            to_client: read(&self.shared.to_client),
            swallowed: read(&self.shared.swallowed),
        }
    }

    async fn accept(&self) {
        let mut accepting = self.accepting.lock().await;
        if accepting.is_some() {
            return;
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port())).await.expect("the port is reserved");
        let shared = Arc::clone(&self.shared);
        *accepting = Some(tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = shared.accepted.fetch_add(1, Ordering::Relaxed);
                // Counted as open here and not at the task's first poll, or `reset_connections` could miss it.
                shared.open.send_if_modified(|open| open.insert(number));
                tokio::spawn(connection::relay(Arc::clone(&shared), number, client));
            }
        }));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(task) = self.accepting.get_mut() {
            task.abort();
        }
        self.shared.rules.send_modify(|rules| rules.cut_below = u64::MAX);
    }
}

impl Shared {
    fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    fn is_black_hole(&self, number: u64) -> bool {
        number < self.rules.borrow().black_hole_below
    }
}

//! A wire that can be hurt: a TCP proxy in front of a server.
//!
//! ```text
//! client ──── requests, at once ────▶ proxy ──▶ server
//!        ◀─── replies, later, slower ─      ◀──
//! ```
//!
//! Latency and pace act on replies only, so that what a test adds is what a round trip takes longer, and a request has
//! long been executed when its caller gives up. Connections are numbered in the order in which they are accepted, and
//! faults name them by number: a connection that has answered once is an existing one. [`Proxy::pass`] ends all faults
//! but one: a connection that has swallowed bytes stays a black hole, because they cannot come back.

mod wire;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use super::port::Port;

/// The proxy; it lives on the runtime that started it.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    shared: Arc<Shared>,
    /// The task that owns the listener; none while connections are rejected.
    accepting: Mutex<Option<JoinHandle<()>>>,
}

/// What has gone through so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now, black holes among them.
    pub open: u64,
    /// Bytes handed to the server.
    pub to_server: u64,
    /// Bytes handed to clients.
    pub to_client: u64,
    /// Bytes that went into black holes.
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
    hole_below: u64,
    /// Connections below this number are to end.
    cut_below: u64,
    delay: Duration,
    pace: Option<Pace>,
}

/// So many bytes, then a pause.
#[derive(Clone, Copy, Debug)]
struct Pace {
    piece: usize,
    pause: Duration,
}

impl Proxy {
    /// A faultless proxy in front of an address such as `127.0.0.1:6379`.
    pub async fn start(target: impl Into<String>) -> Self {
        let rules = Rules { target: target.into(), hole_below: 0, cut_below: 0, delay: Duration::ZERO, pace: None };
        let shared = Shared {
            rules: watch::Sender::new(rules),
            open: watch::Sender::default(),
            accepted: AtomicU64::new(0),
            to_server: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
            swallowed: AtomicU64::new(0),
        };
        let proxy = Self { port: Port::take(), shared: Arc::new(shared), accepting: Mutex::new(None) };
        proxy.accept().await;
        proxy
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// How clients reach the server through it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Ends all faults: connections are accepted and answered at once. Those that were black holes remain so.
    pub async fn pass(&self) {
        let accepted = self.shared.accepted();
        self.shared.rules.send_modify(|rules| {
            rules.hole_below = rules.hole_below.min(accepted);
            rules.delay = Duration::ZERO;
            rules.pace = None;
        });
        self.accept().await;
    }

    /// Existing connections become black holes: open, and what goes in does not come out. New ones pass.
    pub fn stall(&self) {
        let accepted = self.shared.accepted();
        self.shared.rules.send_modify(|rules| rules.hole_below = accepted.max(rules.hole_below));
    }

    /// The same for new connections too: they are accepted and hear nothing.
    pub fn stall_all(&self) {
        self.shared.rules.send_modify(|rules| rules.hole_below = u64::MAX);
    }

    /// Resets the existing connections, on both sides, and returns when they are gone. New ones pass.
    pub async fn drop_all(&self) {
        let accepted = self.shared.accepted();
        self.shared.rules.send_modify(|rules| rules.cut_below = accepted);
        let mut open = self.shared.open.subscribe();
        let gone = open.wait_for(|open| open.first().is_none_or(|&first| first >= accepted)).await;
        gone.expect("the sender is ours");
    }

    /// Nobody listens any more when this returns: dialling is rejected, existing connections go on.
    pub async fn reject(&self) {
        if let Some(task) = self.accepting.lock().await.take() {
            task.abort();
            let _ = task.await;
        }
    }

    /// Every reply comes so much later, however many are under way.
    pub fn delay(&self, by: Duration) {
        self.shared.rules.send_modify(|rules| rules.delay = by);
    }

    /// Replies come byte by byte, with a pause after each.
    pub fn drip(&self, pause: Duration) {
        self.shared.rules.send_modify(|rules| rules.pace = Some(Pace { piece: 1, pause }));
    }

    /// Replies come at so many bytes a second at most, on each connection.
    pub fn throttle(&self, bytes_a_second: usize) {
        // A hundred pieces a second: finer than anyone looks, coarser than a timer's tick.
        let pace = Pace { piece: (bytes_a_second / 100).max(1), pause: Duration::from_millis(10) };
        self.shared.rules.send_modify(|rules| rules.pace = Some(pace));
    }

    /// New connections go to another server, as after a failover that moved an address.
    pub fn retarget(&self, target: impl Into<String>) {
        self.shared.rules.send_modify(|rules| rules.target = target.into());
    }

    /// What has gone through so far.
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
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port())).await.expect("a port of our own");
        let shared = Arc::clone(&self.shared);
        *accepting = Some(tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = shared.accepted.fetch_add(1, Ordering::Relaxed);
                // Open from now on and not from the task's first poll, or `drop_all` could miss it.
                shared.open.send_if_modified(|open| open.insert(number));
                tokio::spawn(wire::carry(Arc::clone(&shared), number, client));
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

    fn is_hole(&self, number: u64) -> bool {
        number < self.rules.borrow().hole_below
    }
}

//! The wire to a real Redis: one connection, opened in the background and discarded when it breaks.
//!
//! A request without a connection waits for one until the attempt to connect has failed, at most for the timer of its
//! round trip. Connecting never happens in a caller's task.

use std::borrow::Cow;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use phalanx_core::clock::Clock;
use tokio::sync::{Mutex, Notify, watch};

use crate::connection::Connection;
use crate::dispatcher::Wire;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::redis_connection::RedisConnection;
use crate::transport::{Boxed, Response};

/// The wire to a real Redis.
pub(crate) struct RedisWire {
    pub(crate) redis: RedisConnection,
    connection: ArcSwapOption<Connection>,
    /// Notified when a connection was opened, or could not be.
    opened: Notify,
    /// Notified when a request needs a connection.
    wanted: Notify,
    /// Held while a second connection to a Cluster is tried: one at a time is enough.
    pub(crate) reconnect_lock: Mutex<()>,
    /// How many connections were opened.
    connections: watch::Sender<u64>,
    /// Wakes the health checks, because a new connection can be checked.
    wake: Arc<Notify>,
    /// Sent as the last argument of every call in tests that control time.
    virtual_clock: Option<Clock>,
}

impl RedisWire {
    pub(crate) fn new(redis: RedisConnection, wake: Arc<Notify>, virtual_clock: Option<Clock>) -> Self {
        let (opened, wanted, reconnect_lock) = (Notify::new(), Notify::new(), Mutex::new(()));
        let (connection, connections) = (ArcSwapOption::empty(), watch::Sender::new(0));
        Self { redis, connection, opened, wanted, reconnect_lock, connections, wake, virtual_clock }
    }

    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        self.connection.load_full()
    }

    pub(crate) fn put(&self, connection: Connection) {
        self.connection.store(Some(Arc::new(connection)));
        self.connections.send_modify(|count| *count += 1);
        self.opened.notify_waiters();
        self.wake.notify_one();
    }

    /// Returns how many connections were opened, and is notified of each.
    pub(crate) fn connections(&self) -> watch::Receiver<u64> {
        self.connections.subscribe()
    }

    /// Fails the requests that wait for a connection.
    pub(crate) fn fail_waiters(&self) {
        self.opened.notify_waiters();
    }

    /// Waits until a request needs a connection.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Discards the connection if it is still this one; any connection if `None`.
    pub(crate) fn discard(&self, broken: Option<&Arc<Connection>>) {
        let current = self.connection.load_full();
        let same = broken.is_none_or(|broken| current.as_ref().is_some_and(|current| Arc::ptr_eq(current, broken)));
        if same {
            self.connection.store(None);
            self.wanted.notify_one();
        }
    }

    async fn connected(&self) -> Result<Arc<Connection>, Failure> {
        let mut opened = pin!(self.opened.notified());
        opened.as_mut().enable(); // before the check, so that no notification is missed in between
        if let Some(connection) = self.connection() {
            return Ok(connection);
        }
        self.wanted.notify_one();
        opened.await;
        self.connection().ok_or(Failure::Connection)
    }

    async fn send_all(&self, calls: &[Invocation]) -> Result<Vec<Response>, Failure> {
        let connection = self.connected().await?;
        let mut calls = Cow::Borrowed(calls);
        if let Some(clock) = &self.virtual_clock {
            let now = clock.now().as_micros();
            calls.to_mut().iter_mut().for_each(|call| {
                call.arg(now);
            });
        }
        let reply = connection.send(&calls).await;
        // A Cluster connection includes one to every node, and repairs itself.
        if reply.as_ref().is_err_and(Failure::is_connection) && !self.redis.is_cluster() {
            self.discard(Some(&connection));
        }
        reply
    }
}

impl Wire for RedisWire {
    fn send<'a>(&'a self, calls: &'a [Invocation]) -> Boxed<'a, Result<Vec<Response>, Failure>> {
        Box::pin(self.send_all(calls))
    }
}

impl fmt::Debug for RedisWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connected = self.connection.load().is_some();
        f.debug_struct("RedisWire").field("redis", &self.redis).field("connected", &connected).finish()
    }
}

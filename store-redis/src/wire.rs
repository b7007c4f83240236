//! The wire to a real Redis: one connection, opened in the background, thrown away when it breaks.
//!
//! Who sends while there is none waits for it, until it turns out that there is none to be had; the flight's timer bounds
//! that. Nobody on a caller's way dials.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use phalanx_core::clock::Clock;
use tokio::sync::{Mutex, Notify};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::lane::{Replied, Wire};
use crate::source::RedisConnection;

/// The wire.
pub(crate) struct RedisWire {
    pub(crate) source: RedisConnection,
    connection: ArcSwapOption<Connection>,
    /// There is a connection again, or none to be had.
    opened: Notify,
    /// One is wanted.
    wanted: Notify,
    /// Held while another connection to a Cluster is tried, because one at a time is enough.
    pub(crate) scouting: Mutex<()>,
    /// Tells the keeper that there is one to probe with.
    wake: Arc<Notify>,
    /// Sent along with every call, where a test moves the time.
    virtual_clock: Option<Clock>,
}

impl RedisWire {
    pub(crate) fn new(source: RedisConnection, wake: Arc<Notify>, virtual_clock: Option<Clock>) -> Self {
        let (opened, wanted, scouting) = (Notify::new(), Notify::new(), Mutex::new(()));
        Self { source, connection: ArcSwapOption::empty(), opened, wanted, scouting, wake, virtual_clock }
    }

    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        self.connection.load_full()
    }

    pub(crate) fn put(&self, connection: Connection) {
        self.connection.store(Some(Arc::new(connection)));
        self.opened.notify_waiters();
        self.wake.notify_one();
    }

    /// Lets nobody wait any longer: there is none to be had.
    pub(crate) fn give_up(&self) {
        self.opened.notify_waiters();
    }

    /// Returns when somebody misses a connection.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Throws the connection away, if it still is this one; any, if none is named.
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
        opened.as_mut().enable(); // before looking, so that none is missed in between
        if let Some(connection) = self.connection() {
            return Ok(connection);
        }
        self.wanted.notify_one();
        opened.await;
        self.connection().ok_or(Failure::Connection)
    }

    async fn send_all(&self, mut calls: Vec<Invocation>) -> Result<Vec<Replied>, Failure> {
        let connection = self.connected().await?;
        if let Some(clock) = &self.virtual_clock {
            let now = clock.now().as_micros();
            calls.iter_mut().for_each(|call| {
                call.arg(now);
            });
        }
        let answer = connection.run(&calls).await;
        // A Cluster's connection is one to every node, and mends itself.
        if answer == Err(Failure::Connection) && !self.source.is_cluster() {
            self.discard(Some(&connection));
        }
        answer
    }
}

impl Wire for RedisWire {
    fn send(&self, calls: Vec<Invocation>) -> Pin<Box<dyn Future<Output = Result<Vec<Replied>, Failure>> + Send + '_>> {
        Box::pin(self.send_all(calls))
    }
}

impl fmt::Debug for RedisWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connected = self.connection.load().is_some();
        f.debug_struct("RedisWire").field("source", &self.source).field("connected", &connected).finish()
    }
}

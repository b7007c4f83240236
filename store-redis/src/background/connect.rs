//! Opens the connection, and checks which shards a Cluster connection reaches before it is used.
//!
//! A Cluster connection includes one connection to every node. A request for a node that it could not reach makes it
//! look for that node while all other requests wait. So a new connection is asked first which slots belong together and
//! which shards it reaches. The latch of a shard that it does not reach trips at once, and no request for it uses this
//! connection.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use phalanx_core::event::EventKind;
use phalanx_core::rng::Rng;
use tokio::time::{Instant, sleep, timeout};

use super::health::backoff;
use crate::connection::{Connection, ServerIdentity, Shard};
use crate::dispatcher::Dispatcher;
use crate::failure::Failure;
use crate::redis_connection::CONNECT_TIMEOUT;
use crate::store::inner::StoreInner;
use crate::wire::RedisWire;

/// The pause before the first attempts to reconnect.
const RECONNECT_DELAY: Duration = Duration::from_millis(5);
/// How many attempts are followed by that pause.
const QUICK_ATTEMPTS: u32 = 2;
/// How often the slot assignment of a Cluster is refreshed.
const TOPOLOGY_INTERVAL: Duration = Duration::from_secs(5);

/// Keeps a connection open until the task ends.
pub(super) async fn run(store: &StoreInner, wire: &RedisWire) {
    let mut failed: u32 = 0;
    let mut report = Report::default();
    loop {
        if let Some(connection) = wire.connection() {
            tokio::select! {
                biased;
                () = wire.wanted() => {}
                () = report.connected(store, &connection), if !report.is_of(&connection) => {}
                () = sleep(TOPOLOGY_INTERVAL), if wire.redis.is_cluster() => refresh_shards(store, &connection).await,
            }
            continue;
        }
        match open(store, wire).await {
            Ok((connection, shards)) => {
                failed = 0;
                report.failure = None;
                store.dispatchers.iter().for_each(|dispatcher| dispatcher.latch.forget_cause());
                assign_shards(store, &shards);
                let unreachable =
                    store.dispatchers_in_use().iter().enumerate().filter(|(number, _)| connection.unreachable(*number));
                unreachable.for_each(|(_, dispatcher)| trip(dispatcher));
                wire.put(connection);
            }
            Err(failure) => {
                failed += 1;
                let sent = Instant::now();
                store.dispatchers_in_use().iter().for_each(|dispatcher| dispatcher.record_failure(&failure, sent));
                report.failed(store, failed, &failure);
                if store.dispatchers_in_use().iter().all(|dispatcher| dispatcher.latch.is_down()) {
                    wire.fail_waiters();
                }
                sleep(reconnect_delay(&store.rng, failed, &failure)).await;
            }
        }
    }
}

/// What was emitted about the connection.
#[derive(Default)]
struct Report {
    /// The connection that was looked at.
    connection: Option<Weak<Connection>>,
    identity: Option<ServerIdentity>,
    /// Why connecting failed last.
    failure: Option<Failure>,
}

impl Report {
    fn is_of(&self, connection: &Arc<Connection>) -> bool {
        self.connection.as_ref().is_some_and(|seen| std::ptr::eq(seen.as_ptr(), Arc::as_ptr(connection)))
    }

    /// Emits to which server the process is connected, unless that was emitted before.
    async fn connected(&mut self, store: &StoreInner, connection: &Arc<Connection>) {
        let identity = timeout(CONNECT_TIMEOUT, connection.identify()).await;
        self.connection = Some(Arc::downgrade(connection));
        let Ok(Ok(identity)) = identity else { return };
        let known = self.identity.as_ref().is_some_and(|known| {
            known.server == identity.server && (known.version == identity.version || identity.version.is_none())
        });
        if !known {
            let (server, version) = (&*identity.server, identity.version.as_deref());
            store.observers.emit_all(EventKind::StoreConnected { server, version });
            self.identity = Some(identity);
        }
    }

    /// Emits why connecting fails, unless that is the reason of the outage or was emitted before. The first attempts are made
    /// at once, before the outage has begun.
    fn failed(&mut self, store: &StoreInner, failed: u32, failure: &Failure) {
        let label = failure.label();
        let is_reason = |dispatcher: &Arc<Dispatcher>| dispatcher.latch.reason().is_some_and(|it| it.label() == label);
        let known = self.failure.as_ref().is_some_and(|known| known.label() == label);
        if failed > QUICK_ATTEMPTS && !known && !store.dispatchers_in_use().iter().any(is_reason) {
            store.observers.emit_all(EventKind::StoreConnectFailed { reason: label });
            self.failure = Some(failure.clone());
        }
    }
}

/// Returns the pause after this many failed attempts in a row.
fn reconnect_delay(rng: &Rng, failed: u32, failure: &Failure) -> Duration {
    if failed <= QUICK_ATTEMPTS { RECONNECT_DELAY } else { backoff(rng, failed - QUICK_ATTEMPTS, failure) }
}

/// Opens a second connection to a Cluster. It replaces the current one only if it reaches the shard of this dispatcher,
/// and all shards whose latch is up.
pub(super) async fn try_new_connection(store: &StoreInner, wire: &RedisWire, number: usize) -> Result<(), Failure> {
    let current = wire.connection();
    let _guard = wire.reconnect_lock.lock().await;
    let replaced = wire.connection().filter(|connection| !connection.unreachable(number));
    if replaced.is_some_and(|replaced| current.is_none_or(|current| !Arc::ptr_eq(&replaced, &current))) {
        return Ok(()); // another health check has replaced the connection meanwhile
    }
    let (connection, shards) = open(store, wire).await?;
    let wanted = |dispatcher: &usize| *dispatcher == number || !store.dispatchers[*dispatcher].latch.is_down();
    if (0..store.dispatchers.len()).filter(wanted).any(|dispatcher| connection.unreachable(dispatcher)) {
        return Err(Failure::Timeout);
    }
    assign_shards(store, &shards);
    wire.put(connection);
    Ok(())
}

/// Opens a connection and reads the shards of a Cluster.
async fn open(store: &StoreInner, wire: &RedisWire) -> Result<(Connection, Vec<Shard>), Failure> {
    let connection = wire.redis.connect().await?;
    if connection.is_single()
        && let Ok(Err(failure @ Failure::Rejecting("NOAUTH"))) = timeout(CONNECT_TIMEOUT, connection.identify()).await
    {
        // Asked first, because a server that was given no password closes the connection at the first long command.
        return Err(failure);
    }
    let survey = timeout(CONNECT_TIMEOUT, connection.reachable_shards()).await.ok().flatten();
    let (shards, missing) = survey.unwrap_or_default();
    let dispatchers = missing.into_iter().map(|shard| shard % store.dispatchers.len()).collect();
    Ok((connection.with_unreachable(dispatchers), shards))
}

/// Trips the latch of a shard that no request was sent to yet.
fn trip(dispatcher: &Dispatcher) {
    while !dispatcher.latch.is_down() {
        dispatcher.record_failure(&Failure::Timeout, Instant::now());
    }
}

async fn refresh_shards(store: &StoreInner, connection: &Connection) {
    if let Ok(Some(shards)) = timeout(CONNECT_TIMEOUT, connection.shards()).await {
        assign_shards(store, &shards);
    }
}

/// Assigns a dispatcher to each shard, so that an outage of one shard degrades only its own keys.
fn assign_shards(store: &StoreInner, shards: &[Shard]) {
    let Some(dispatcher_of_slot) = &store.dispatcher_of_slot else { return };
    for (number, shard) in shards.iter().enumerate() {
        let dispatcher = u8::try_from(number % store.dispatchers.len()).unwrap_or(0);
        for slot in shard.slots.iter().flat_map(|(first, last)| *first..=*last) {
            if let Some(entry) = dispatcher_of_slot.get(usize::from(slot)) {
                entry.store(dispatcher, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_pauses_are_short_and_the_next_ones_grow() {
        let rng = Rng::seeded(1);
        let longest = |failed| (0..5_000).map(|_| reconnect_delay(&rng, failed, &Failure::Connection)).max().unwrap();
        assert_eq!([longest(1), longest(2)], [RECONNECT_DELAY; 2]);
        for (failed, millis) in [(3, 500), (4, 1_000), (5, 2_000), (100, 2_000)] {
            let limit = Duration::from_millis(millis);
            assert!((limit.mul_f64(0.99)..=limit).contains(&longest(failed)), "{:?} after {failed}", longest(failed));
        }
    }
}

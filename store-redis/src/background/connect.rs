//! Opens the connection, and checks which shards a Cluster connection reaches before it is used.
//!
//! A Cluster connection includes one connection to every node. A request for a node that it could not reach makes it
//! look for that node while all other requests wait. So a new connection is asked first which slots belong together and
//! which shards it reaches. The latch of a shard that it does not reach trips at once, and no request for it uses this
//! connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::event::EventKind;
use phalanx_core::rng::Rng;
use tokio::time::{Instant, sleep, timeout};

use super::health::backoff;
use crate::connection::{Connection, Shard};
use crate::dispatcher::Dispatcher;
use crate::failure::Failure;
use crate::redis_connection::CONNECT_TIMEOUT;
use crate::store::inner::StoreInner;
use crate::wire::RedisWire;

/// The pause before the first attempts to reconnect.
const RECONNECT_DELAY: Duration = Duration::from_millis(5);
/// How often the slot assignment of a Cluster is refreshed.
const TOPOLOGY_INTERVAL: Duration = Duration::from_secs(5);

/// Keeps a connection open until the task ends.
pub(super) async fn run(store: &StoreInner, wire: &RedisWire) {
    let mut failed: u32 = 0;
    loop {
        if let Some(connection) = wire.connection() {
            tokio::select! {
                biased;
                () = wire.wanted() => {}
                () = sleep(TOPOLOGY_INTERVAL), if wire.redis.is_cluster() => refresh_shards(store, &connection).await,
            }
            continue;
        }
        match open(store, wire).await {
            Ok((connection, shards)) => {
                failed = 0;
                assign_shards(store, &shards);
                let unreachable =
                    store.dispatchers_in_use().iter().enumerate().filter(|(number, _)| connection.unreachable(*number));
                unreachable.for_each(|(_, dispatcher)| trip(dispatcher));
                wire.put(connection);
                if store.background.connects_first() {
                    store.observers.emit_all(EventKind::StoreConnected { to: &wire.redis.target() });
                }
            }
            Err(failure) => {
                failed += 1;
                let sent = Instant::now();
                store.dispatchers_in_use().iter().for_each(|dispatcher| dispatcher.record_failure(&failure, sent));
                if store.dispatchers_in_use().iter().all(|dispatcher| dispatcher.latch.is_down()) {
                    wire.fail_waiters();
                }
                sleep(reconnect_delay(&store.rng, failed, &failure)).await;
            }
        }
    }
}

/// Returns the pause after this many failed attempts in a row.
fn reconnect_delay(rng: &Rng, failed: u32, failure: &Failure) -> Duration {
    if failed < 3 { RECONNECT_DELAY } else { backoff(rng, failed - 2, failure) }
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

//! The periodic sync loop: every second, the replica sends its heartbeat, receives the number of live replicas, and
//! compares the numbers of the changes that it knows with those of the server (`changes.rs`); every `sync_interval`, cells
//! that were used send what is due. A breaker whose calls succeed has nothing to send, so a healthy fleet costs Redis its
//! heartbeats. After a loss of data all breakers are polled once (`catch_up.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::event::EventKind;
use phalanx_lua as lua;
use redis::Value;
use tokio::time::{Instant, sleep_until};

use crate::options::MAX_EXPECTED;
use crate::store::inner::StoreInner;

/// How often a replica sends its heartbeat, and how long the server counts it as live after one.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
const MEMBER_TTL: Duration = Duration::from_millis(3_500);

/// Sends heartbeats and sync rounds until the task ends.
pub(super) async fn run(store: &Arc<StoreInner>) {
    let (mut next_heartbeat, mut next_round) = (Instant::now(), Instant::now());
    loop {
        let changes = &store.background.changes;
        if Instant::now() >= next_heartbeat {
            next_heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
            tokio::join!(heartbeat(store), changes.check(store));
        }
        changes.run(store).await;
        if Instant::now() >= next_round {
            tick(store);
            // Jitter: replicas that started together drift apart.
            let interval = store.options.sync_interval;
            next_round = Instant::now() + store.rng.between(interval.mul_f64(0.9), interval);
        }
        // Heartbeats are independent of the sync interval.
        let next = next_heartbeat.min(next_round);
        let next = changes.next().map_or(next, |change| change.min(next));
        tokio::select! {
            biased;
            () = sleep_until(next) => {}
            () = changes.wake.notified() => {}
        }
    }
}

/// Visits the cells that were used since the last round. Those of a server that is down wait for a round after that.
fn tick(store: &StoreInner) {
    let background = &store.background;
    for breaker in background.breakers.take_in_use() {
        if breaker.is_degraded() {
            background.breakers.note_use(&breaker);
        } else {
            breaker.tick();
        }
    }
    for digest in background.digests.take_in_use() {
        if digest.is_degraded() {
            background.digests.note_use(&digest);
        } else {
            digest.tick(false);
        }
    }
    for tally in background.tallies.take_in_use() {
        if tally.is_degraded() {
            background.tallies.note_use(&tally);
        } else {
            tally.tick(false);
        }
    }
    background.catch_up.tick(store);
}
/// Sends the heartbeat of this replica and reads the number of live replicas.
pub(crate) async fn heartbeat(store: &Arc<StoreInner>) {
    let (members, generation) = store.keys.membership();
    let mut call = store.invocation(&lua::MEMBERSHIP_HEARTBEAT, &[&members, &generation]);
    let fresh = format!("{:016x}", store.identity.next());
    call.arg(store.owner).arg(MEMBER_TTL.as_micros() as u64).arg(fresh).arg(store.shares.expected());
    let Ok(Value::Array(reply)) = store.dispatcher(members.slot).call(call).await else { return };
    let [_, Value::Int(live), Value::BulkString(generation), more @ ..] = &reply[..] else { return };
    let live = u32::try_from(*live).unwrap_or(0).max(1);
    let expected = match more {
        [Value::Int(expected), ..] => u32::try_from(*expected).unwrap_or(0).min(MAX_EXPECTED),
        _ => 0,
    };
    store.shares.heartbeat(live, expected);
    if store.replicas.swap(live, Ordering::Relaxed) != live {
        store.observers.emit_all(EventKind::Replicas { live });
    }
    let generation = String::from_utf8_lossy(generation).into_owned();
    let before = store.background.generation.lock().replace(generation.clone());
    if before.is_some_and(|before| before != generation) {
        store.state_losses.fetch_add(1, Ordering::Relaxed);
        store.observers.emit_all(EventKind::StateLost);
        store.background.changes.forget();
        store.background.share_taken.notify_one(); // shares are recorded again
        store.background.catch_up.begin(store); // a replica that knows of an open breaker restores it
    }
}

/// Removes this replica from the membership. The reply may be lost.
pub(super) async fn leave(store: &Arc<StoreInner>) {
    let (members, _) = store.keys.membership();
    let mut call = store.invocation(&lua::MEMBERSHIP_LEAVE, &[&members]);
    call.arg(store.owner);
    let _ = store.dispatcher(members.slot).call(call).await;
}

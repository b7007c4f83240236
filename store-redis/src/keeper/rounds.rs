//! The regular rounds: every `sync_interval` what is owed is told and what is used is asked after; every second the
//! replica says that it lives, and hears how many do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::event::EventKind;
use phalanx_lua as lua;
use redis::Value;
use tokio::time::{Instant, sleep_until};

use crate::fleet::Fleet;

/// Between two signs of life, and for how long one counts.
const HEARTBEAT: Duration = Duration::from_secs(1);
const LIFE: Duration = Duration::from_millis(3_500);

/// Circuits and digests told of in one round; in a crowd they take turns, so that rounds never crowd out callers.
const IN_ONE_ROUND: usize = 512;

/// Makes the rounds for ever.
pub(super) async fn make(fleet: &Arc<Fleet>) {
    let (mut beat, mut round) = (Instant::now(), Instant::now());
    let mut turn = 0;
    loop {
        if Instant::now() >= beat {
            beat = Instant::now() + HEARTBEAT;
            heartbeat(fleet).await;
        }
        if Instant::now() >= round {
            tick(fleet, &mut turn);
            // Replicas that started together drift apart.
            let interval = fleet.options.sync_interval;
            round = Instant::now() + fleet.rng.between(interval.mul_f64(0.9), interval);
        }
        sleep_until(beat.min(round)).await; // who lives says so however rarely rounds are made
    }
}

fn tick(fleet: &Fleet, turn: &mut usize) {
    let circuits = fleet.keeping.circuits.all();
    let digests = fleet.keeping.digests.all();
    let crowd = circuits.len().max(digests.len()).max(1);
    let first = *turn % crowd;
    for index in (0..crowd.min(IN_ONE_ROUND)).map(|n| (first + n) % crowd) {
        if let Some(circuit) = circuits.get(index) {
            circuit.tick(false);
        }
        if let Some(digest) = digests.get(index) {
            digest.tick(false);
        }
    }
    *turn = first + crowd.min(IN_ONE_ROUND);
}

/// Says that this replica lives, and hears how many do.
pub(crate) async fn heartbeat(fleet: &Arc<Fleet>) {
    let (members, generation) = fleet.keys.fleet();
    let mut call = fleet.call(&lua::MEMBERSHIP_HEARTBEAT, &[&members, &generation]);
    let fresh = format!("{:016x}", fleet.identity.next());
    call.arg(fleet.owner).arg(LIFE.as_micros() as u64).arg(fresh);
    let Ok(Value::Array(reply)) = fleet.lane(members.slot).ask(call).await else { return };
    let [_, Value::Int(live), Value::BulkString(generation)] = &reply[..] else { return };
    let live = u32::try_from(*live).unwrap_or(0).max(1);
    if fleet.replicas.swap(live, Ordering::Relaxed) != live {
        fleet.observers.emit_all(EventKind::Replicas { live });
    }
    let generation = String::from_utf8_lossy(generation).into_owned();
    let before = fleet.keeping.generation.lock().replace(generation.clone());
    if before.is_some_and(|before| before != generation) {
        fleet.observers.emit_all(EventKind::StateLost);
        // Whoever knows of an open circuit puts it back.
        fleet.keeping.circuits.all().iter().for_each(|circuit| circuit.tick(true));
    }
}

/// This replica no longer counts among the living. It may not hear an answer.
pub(super) async fn leave(fleet: &Arc<Fleet>) {
    let (members, _) = fleet.keys.fleet();
    let mut call = fleet.call(&lua::MEMBERSHIP_LEAVE, &[&members]);
    call.arg(fleet.owner);
    let _ = fleet.lane(members.slot).ask(call).await;
}

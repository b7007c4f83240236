//! Sees to it that there is a connection, and that a Cluster's is fit to be used.
//!
//! A Cluster's connection is one to every node, and whoever asks it for a node that it could not reach makes it look
//! for that node while all others wait. So it is looked at before it is used: which slots lie together, and which shards
//! it reaches. One that it does not is down from the start, and nobody asks for it over this connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::wait;
use crate::connection::{Connection, Shard};
use crate::failure::Failure;
use crate::fleet::Fleet;
use crate::lane::Lane;
use crate::source::CONNECT;
use crate::wire::RedisWire;

/// Before a connection that broke is opened again.
const REDIAL: Duration = Duration::from_millis(5);
/// How often the shards of a Cluster are looked up.
const TOPOLOGY: Duration = Duration::from_secs(5);

/// Keeps one open for ever.
pub(super) async fn keep_connected(fleet: &Fleet, wire: &RedisWire) {
    let mut failed: u32 = 0;
    loop {
        if let Some(connection) = wire.connection() {
            tokio::select! {
                () = wire.wanted() => {}
                () = sleep(TOPOLOGY), if wire.source.is_cluster() => look_up_shards(fleet, &connection).await,
            }
            continue;
        }
        match open(fleet, wire).await {
            Ok((connection, shards)) => {
                failed = 0;
                spread(fleet, &shards);
                let lacking = fleet.lanes_in_use().iter().enumerate().filter(|(number, _)| connection.lacks(*number));
                lacking.for_each(|(_, lane)| fall(lane));
                wire.put(connection);
            }
            Err(failure) => {
                failed += 1;
                let sent = Instant::now();
                fleet.lanes_in_use().iter().for_each(|lane| lane.missed(&failure, sent));
                if fleet.lanes_in_use().iter().all(|lane| lane.latch.is_down()) {
                    wire.give_up();
                }
                sleep(if failed < 3 { REDIAL } else { wait(fleet, failed - 2, &failure) }).await;
            }
        }
    }
}

/// Opens another connection to a Cluster. If it reaches the shard, and all others that are not down as well, it takes the
/// place of the one there is; else it goes.
pub(super) async fn scout(fleet: &Fleet, wire: &RedisWire, number: usize) -> Result<(), Failure> {
    let before = wire.connection();
    let _turn = wire.scouting.lock().await;
    let found = wire.connection().filter(|connection| !connection.lacks(number));
    if found.is_some_and(|found| before.is_none_or(|before| !Arc::ptr_eq(&found, &before))) {
        return Ok(()); // somebody else's scout was here
    }
    let (connection, shards) = open(fleet, wire).await?;
    let wanted = |lane: &usize| *lane == number || !fleet.lanes[*lane].latch.is_down();
    if (0..fleet.lanes.len()).filter(wanted).any(|lane| connection.lacks(lane)) {
        return Err(Failure::Timeout);
    }
    spread(fleet, &shards);
    wire.put(connection);
    Ok(())
}

/// A connection, and the shards of a Cluster.
async fn open(fleet: &Fleet, wire: &RedisWire) -> Result<(Connection, Vec<Shard>), Failure> {
    let connection = wire.source.dial().await?;
    let surveyed = timeout(CONNECT, connection.survey()).await.ok().flatten();
    let (shards, missing) = surveyed.unwrap_or_default();
    let lanes = missing.into_iter().map(|shard| shard % fleet.lanes.len()).collect();
    Ok((connection.lacking(lanes), shards))
}

/// Lets a latch fall that has seen nothing yet.
fn fall(lane: &Lane) {
    while !lane.latch.is_down() {
        lane.missed(&Failure::Timeout, Instant::now());
    }
}

async fn look_up_shards(fleet: &Fleet, connection: &Connection) {
    if let Ok(Some(shards)) = timeout(CONNECT, connection.shards()).await {
        spread(fleet, &shards);
    }
}

/// Gives each shard a lane, so that its outage is that lane's alone.
fn spread(fleet: &Fleet, shards: &[Shard]) {
    let Some(lane_of) = &fleet.lane_of else { return };
    for (number, shard) in shards.iter().enumerate() {
        let lane = u8::try_from(number % fleet.lanes.len()).unwrap_or(0);
        for slot in shard.slots.iter().flat_map(|(first, last)| *first..=*last) {
            if let Some(place) = lane_of.get(usize::from(slot)) {
                place.store(lane, Ordering::Relaxed);
            }
        }
    }
}

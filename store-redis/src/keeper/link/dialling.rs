//! Sees to it that there is a connection, and that a Cluster's is fit to be used.
//!
//! A Cluster's connection is one to every node, and whoever asks it for a node that it could not reach makes it look
//! for that node while all others wait. So it is tried before it is used: which slots lie together, and whether every
//! shard answers. A shard that does not is down from the start, and nobody asks for it over this connection again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::{key_where, probe_call, wait};
use crate::connection::{Connection, Shards};
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
                let lacking = lanes_in_use(fleet).iter().enumerate().filter(|(number, _)| connection.lacks(*number));
                lacking.for_each(|(_, lane)| fall(lane));
                wire.put(connection);
            }
            Err(failure) => {
                failed += 1;
                let sent = Instant::now();
                lanes_in_use(fleet).iter().for_each(|lane| lane.missed(&failure, sent));
                sleep(if failed < 3 { REDIAL } else { wait(fleet, failed - 2, &failure) }).await;
            }
        }
    }
}

/// Opens another connection to a Cluster. If the shard answers on it, and all others that are not down as well, it
/// takes the place of the one there is; else it goes.
pub(super) async fn scout(fleet: &Fleet, wire: &RedisWire, number: usize) -> Result<(), Failure> {
    let (connection, shards) = open(fleet, wire).await?;
    let wanted = |lane: &usize| *lane == number || !fleet.lanes[*lane].latch.is_down();
    if (0..fleet.lanes.len()).filter(wanted).any(|lane| connection.lacks(lane)) {
        return Err(Failure::Timeout);
    }
    spread(fleet, &shards);
    wire.put(connection);
    Ok(())
}

/// A connection, tried if it is a Cluster's.
async fn open(fleet: &Fleet, wire: &RedisWire) -> Result<(Connection, Shards), Failure> {
    let connection = wire.source.dial().await?;
    if !wire.source.is_cluster() {
        return Ok((connection, Shards::new()));
    }
    let shards = shards(&connection).await.unwrap_or_default();
    let answers = shards.iter().map(|ranges| async {
        let key = key_where(fleet, |slot| ranges.iter().any(|(first, last)| (*first..=*last).contains(&slot)));
        let calls = vec![probe_call(fleet, &key)];
        // Any answer will do: what it says is for the shard's own probes to judge.
        timeout(CONNECT / 2, wire.send_over(&connection, calls)).await.is_ok_and(|answer| answer.is_ok())
    });
    let answers = join_all(answers).await;
    let silent: Vec<usize> =
        (0..answers.len()).filter(|shard| !answers[*shard]).map(|n| n % fleet.lanes.len()).collect();
    if !silent.is_empty() {
        // It may still be looking for them. It answers this when it is done.
        self::shards(&connection).await;
    }
    Ok((connection.lacking(silent), shards))
}

/// Lets a latch fall that has seen nothing yet.
fn fall(lane: &Lane) {
    while !lane.latch.is_down() {
        lane.missed(&Failure::Timeout, Instant::now());
    }
}

/// The lanes that lead somewhere.
fn lanes_in_use(fleet: &Fleet) -> &[Arc<Lane>] {
    let highest = fleet.lane_of.iter().flatten().map(|lane| lane.load(Ordering::Relaxed)).max().unwrap_or(0);
    &fleet.lanes[..=usize::from(highest).min(fleet.lanes.len() - 1)]
}

async fn look_up_shards(fleet: &Fleet, connection: &Connection) {
    if let Some(shards) = shards(connection).await {
        spread(fleet, &shards);
    }
}

async fn shards(connection: &Connection) -> Option<Shards> {
    timeout(2 * CONNECT, connection.shards()).await.ok().flatten()
}

/// Gives each shard a lane, so that its outage is that lane's alone.
fn spread(fleet: &Fleet, shards: &Shards) {
    let Some(lane_of) = &fleet.lane_of else { return };
    for (number, ranges) in shards.iter().enumerate() {
        let lane = u8::try_from(number % fleet.lanes.len()).unwrap_or(0);
        for slot in ranges.iter().flat_map(|(first, last)| *first..=*last) {
            if let Some(place) = lane_of.get(usize::from(slot)) {
                place.store(lane, Ordering::Relaxed);
            }
        }
    }
}

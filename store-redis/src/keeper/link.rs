//! Watches the latches: tells when one falls, probes until it can be lifted, and tells that too. Beside it somebody
//! sees to the connection (`dialling`), so that neither keeps the other waiting.
//!
//! Probes run a real script that writes, because `PING` is answered by servers that can do nothing else. They wait
//! longer each time, with jitter, so that a fleet does not come back all at once; three good ones in a row, quickly one
//! after the other, end the outage.

mod dialling;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use phalanx_core::event::EventKind;
use phalanx_lua as lua;
use tokio::time::{Instant, sleep_until};

use crate::failure::Failure;
use crate::fleet::Fleet;
use crate::keys::Key;
use crate::lane::Lane;
use crate::wire::RedisWire;

/// The first wait between two probes, doubled up to [`LONGEST`].
const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(2);
/// For what only an operator can mend.
const OPERATORS: Duration = Duration::from_secs(30);
/// Between good probes.
const CONFIRM: Duration = Duration::from_millis(25);
/// How long a probe's key lives.
const PROBE_LIVES: Duration = Duration::from_secs(60);
/// Every so many failed probes of a shard, another connection to the Cluster is tried.
const SCOUT_EVERY: u32 = 2;

/// One lane's outage, as the keeper sees it.
struct Watch {
    lane: Arc<Lane>,
    number: usize,
    /// The fall that has been told of.
    told: u64,
    down: bool,
    /// A probe is under way.
    probing: bool,
    failed: u32,
    /// The next one goes over another connection.
    scout: bool,
    next: Instant,
}

/// Tends connection and latches for ever.
pub(super) async fn tend(fleet: &Arc<Fleet>, wire: &RedisWire) {
    tokio::join!(dialling::keep_connected(fleet, wire), watch(fleet, wire));
}

async fn watch(fleet: &Arc<Fleet>, wire: &RedisWire) {
    let watch = |(number, lane): (usize, &Arc<Lane>)| {
        let told = lane.latch.falls() - u64::from(lane.latch.is_down());
        let (lane, next) = (lane.clone(), Instant::now());
        Watch { lane, number, told, down: false, probing: false, failed: 0, scout: false, next }
    };
    let mut watches: Vec<Watch> = fleet.lanes.iter().enumerate().map(watch).collect();
    let mut probes = FuturesUnordered::new();
    loop {
        watches.iter_mut().for_each(|watch| watch.notice(fleet, wire));
        let now = Instant::now();
        let mut next = now + Duration::from_secs(3_600);
        for watch in watches.iter_mut().filter(|watch| watch.down && !watch.probing && wire.connection().is_some()) {
            if watch.next <= now {
                watch.probing = true;
                probes.push(probe(fleet, wire, watch.number, watch.scout));
            } else {
                next = next.min(watch.next);
            }
        }
        tokio::select! {
            () = sleep_until(next) => {}
            () = fleet.wake.notified() => {}
            Some((number, result)) = probes.next() => watches[number].judge(fleet, wire, &result),
        }
    }
}

impl Watch {
    /// Notices that the latch has fallen: tells it once, and lets nobody answer from hearsay.
    fn notice(&mut self, fleet: &Fleet, wire: &RedisWire) {
        let falls = self.lane.latch.falls();
        if falls == self.told {
            return;
        }
        self.told = falls;
        let reason = self.lane.latch.reason().unwrap_or(Failure::Connection);
        (self.down, self.failed, self.scout) = (true, 0, false);
        self.next = Instant::now() + wait(fleet, 0, &reason);
        fleet.observers.emit_all(EventKind::StoreDegraded { reason: reason.word() });
        fleet.keeping.circuits.all().iter().for_each(|circuit| circuit.go_alone());
        // A connection that swallows everything, or leads to a server that is no master any more, would stay so for
        // ever. A Cluster's leads to other shards too.
        if !wire.source.is_cluster() {
            wire.discard(None);
        }
    }

    /// Takes a probe's word.
    fn judge(&mut self, fleet: &Fleet, wire: &RedisWire, result: &Result<(), Failure>) {
        (self.probing, self.scout) = (false, false);
        match (result, self.lane.latch.probed(result.is_ok(), Instant::now())) {
            (_, Some(outage)) => {
                self.down = false;
                let (outage, degraded_decisions) = (outage.lasted, outage.degraded_decisions);
                fleet.observers.emit_all(EventKind::StoreRecovered { outage, degraded_decisions });
                fleet.keeping.circuits.all().iter().for_each(|circuit| circuit.come_back());
                fleet.keeping.digests.all().iter().for_each(|digest| digest.tick(true));
            }
            (Ok(()), None) => self.next = Instant::now() + CONFIRM,
            (Err(failure), None) => {
                self.failed += 1;
                self.scout = wire.source.is_cluster() && self.failed.is_multiple_of(SCOUT_EVERY);
                self.next = Instant::now() + wait(fleet, self.failed, failure);
                if !wire.source.is_cluster() {
                    wire.discard(None);
                }
            }
        }
    }
}

/// Probes a lane. Where a shard has failed often, or is not to be reached by the connection there is, over a new one; callers
/// on other shards stay on the old one until the new one has shown that it reaches more.
async fn probe(fleet: &Fleet, wire: &RedisWire, number: usize, scout: bool) -> (usize, Result<(), Failure>) {
    let unreachable = wire.connection().is_some_and(|connection| connection.lacks(number));
    if (scout || unreachable)
        && let Err(failure) = dialling::scout(fleet, wire, number).await
    {
        return (number, Err(failure));
    }
    let mut call = fleet.call(&lua::PROBE, &[&probe_key(fleet, number)]);
    call.arg(PROBE_LIVES.as_micros() as u64);
    (number, fleet.lanes[number].probe(call).await)
}

/// Anything between nothing and the longest wait after so many failures: replicas that fell together come back apart.
fn wait(fleet: &Fleet, failed: u32, failure: &Failure) -> Duration {
    let most = if failure.needs_an_operator() { OPERATORS } else { LONGEST };
    let longest = SHORTEST.saturating_mul(1 << failed.min(10)).min(most);
    fleet.rng.between(Duration::ZERO, longest)
}

/// A key that lies on the lane's own server.
fn probe_key(fleet: &Fleet, lane: usize) -> Key {
    let leads_here = |n: &u32| std::ptr::eq(&**fleet.lane(fleet.keys.probe(*n).slot), &*fleet.lanes[lane]);
    let n = (0..1_024).find(leads_here).unwrap_or(0);
    fleet.keys.probe(n)
}

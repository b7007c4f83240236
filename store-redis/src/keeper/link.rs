//! Tends the connection: dials when there is none, probes when a latch is down, and says so once.
//!
//! Probes run a real script that writes, because `PING` is answered by servers that can do nothing else. They wait
//! longer each time, with jitter, so that a fleet does not come back all at once; three good ones in a row, quickly one
//! after the other, end the outage.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use phalanx_core::event::What;
use phalanx_lua as lua;
use tokio::time::{Instant, sleep_until};

use crate::failure::Failure;
use crate::fleet::Fleet;
use crate::lane::Lane;
use crate::wire::RedisWire;

/// The first wait between two probes, doubled up to [`LONGEST`].
const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(2);
/// For what only an operator can mend.
const OPERATORS: Duration = Duration::from_secs(30);
/// Between good probes.
const CONFIRM: Duration = Duration::from_millis(25);
/// Before a connection that broke is opened again.
const REDIAL: Duration = Duration::from_millis(5);
/// How long a probe's key lives.
const PROBE_LIVES: Duration = Duration::from_secs(60);
/// How often the shards of a Cluster are looked up.
const TOPOLOGY: Duration = Duration::from_secs(5);

/// One lane's outage, as the keeper sees it.
struct Watch {
    lane: Arc<Lane>,
    number: usize,
    /// The fall that has been told of.
    told: u64,
    down: bool,
    failed: u32,
    next: Instant,
}

/// Tends the connection for ever.
pub(super) async fn tend(fleet: &Arc<Fleet>, wire: &RedisWire) {
    let watch = |(number, lane): (usize, &Arc<Lane>)| {
        let told = lane.latch.falls() - u64::from(lane.latch.is_down());
        Watch { lane: lane.clone(), number, told, down: false, failed: 0, next: Instant::now() }
    };
    let mut watches: Vec<Watch> = fleet.lanes.iter().enumerate().map(watch).collect();
    let mut redial = Instant::now();
    let mut dials: u32 = 0;
    let mut topology = Instant::now();
    loop {
        let now = Instant::now();
        for watch in &mut watches {
            watch.notice(fleet, wire);
        }
        if wire.connection().is_none() && now >= redial {
            match wire.source.dial().await {
                Ok(connection) => {
                    (dials, topology) = (0, now);
                    wire.put(connection);
                }
                Err(failure) => {
                    dials += 1;
                    let sent = Instant::now();
                    fleet.lanes.iter().for_each(|lane| lane.missed(&failure, sent));
                    let wait = if dials < 3 { REDIAL } else { wait(fleet, dials - 2, &failure) };
                    redial = Instant::now() + wait;
                }
            }
        }
        if fleet.lane_of.is_some() && now >= topology {
            topology = Instant::now() + TOPOLOGY;
            look_up_shards(fleet, wire).await;
        }
        for watch in watches.iter_mut().filter(|watch| watch.down) {
            if wire.connection().is_some() && Instant::now() >= watch.next {
                watch.probe(fleet, wire).await;
            }
        }
        let wanted = if wire.connection().is_none() { Some(redial) } else { None };
        let probing = watches.iter().filter(|watch| watch.down && wire.connection().is_some()).map(|watch| watch.next);
        let shards = fleet.lane_of.is_some().then_some(topology);
        let idle = Instant::now() + Duration::from_secs(3_600);
        let next = probing.chain(wanted).chain(shards).min().unwrap_or(idle);
        tokio::select! {
            () = sleep_until(next) => {}
            () = fleet.wake.notified() => {}
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
        (self.down, self.failed) = (true, 0);
        self.next = Instant::now() + wait(fleet, 0, &reason);
        fleet.observers.tell_all(What::StoreDegraded { reason: reason.word() });
        fleet.keeping.circuits.all().iter().for_each(|circuit| circuit.go_alone());
        // A connection that swallows everything, or leads to a server that is no master any more, would stay so for
        // ever. A Cluster's leads to other shards too.
        if !wire.source.is_cluster() {
            wire.discard(None);
        }
    }

    async fn probe(&mut self, fleet: &Arc<Fleet>, wire: &RedisWire) {
        let key = probe_key(fleet, self.number);
        let mut call = fleet.call(&lua::PROBE, &[&key]);
        call.arg(PROBE_LIVES.as_micros() as u64);
        let result = self.lane.probe(call).await;
        match (&result, self.lane.latch.probed(result.is_ok(), Instant::now())) {
            (_, Some(outage)) => {
                self.down = false;
                let (outage, decided_locally) = (outage.lasted, outage.decided_locally);
                fleet.observers.tell_all(What::StoreRecovered { outage, decided_locally });
                fleet.keeping.circuits.all().iter().for_each(|circuit| circuit.come_back());
                fleet.keeping.digests.all().iter().for_each(|digest| digest.tick(true));
            }
            (Ok(()), None) => self.next = Instant::now() + CONFIRM,
            (Err(failure), None) => {
                self.failed += 1;
                self.next = Instant::now() + wait(fleet, self.failed, failure);
                if !wire.source.is_cluster() || self.failed.is_multiple_of(3) {
                    wire.discard(None);
                }
            }
        }
    }
}

/// Anything between nothing and the longest wait after so many failures: replicas that fell together come back apart.
fn wait(fleet: &Fleet, failed: u32, failure: &Failure) -> Duration {
    let most = if failure.needs_an_operator() { OPERATORS } else { LONGEST };
    let longest = SHORTEST.saturating_mul(1 << failed.min(10)).min(most);
    fleet.rng.between(Duration::ZERO, longest)
}

/// A key that lies on the lane's own server.
fn probe_key(fleet: &Fleet, lane: usize) -> crate::keys::Key {
    let leads_here = |n: &u32| std::ptr::eq(&**fleet.lane(fleet.keys.probe(*n).slot), &*fleet.lanes[lane]);
    let n = (0..1_024).find(leads_here).unwrap_or(0);
    fleet.keys.probe(n)
}

/// Learns which slots lie together, so that one shard's outage is one lane's.
async fn look_up_shards(fleet: &Fleet, wire: &RedisWire) {
    let (Some(connection), Some(lane_of)) = (wire.connection(), &fleet.lane_of) else { return };
    let looked = tokio::time::timeout(crate::source::DIAL, connection.shards()).await;
    let Ok(Some(shards)) = looked else { return };
    for (number, ranges) in shards.iter().enumerate() {
        let lane = u8::try_from(number % fleet.lanes.len()).unwrap_or(0);
        for slot in ranges.iter().flat_map(|(first, last)| *first..=*last) {
            if let Some(place) = lane_of.get(usize::from(slot)) {
                place.store(lane, Ordering::Relaxed);
            }
        }
    }
}

//! Connection health: emits an event when a latch trips, checks until the latch can be lifted, and emits an event then.
//! The connection itself is kept in `connect.rs`, concurrently, so that neither waits for the other.
//!
//! A health check runs a script that writes, because servers that can serve nothing else still answer `PING`. The
//! interval grows with every failure, and over outages that follow closely, with jitter, so that the replicas do not
//! return all at once. Three successful checks in a row end the outage.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use phalanx_core::event::EventKind;
use phalanx_core::rng::Rng;
use phalanx_lua as lua;
use tokio::time::{Instant, sleep_until};

use super::connect;
use super::slowness::Slowness;
use crate::dispatcher::Dispatcher;
use crate::failure::Failure;
use crate::keys::Key;
use crate::store::inner::StoreInner;
use crate::wire::RedisWire;

/// The interval after the first failure, doubled up to [`MAX_HEALTH_CHECK_INTERVAL`].
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_millis(250);
const MAX_HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The maximum for errors that only an operator can fix, such as wrong credentials.
const OPERATOR_HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The interval between successful checks.
const CONFIRM_INTERVAL: Duration = Duration::from_millis(25);
/// An outage this soon after another follows closely: the server serves checks and not the load of callers.
const CLOSE: Duration = Duration::from_secs(30);
/// The TTL of the key that a check writes.
const HEALTH_KEY_TTL: Duration = Duration::from_secs(60);
/// After this many failed checks of a shard, a new connection to the Cluster is tried.
const NEW_CONNECTION_EVERY: u32 = 2;

/// The health of one dispatcher.
struct DispatcherHealth {
    dispatcher: Arc<Dispatcher>,
    number: usize,
    /// The last trip for which an event was emitted.
    reported_trip: u64,
    down: bool,
    /// A check is in flight.
    checking: bool,
    failed: u32,
    /// Outages that each followed closely on the one before. The waits of all their checks count.
    close_outages: u32,
    recovered: Option<Instant>,
    /// The next check opens a new connection.
    new_connection: bool,
    next: Instant,
}

/// Keeps the connection and checks the latches until the task ends.
pub(super) async fn run(store: &Arc<StoreInner>, wire: &RedisWire) {
    tokio::join!(connect::run(store, wire), check_all(store, wire));
}

async fn check_all(store: &Arc<StoreInner>, wire: &RedisWire) {
    let health = |(number, dispatcher): (usize, &Arc<Dispatcher>)| {
        let reported_trip = dispatcher.latch.trips() - u64::from(dispatcher.latch.is_down());
        let (dispatcher, next) = (dispatcher.clone(), Instant::now());
        DispatcherHealth {
            dispatcher,
            number,
            reported_trip,
            down: false,
            checking: false,
            failed: 0,
            close_outages: 0,
            recovered: None,
            new_connection: false,
            next,
        }
    };
    let mut all: Vec<DispatcherHealth> = store.dispatchers.iter().enumerate().map(health).collect();
    let (mut checks, mut slowness) = (FuturesUnordered::new(), Slowness::default());
    loop {
        slowness.check(store);
        all.iter_mut().for_each(|health| health.on_trip(store, wire));
        let now = Instant::now();
        let mut next = now + Duration::from_secs(3_600);
        for health in all.iter_mut().filter(|health| health.down && !health.checking && wire.connection().is_some()) {
            if health.next <= now {
                health.checking = true;
                checks.push(health_check(store, wire, health.number, health.new_connection));
            } else {
                next = next.min(health.next);
            }
        }
        tokio::select! {
            biased;
            Some((number, result)) = checks.next() => all[number].on_result(store, wire, &result),
            () = store.wake.notified() => {}
            () = sleep_until(next) => {}
        }
    }
}

impl DispatcherHealth {
    /// Handles a trip of the latch: emits the event once, and switches all breakers to their twins.
    fn on_trip(&mut self, store: &StoreInner, wire: &RedisWire) {
        let trips = self.dispatcher.latch.trips();
        if trips == self.reported_trip {
            return;
        }
        self.reported_trip = trips;
        let reason = self.dispatcher.latch.reason().unwrap_or(Failure::Connection);
        (self.down, self.failed, self.new_connection) = (true, 0, false);
        let close = self.recovered.is_some_and(|recovered| recovered.elapsed() < CLOSE);
        self.close_outages = if close { self.close_outages + 1 } else { 0 };
        self.next = Instant::now() + backoff(&store.rng, self.close_outages, &reason);
        store.observers.emit_all(EventKind::StoreDegraded { reason: reason.label() });
        store.background.breakers.all().iter().for_each(|breaker| breaker.enter_degraded());
        // A connection that never replies, or leads to a server that is no longer the master, would stay like that. A
        // Cluster connection is kept, because it serves other shards too.
        if !wire.redis.is_cluster() {
            wire.discard(None);
        }
    }

    /// Handles the result of a check.
    fn on_result(&mut self, store: &StoreInner, wire: &RedisWire, result: &Result<(), Failure>) {
        (self.checking, self.new_connection) = (false, false);
        match (result, self.dispatcher.latch.record_health_check(result.is_ok(), Instant::now())) {
            (_, Some(outage)) => {
                (self.down, self.recovered) = (false, Some(Instant::now()));
                let (outage, degraded_decisions) = (outage.lasted, outage.degraded_decisions);
                store.observers.emit_all(EventKind::StoreRecovered { outage, degraded_decisions });
                store.background.breakers.all().iter().for_each(|breaker| breaker.leave_degraded());
                store.background.changes.check_soon(store);
            }
            (Ok(()), None) => self.next = Instant::now() + CONFIRM_INTERVAL,
            (Err(failure), None) => {
                self.failed += 1;
                self.new_connection = wire.redis.is_cluster() && self.failed.is_multiple_of(NEW_CONNECTION_EVERY);
                self.next =
                    Instant::now() + backoff(&store.rng, self.failed.saturating_add(self.close_outages), failure);
                if !wire.redis.is_cluster() {
                    wire.discard(None);
                }
            }
        }
    }
}

/// Checks one dispatcher. If its shard failed often, or the current connection does not reach it, a new connection is
/// tried; callers of other shards stay on the current one until the new one has proved to reach more.
async fn health_check(
    store: &StoreInner,
    wire: &RedisWire,
    number: usize,
    new_connection: bool,
) -> (usize, Result<(), Failure>) {
    let unreachable = wire.connection().is_some_and(|connection| connection.unreachable(number));
    if (new_connection || unreachable)
        && let Err(failure) = connect::try_new_connection(store, wire, number).await
    {
        return (number, Err(failure));
    }
    let mut call = store.invocation(&lua::PROBE, &[&health_check_key(store, number)]);
    call.arg(HEALTH_KEY_TTL.as_micros() as u64);
    (number, store.dispatchers[number].health_check(call).await)
}

/// Returns a random wait between zero and the maximum after `failed` failures, so that replicas do not retry in step.
pub(super) fn backoff(rng: &Rng, failed: u32, failure: &Failure) -> Duration {
    let max = if failure.needs_operator() { OPERATOR_HEALTH_CHECK_INTERVAL } else { MAX_HEALTH_CHECK_INTERVAL };
    let limit = HEALTH_CHECK_INTERVAL.saturating_mul(1 << failed.min(10)).min(max);
    rng.between(Duration::ZERO, limit)
}

/// A key whose slot belongs to this dispatcher.
fn health_check_key(store: &StoreInner, dispatcher: usize) -> Key {
    let belongs_here =
        |n: &u32| std::ptr::eq(&**store.dispatcher(store.keys.health_check(*n).slot), &*store.dispatchers[dispatcher]);
    let n = (0..1_024).find(belongs_here).unwrap_or(0);
    store.keys.health_check(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the longest of many waits, rounded up to milliseconds, and asserts that they are spread down to zero.
    fn longest(wait: impl Fn(&Rng) -> Duration) -> u128 {
        let rng = Rng::seeded(1);
        let waits: Vec<Duration> = (0..20_000).map(|_| wait(&rng)).collect();
        let longest = waits.iter().max().unwrap().as_millis() + 1;
        assert!(waits.iter().min().unwrap().as_millis() <= longest / 1_000, "the shortest is close to zero");
        longest
    }

    #[test]
    fn the_wait_doubles_with_every_failure_up_to_two_seconds() {
        for (failed, millis) in [(0, 250), (1, 500), (2, 1_000), (3, 2_000), (4, 2_000), (1_000, 2_000)] {
            assert_eq!(longest(|rng| backoff(rng, failed, &Failure::Timeout)), millis, "after {failed} failures");
        }
    }

    #[test]
    fn an_error_that_needs_an_operator_waits_up_to_half_a_minute() {
        let wrong_password = Failure::Rejecting("NOAUTH");
        assert!(wrong_password.needs_operator());
        for (failed, millis) in [(0, 250), (6, 16_000), (7, 30_000), (1_000, 30_000)] {
            let longest = longest(|rng| backoff(rng, failed, &wrong_password));
            assert!((millis - 2..=millis).contains(&longest), "{longest} after {failed} failures");
        }
    }
}

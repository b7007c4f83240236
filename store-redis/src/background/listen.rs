//! Receives pushes: transitions caused by other replicas, released locks, and ended claims of idempotency keys.
//!
//! A push carries the state of the breaker, so no request is needed. Pushes can be lost: every breaker is polled once
//! after each (re)subscription (`catch_up.rs`), and a breaker in use is polled in every sync round anyway.
//!
//! The subscription has a connection of its own, so two things are checked. A subscription counts as working only once it
//! has lived for [`STABLE_AFTER`]: one that is cut at once, as by a proxy, is retried more and more slowly. And it is made
//! again whenever the connection for commands was replaced: after a failover it may be on the old master, which still
//! answers pings and on which no script publishes any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::breaker::Provenance;
use crate::breaker::codec::decode_push;
use crate::failure::Failure;
use crate::redis_connection::Subscription;
use crate::store::inner::StoreInner;
use crate::wire::RedisWire;

/// How often the subscription is checked.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(1);
/// The pause before the first attempt to subscribe again, doubled up to the maximum.
const RESUBSCRIBE_DELAY: Duration = Duration::from_millis(50);
const MAX_RESUBSCRIBE_DELAY: Duration = Duration::from_secs(2);
/// A subscription that has lived this long works.
const STABLE_AFTER: Duration = Duration::from_secs(3);
/// Without a subscription that works for this long, pushes are lost.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// Attempts to subscribe since a subscription has worked.
struct Attempts {
    failed: u32,
    since: Instant,
}

/// Subscribes and receives until the task ends.
pub(super) async fn run(store: &Arc<StoreInner>, wire: &RedisWire) {
    let mut connections = wire.connections();
    let mut attempts = Attempts { failed: 0, since: Instant::now() };
    loop {
        connections.mark_unchanged(); // what is opened from here on is newer than the subscription
        let ended = match wire.redis.subscribe(&store.channel).await {
            // This kind of connection cannot subscribe; the sync loop has to do.
            None => return std::future::pending().await,
            Some(Err(failure)) => Some(failure),
            Some(Ok(subscription)) => {
                store.background.catch_up.begin(store);
                store.subscribed.store(true, Ordering::Relaxed);
                let ended = receive(store, wire, subscription, &mut connections, &mut attempts).await;
                store.subscribed.store(false, Ordering::Relaxed);
                ended
            }
        };
        if let Some(failure) = ended {
            attempts.failed += 1;
            attempts.report(store, &failure);
        }
        let longest = RESUBSCRIBE_DELAY.saturating_mul(1 << attempts.failed.min(8)).min(MAX_RESUBSCRIBE_DELAY);
        sleep(store.rng.between(Duration::ZERO, longest)).await;
    }
}

impl Attempts {
    /// Records that a subscription works.
    fn succeeded(&mut self, store: &StoreInner) {
        self.failed = 0;
        store.push_health.subscribed(&store.observers);
    }

    /// Emits that pushes are lost, unless that is new. While Redis as a whole is unreachable, or no heartbeat was answered
    /// yet, that is the event.
    fn report(&self, store: &StoreInner, failure: &Failure) {
        let unreachable = store.dispatchers_in_use().iter().all(|dispatcher| dispatcher.latch.is_down());
        let joined = store.replicas.load(Ordering::Relaxed) > 0;
        if joined && !unreachable && self.since.elapsed() >= LOST_AFTER {
            store.push_health.subscription_lost(&store.observers, failure.label());
        }
    }
}

/// Receives until the subscription ends. Returns why; `None` if it ends only because the connection was replaced.
async fn receive(
    store: &StoreInner,
    wire: &RedisWire,
    mut subscription: Subscription,
    connections: &mut watch::Receiver<u64>,
    attempts: &mut Attempts,
) -> Option<Failure> {
    let mut alive = interval(LIVENESS_INTERVAL);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stable_at = Instant::now() + STABLE_AFTER;
    let mut stable = false;
    let ended = loop {
        tokio::select! {
            biased; // while messages arrive, the subscription needs no other check
            message = subscription.messages.next() => match message {
                Some(message) => dispatch(store, &message),
                None => break Some(Failure::Connection),
            },
            // The first connection replaces none. A Cluster subscription follows its masters by itself.
            Ok(()) = connections.changed() => {
                if *connections.borrow_and_update() > 1 && !wire.redis.is_cluster() {
                    break None;
                }
            }
            () = sleep_until(stable_at), if !stable => {
                stable = true;
                attempts.succeeded(store);
            }
            _ = alive.tick() => if !subscription.check_alive().await { break Some(Failure::Timeout) },
        }
    };
    if stable {
        attempts.since = Instant::now();
    }
    ended
}

/// Applies one push. Those of this replica itself are skipped: their state arrived with the reply.
fn dispatch(store: &StoreInner, message: &str) {
    if let Some(lock) = message.strip_prefix("lock ") {
        return store.lock_releases.notify(lock);
    }
    if let Some(request) = message.strip_prefix("request ") {
        return store.request_ends.notify(request);
    }
    if let Some(message) = decode_push(message)
        && message.sender != store.owner
        && let Some(breaker) = store.background.breakers.get(message.id)
    {
        breaker.apply(message.snapshot, message.entry, message.change.as_slice(), Provenance::Push);
    }
}

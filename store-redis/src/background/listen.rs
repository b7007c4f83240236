//! Receives pushes: transitions caused by other replicas, released locks, and ended claims of idempotency keys.
//!
//! A push carries the state of the breaker, so no request is needed. Pushes can be lost: their numbers show it
//! (`changes.rs`), and they are compared after each subscription.
//!
//! The subscription has a connection of its own, so two things are checked. A subscription counts as working only once it
//! has lived for [`STABLE_AFTER`]: one that is cut at once, as by a proxy, is retried more and more slowly. And it is made
//! again whenever the connection for commands was replaced: after a failover it may be on the old master, which still
//! answers pings and on which no script publishes any more. Until the new one is made, and for a moment longer, the former one
//! is received from, too: most connections are replaced in an outage that is not one of pushes, after every health check.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use phalanx_core::task;
use phalanx_lua as lua;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::breaker::codec::{AskMessage, decode_ask, decode_push};
use crate::breaker::{Provenance, answer_span};
use crate::failure::Failure;
use crate::keys::Keys;
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
/// How long the former subscription is received from beside the new one: what was published before the new one was made may
/// still be on its way. What arrives twice is ignored.
const OVERLAP: Duration = Duration::from_millis(100);
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
    let mut former: Option<Subscription> = None;
    loop {
        connections.mark_unchanged(); // what is opened from here on is newer than the subscription
        let subscribing = wire.redis.subscribe(&store.channel);
        let ended = match receive_during(store, &mut former, subscribing).await {
            // This kind of connection cannot subscribe; the sync loop has to do.
            None => return std::future::pending().await,
            Some(Err(failure)) => Some(failure),
            Some(Ok(subscription)) => {
                store.subscribed.store(true, Ordering::Relaxed);
                store.background.changes.check_soon(store);
                let subscriptions = Subscriptions { current: subscription, former: former.take() };
                let ended;
                (ended, former) = receive(store, wire, subscriptions, &mut connections, &mut attempts).await;
                store.subscribed.store(false, Ordering::Relaxed);
                ended
            }
        };
        if let Some(failure) = ended {
            attempts.failed += 1;
            attempts.report(store, &failure);
        }
        let longest = RESUBSCRIBE_DELAY.saturating_mul(1 << attempts.failed.min(8)).min(MAX_RESUBSCRIBE_DELAY);
        let pause = sleep(store.rng.between(Duration::ZERO, longest));
        receive_during(store, &mut former, pause).await;
    }
}

/// The subscription, and for a moment the one before it.
struct Subscriptions {
    current: Subscription,
    former: Option<Subscription>,
}

/// Waits for a future, and receives from the former subscription meanwhile, until that ends.
async fn receive_during<T>(
    store: &Arc<StoreInner>,
    former: &mut Option<Subscription>,
    awaited: impl Future<Output = T>,
) -> T {
    let mut awaited = pin!(awaited);
    loop {
        tokio::select! {
            biased;
            message = next_of(former) => match message {
                Some(message) => dispatch(store, &message),
                None => *former = None,
            },
            done = &mut awaited => return done,
        }
    }
}

/// Returns the next message of a subscription, if there is one; `None` when it ends.
async fn next_of(subscription: &mut Option<Subscription>) -> Option<String> {
    match subscription {
        Some(subscription) => subscription.messages.next().await,
        None => std::future::pending().await,
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

/// Receives until the current subscription ends or has to be replaced, because it may lead to a server on which nothing is
/// published any more. Returns why it ended, and the subscription that is received from until there is another one.
async fn receive(
    store: &Arc<StoreInner>,
    wire: &RedisWire,
    Subscriptions { mut current, mut former }: Subscriptions,
    connections: &mut watch::Receiver<u64>,
    attempts: &mut Attempts,
) -> (Option<Failure>, Option<Subscription>) {
    let mut alive = interval(LIVENESS_INTERVAL);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let made = Instant::now();
    let mut stable = false;
    let failure = loop {
        tokio::select! {
            biased; // while messages arrive, the subscription needs no other check
            message = current.messages.next() => match message {
                Some(message) => dispatch(store, &message),
                None => break Some(Failure::Connection),
            },
            message = next_of(&mut former) => match message {
                Some(message) => dispatch(store, &message),
                None => former = None,
            },
            () = sleep_until(made + OVERLAP), if former.is_some() => former = None,
            // The first connection replaces none. A Cluster subscription follows its masters by itself.
            Ok(()) = connections.changed() => {
                if *connections.borrow_and_update() > 1 && !wire.redis.is_cluster() {
                    break None;
                }
            }
            () = sleep_until(made + STABLE_AFTER), if !stable => {
                stable = true;
                attempts.succeeded(store);
            }
            () = store.background.changes.resubscribe.notified() => break None,
            _ = alive.tick() => if !current.check_alive().await { break Some(Failure::Timeout) },
        }
    };
    if stable {
        attempts.since = Instant::now();
    }
    let kept = if failure.is_none() { Some(current) } else { former };
    (failure, kept)
}

/// Applies one push. Those of this replica itself are skipped: their state arrived with the reply.
fn dispatch(store: &Arc<StoreInner>, message: &str) {
    if let Some(lock) = message.strip_prefix("lock ") {
        return store.lock_releases.notify(lock);
    }
    if let Some(request) = message.strip_prefix("request ") {
        return store.request_ends.notify(request);
    }
    let background = &store.background;
    if let Some(ask) = message.strip_prefix("ask ") {
        if let Some(ask) = decode_ask(ask) {
            on_ask(store, &ask);
        }
    } else if let Some(message) = decode_push(message) {
        if message.sender != store.owner
            && let Some(breaker) = background.breakers.get(message.id)
        {
            breaker.apply(message.snapshot, message.entry, message.change.as_slice(), Provenance::Push);
        }
        if let Some(key) = store.keys.breaker_of_id(message.id) {
            background.changes.on_push(key.partition, message.change_number);
        }
    }
}

/// Answers a call for evidence, if this replica is among those asked: with what it has not sent, or that it has not used
/// the breaker.
fn on_ask(store: &Arc<StoreInner>, ask: &AskMessage<'_>) {
    let Some(key) = store.keys.breaker_of_id(ask.id) else { return };
    store.background.changes.on_push(key.partition, ask.change_number);
    // The replicas that are asked differ from call to call.
    let live = u64::from(store.shares.live()).max(1);
    let drawn = (store.owner ^ ask.call).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    if ask.sender == store.owner || drawn % live >= u64::from(ask.asked) {
        return;
    }
    if let Some(breaker) = store.background.breakers.get(ask.id) {
        return breaker.answer_call(ask.call, ask.asked);
    }
    let (store, call, asked) = (store.clone(), ask.call, ask.asked);
    task::spawn(
        async move {
            sleep(store.rng.between(Duration::ZERO, answer_span(asked))).await;
            let mut abstain = store.invocation(&lua::BREAKER_ABSTAIN, &[&Keys::evidence(&key)]);
            abstain.arg(store.owner).arg(call);
            let _ = store.dispatcher(key.slot).call(abstain).await;
        },
        None,
    );
}

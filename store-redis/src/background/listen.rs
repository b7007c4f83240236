//! Receives pushes: transitions caused by other replicas, and released locks.
//!
//! A push carries the state of the breaker, so no request is needed. Pushes can be lost: every breaker is polled once
//! after each (re)subscription, and a breaker in use is polled in every sync round anyway.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::breaker::Provenance;
use crate::breaker::codec::decode_push;
use crate::redis_connection::Subscription;
use crate::store::inner::StoreInner;
use crate::wire::RedisWire;

/// How often the subscription is checked.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RESUBSCRIBE_DELAY: Duration = Duration::from_secs(2);

/// Subscribes and receives until the task ends.
pub(super) async fn run(store: &Arc<StoreInner>, wire: &RedisWire) {
    let mut failed: u32 = 0;
    loop {
        match wire.redis.subscribe(&store.channel).await {
            // This kind of connection cannot subscribe; the sync loop has to do.
            None => return std::future::pending().await,
            Some(Err(_)) => failed += 1,
            Some(Ok(subscription)) => {
                failed = 0;
                store.background.breakers.all().iter().for_each(|breaker| breaker.tick(true));
                receive(store, subscription).await;
            }
        }
        let longest = Duration::from_millis(50).saturating_mul(1 << failed.min(8)).min(MAX_RESUBSCRIBE_DELAY);
        sleep(store.rng.between(Duration::ZERO, longest)).await;
    }
}

async fn receive(store: &StoreInner, mut subscription: Subscription) {
    let mut alive = interval(LIVENESS_INTERVAL);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased; // while messages arrive, the subscription needs no other check
            message = subscription.messages.next() => match message {
                Some(message) => dispatch(store, &message),
                None => return,
            },
            _ = alive.tick() => if !subscription.check_alive().await { return },
        }
    }
}

/// Applies one push. Those of this replica itself are skipped: their state arrived with the reply.
fn dispatch(store: &StoreInner, message: &str) {
    if let Some(lock) = message.strip_prefix("lock ") {
        return store.lock_releases.notify(lock);
    }
    if let Some(message) = decode_push(message)
        && message.sender != store.owner
        && let Some(breaker) = store.background.breakers.get(message.id)
    {
        breaker.apply(message.snapshot, message.entry, message.change.as_slice(), Provenance::Push);
    }
}

//! Listens for changes of phase that other replicas bring about, and for locks that they release.
//!
//! A message says how the circuit stands, so nobody has to ask. Messages can be lost, so whenever the subscription is
//! made (again), every circuit is asked after once; and circuits in use are asked after in every round anyway.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::circuit::Word;
use crate::circuit::view::pushed;
use crate::fleet::Fleet;
use crate::source::Subscription;
use crate::wire::RedisWire;

/// Between two looks whether the other end still answers.
const ALIVE: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Listens for ever.
pub(super) async fn to_others(fleet: &Arc<Fleet>, wire: &RedisWire) {
    let mut failed: u32 = 0;
    loop {
        match wire.source.subscribe(&fleet.channel).await {
            // This source cannot: the rounds have to do.
            None => return std::future::pending().await,
            Some(Err(_)) => failed += 1,
            Some(Ok(subscription)) => {
                failed = 0;
                fleet.keeping.circuits.all().iter().for_each(|circuit| circuit.tick(true));
                follow(fleet, subscription).await;
            }
        }
        let longest = Duration::from_millis(50).saturating_mul(1 << failed.min(8)).min(LONGEST_WAIT);
        sleep(fleet.rng.between(Duration::ZERO, longest)).await;
    }
}

async fn follow(fleet: &Fleet, mut subscription: Subscription) {
    let mut alive = interval(ALIVE);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = subscription.messages.next() => match message {
                Some(message) => hear(fleet, &message),
                None => return,
            },
            _ = alive.tick() => if !subscription.is_alive().await { return },
        }
    }
}

/// What this replica did itself it hears of in the reply.
fn hear(fleet: &Fleet, message: &str) {
    if let Some(lock) = message.strip_prefix("lock ") {
        return fleet.bells.notify(lock);
    }
    if let Some(message) = pushed(message)
        && message.by != fleet.owner
        && let Some(circuit) = fleet.keeping.circuits.get(message.id)
    {
        circuit.learn(message.view, message.change.as_slice(), Word::Push);
    }
}

//! What observers are told. Nothing is computed for them unless somebody listens.
//!
//! A change of phase is told before the `Retry` or `Finished` of the attempt that caused it.
//!
//! An observer is called in line, so it must be quick. One that panics is caught and told nothing more after
//! [`PANICS_FORGIVEN`] panics: telemetry never takes a call down.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::breaker::{Forced, Transition};
use crate::bulkhead::Lowered;
use crate::decision::Decision;
use crate::drain::Drained;
use crate::key::StateKey;
use crate::kind::{Kind, Outcome};
use crate::levers::LeverSpec;

/// How many panics an observer may have.
pub const PANICS_FORGIVEN: u32 = 3;

/// Something that happened to a call, a circuit or a policy.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// The policy and route it happened on; none for what concerns the store or the process as a whole.
    pub key: Option<&'a StateKey>,
    /// What happened.
    pub what: What<'a>,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum What<'a> {
    /// A call is over: answered, failed, refused or given up by its caller. Exactly one per call.
    Finished {
        /// What it says about the dependency; none if it never got there.
        outcome: Option<Outcome>,
        /// The kind of failure, if it is one.
        kind: Option<Kind>,
        /// The whole story.
        decision: &'a Decision,
    },
    /// An attempt failed and another follows.
    Retry {
        /// The attempt that failed, from 1.
        attempt: u32,
        /// The wait before the next.
        delay: Duration,
        /// Why it failed.
        kind: Kind,
    },
    /// An attempt took too long.
    AttemptTimeout {
        /// Which, from 1.
        attempt: u32,
        /// Its limit.
        limit: Duration,
    },
    /// A failure that would have been tried again was not: the budget is used up.
    RetryBudgetExhausted,
    /// A failure that would have been tried again was not: the wait would outlive the caller.
    RetryAbandoned {
        /// The wait that would have been.
        delay: Duration,
    },
    /// A copy of an attempt that takes long was sent.
    Hedge {
        /// Which copy of this attempt, from 1.
        copy: u32,
        /// How long the attempt, or the copy before, had run.
        after: Duration,
    },
    /// A copy that would have been sent was not: the budget is used up.
    HedgeBudgetExhausted,
    /// An adaptive bulkhead lowered its limit, because calls are too slow.
    LimitLowered(Lowered),
    /// A circuit changed its phase.
    Transition(Transition),
    /// A fallback answered in the dependency's place.
    FallbackServed {
        /// Why it had to.
        kind: Kind,
    },
    /// An operator put a word above a circuit's phase, or took it away.
    Forced(Option<Forced>),
    /// The policy was changed; calls that start from now on follow it.
    Retuned {
        /// Its version, from 1.
        version: u64,
    },
    /// An operator pulled a lever of this process, or released it.
    Lever {
        /// Whose lever: a policy's, or every policy's (`*`).
        policy: &'a str,
        /// What is wanted now; none once it is released.
        lever: Option<&'a LeverSpec>,
    },
    /// A newer configuration is in force.
    ConfigApplied {
        /// How many policies and levers are not what they were.
        changed: usize,
    },
    /// A newer configuration was refused whole; the one before stays in force.
    ConfigRefused {
        /// Everything that is wrong with it.
        reason: &'a str,
    },
    /// So many routes are in use at a time that new ones share one state.
    RoutesExhausted,
    /// The shared store does not answer: from here on decisions are this process' own. One per outage.
    StoreDegraded {
        /// What was seen: `timeout`, `connection`, or the server's own word (`READONLY`, `OOM`, …).
        reason: &'a str,
    },
    /// The shared store answers again and decides again. One per outage.
    StoreRecovered {
        /// How long it was away.
        outage: Duration,
        /// How many calls were decided in its place.
        decided_locally: u64,
    },
    /// The shared store lost what it held: a restart without data, a flush, an eviction. Circuits that somebody still
    /// knows to be open are put back; buckets start full.
    StateLost,
    /// What the shared store held for this key made no sense and was replaced: an empty bucket, a closed circuit.
    StateRepaired,
    /// Another replica holds this key under other numbers: a rollout, or a mistake.
    ConfigMismatch,
    /// The number of replicas that are alive.
    Replicas {
        /// How many, this one included.
        live: u32,
    },
    /// This process has stopped letting new calls in.
    Draining {
        /// Calls in flight, those inside others included.
        in_flight: u64,
    },
    /// The calls in flight have ended, or were cancelled because the time for that was over.
    Drained(Drained),
    /// A step of the lifecycle did not do what it should: it failed, panicked, or was abandoned because it took too long.
    StepFailed {
        /// Which.
        step: &'a str,
        /// What went wrong.
        reason: &'a str,
    },
    /// A lock was lost while it was held: its time ran out before it could be renewed.
    LockLost {
        /// Which.
        lock: &'a str,
        /// The token that is stale now.
        fence: u64,
    },
}

/// Somebody who wants to know.
pub trait Observer: Send + Sync + 'static {
    /// Told of an event, in line with the call.
    fn on_event(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on_event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// All who listen. Cheap to clone.
#[derive(Clone, Default)]
pub struct Observers(Option<Arc<[Listener]>>);

struct Listener {
    observer: Arc<dyn Observer>,
    panics: AtomicU32,
}

impl Observers {
    /// These, in this order.
    pub fn new(observers: Vec<Arc<dyn Observer>>) -> Self {
        let listen = |observer| Listener { observer, panics: AtomicU32::new(0) };
        let listeners: Arc<[Listener]> = observers.into_iter().map(listen).collect();
        Self((!listeners.is_empty()).then_some(listeners))
    }

    /// Whether anybody listens.
    pub const fn any(&self) -> bool {
        self.0.is_some()
    }

    /// Tells all of something that happened on one policy and route.
    pub fn tell(&self, key: &StateKey, what: What<'_>) {
        self.tell_event(Some(key), what);
    }

    /// Tells all of something that concerns the whole store.
    pub fn tell_all(&self, what: What<'_>) {
        self.tell_event(None, what);
    }

    fn tell_event(&self, key: Option<&StateKey>, what: What<'_>) {
        if let Some(listeners) = &self.0 {
            let event = Event { key, what };
            listeners.iter().for_each(|listener| listener.tell(&event));
        }
    }
}

impl Listener {
    fn tell(&self, event: &Event<'_>) {
        if self.panics.load(Ordering::Relaxed) >= PANICS_FORGIVEN {
            return;
        }
        let told = catch_unwind(AssertUnwindSafe(|| self.observer.on_event(event)));
        if told.is_err() {
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.as_ref().map_or(0, |listeners| listeners.len());
        f.debug_tuple("Observers").field(&count).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observer_that_panics_is_told_no_more_and_the_others_still_are() {
        let (heard, panicked) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (hear, count) = (heard.clone(), panicked.clone());
        let broken = move |_: &Event<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
            std::panic::resume_unwind(Box::new("broken")) // a panic that does not print
        };
        let good = move |_: &Event<'_>| {
            hear.fetch_add(1, Ordering::Relaxed);
        };
        let observers = Observers::new(vec![Arc::new(broken), Arc::new(good)]);
        let key = StateKey::new("p", ());
        for _ in 0..10 {
            observers.tell(&key, What::RetryBudgetExhausted);
        }
        assert_eq!(panicked.load(Ordering::Relaxed), PANICS_FORGIVEN);
        assert_eq!(heard.load(Ordering::Relaxed), 10);
    }
}

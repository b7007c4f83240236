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

use crate::breaker::{Override, Transition};
use crate::bulkhead::LimitChange;
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
    pub kind: EventKind<'a>,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum EventKind<'a> {
    /// A call is over: answered, failed, rejected or given up by its caller. Exactly one per call.
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
        hedge: u32,
        /// How long the attempt, or the copy before, had run.
        delay: Duration,
    },
    /// A copy that would have been sent was not: the budget is used up.
    HedgeBudgetExhausted,
    /// An adaptive bulkhead lowered its limit, because calls are too slow.
    LimitLowered(LimitChange),
    /// A circuit changed its phase.
    Transition(Transition),
    /// A fallback answered in the dependency's place.
    FallbackServed {
        /// Why it had to.
        kind: Kind,
    },
    /// An operator put a word above a circuit's phase, or took it away.
    Override(Option<Override>),
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
    /// A newer configuration was rejected whole; the one before stays in force.
    ConfigRejected {
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
        degraded_decisions: u64,
    },
    /// The shared store was asked: one round trip, whatever it carried and for however many callers.
    StoreRoundTrip {
        /// From sending it to the last of its replies, or to giving up.
        took: Duration,
        /// What went wrong, in the words of `StoreDegraded`; `call` if only one of the operations did.
        failed: Option<&'a str>,
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

    /// Who listens on one policy and route in this observer's place; none is the observer itself. Asked once, when the
    /// pipeline is made, so that whatever is kept by policy and route is looked up then and not with every call. What
    /// a shared store tells of a key, and what concerns all keys, still goes to the observer itself. The table of
    /// pipelines is locked meanwhile: do not use the module in here.
    fn listen_on(&self, key: &StateKey) -> Option<Arc<dyn Observer>> {
        let _ = key;
        None
    }
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
    /// Of the observer and of all who listen in its place.
    panics: Arc<AtomicU32>,
}

impl Observers {
    /// These, in this order.
    pub fn new(observers: Vec<Arc<dyn Observer>>) -> Self {
        let listen = |observer| Listener { observer, panics: Arc::default() };
        let listeners: Arc<[Listener]> = observers.into_iter().map(listen).collect();
        Self((!listeners.is_empty()).then_some(listeners))
    }

    /// The same, as they listen on one policy and route.
    pub(crate) fn on(&self, key: &StateKey) -> Self {
        let Some(listeners) = &self.0 else { return Self(None) };
        let own: Vec<_> = listeners.iter().map(|listener| listener.listen_on(key)).collect();
        if own.iter().all(Option::is_none) {
            return self.clone();
        }
        let on_key = |(all, own): (&Listener, Option<Arc<dyn Observer>>)| Listener {
            observer: own.unwrap_or_else(|| all.observer.clone()),
            panics: all.panics.clone(),
        };
        Self(Some(listeners.iter().zip(own).map(on_key).collect()))
    }

    /// Whether anybody listens.
    pub const fn any(&self) -> bool {
        self.0.is_some()
    }

    /// Tells all of something that happened on one policy and route.
    pub fn emit(&self, key: &StateKey, kind: EventKind<'_>) {
        self.emit_event(Some(key), kind);
    }

    /// Tells all of something that concerns the whole store.
    pub fn emit_all(&self, kind: EventKind<'_>) {
        self.emit_event(None, kind);
    }

    fn emit_event(&self, key: Option<&StateKey>, kind: EventKind<'_>) {
        if let Some(listeners) = &self.0 {
            let event = Event { key, kind };
            listeners.iter().for_each(|listener| listener.emit(&event));
        }
    }
}

impl Listener {
    #[inline]
    fn emit(&self, event: &Event<'_>) {
        self.unless_broken(|observer| observer.on_event(event));
    }

    fn listen_on(&self, key: &StateKey) -> Option<Arc<dyn Observer>> {
        self.unless_broken(|observer| observer.listen_on(key)).flatten()
    }

    #[inline]
    fn unless_broken<T>(&self, ask: impl FnOnce(&dyn Observer) -> T) -> Option<T> {
        if self.panics.load(Ordering::Relaxed) >= PANICS_FORGIVEN {
            return None;
        }
        let asked = catch_unwind(AssertUnwindSafe(|| ask(&*self.observer)));
        if asked.is_err() {
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
        asked.ok()
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
            observers.emit(&key, EventKind::RetryBudgetExhausted);
        }
        assert_eq!(panicked.load(Ordering::Relaxed), PANICS_FORGIVEN);
        assert_eq!(heard.load(Ordering::Relaxed), 10);
    }

    /// Panics on every key, whoever listens there.
    struct Broken(Arc<AtomicU32>);

    impl Observer for Broken {
        fn on_event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::panic::resume_unwind(Box::new("broken"))
        }

        fn listen_on(&self, _: &StateKey) -> Option<Arc<dyn Observer>> {
            Some(Arc::new(Self(self.0.clone())))
        }
    }

    #[test]
    fn whoever_listens_on_a_key_in_its_place_panics_on_its_account() {
        let panicked = Arc::new(AtomicU32::new(0));
        let observers = Observers::new(vec![Arc::new(Broken(panicked.clone()))]);
        for route in ["a", "b", "c", "d", "e"] {
            let key = StateKey::new("p", route);
            observers.on(&key).emit(&key, EventKind::RetryBudgetExhausted);
        }
        assert_eq!(panicked.load(Ordering::Relaxed), PANICS_FORGIVEN);
    }

    #[test]
    fn one_who_listens_on_a_key_is_told_of_that_key_only_and_in_its_place_in_the_order() {
        struct Named(&'static str, Arc<parking_lot::Mutex<Vec<String>>>);
        impl Observer for Named {
            fn on_event(&self, event: &Event<'_>) {
                self.1.lock().push(format!("{} {:?}", self.0, event.key.map(ToString::to_string)));
            }
            fn listen_on(&self, key: &StateKey) -> Option<Arc<dyn Observer>> {
                (key.route() == Some("x")).then(|| Arc::new(Self("on x", self.1.clone())) as Arc<dyn Observer>)
            }
        }
        let heard = Arc::new(parking_lot::Mutex::new(Vec::<String>::new()));
        let log = heard.clone();
        let plain = move |_: &Event<'_>| log.lock().push("plain".to_owned());
        let observers = Observers::new(vec![Arc::new(Named("all", heard.clone())), Arc::new(plain)]);
        for route in ["x", "y"] {
            let key = StateKey::new("p", route);
            observers.on(&key).emit(&key, EventKind::HedgeBudgetExhausted);
        }
        assert_eq!(*heard.lock(), ["on x Some(\"p/x\")", "plain", "all Some(\"p/y\")", "plain"]);
    }
}

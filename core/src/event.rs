//! Events, and the observers they are emitted to. Without an observer nothing is computed.
//!
//! A `Transition` is emitted before the `Retry` or `Finished` of the attempt that caused it.
//!
//! An observer runs inline with the call, so it must be quick. Its panics are caught, and after [`MAX_OBSERVER_PANICS`] of
//! them it receives no more events: telemetry never fails a call.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::breaker::{Override, Transition};
use crate::bulkhead::LimitChange;
use crate::chaos::InjectedFault;
use crate::decision::Decision;
use crate::drain::Drained;
use crate::key::StateKey;
use crate::kind::{Kind, Outcome};
use crate::levers::LeverSpec;

/// How many panics of an observer are caught before it is dropped.
pub const MAX_OBSERVER_PANICS: u32 = 3;

/// An event on a call, a breaker, a policy, the store or the process.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// The policy and route; none for events of the store or the process as a whole.
    pub key: Option<&'a StateKey>,
    /// What happened.
    pub kind: EventKind<'a>,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum EventKind<'a> {
    /// A call ended: answered, failed, rejected, or dropped by its caller. Exactly one per call.
    Finished {
        /// The outcome for the dependency; none if the operation never started.
        outcome: Option<Outcome>,
        /// The kind of failure; none for a success.
        kind: Option<Kind>,
        /// The decision record.
        decision: &'a Decision,
    },
    /// An attempt failed and is retried.
    Retry {
        /// The attempt that failed, from 1.
        attempt: u32,
        /// The delay before the next attempt.
        delay: Duration,
        /// The kind of failure.
        kind: Kind,
    },
    /// An attempt exceeded the policy's timeout.
    AttemptTimeout {
        /// The attempt, from 1.
        attempt: u32,
        /// The timeout.
        limit: Duration,
    },
    /// A failed attempt was not retried, because the retry budget is exhausted.
    RetryBudgetExhausted,
    /// A failed attempt was not retried, because the delay would end after the deadline.
    RetryAbandoned {
        /// The delay it would have needed.
        delay: Duration,
    },
    /// A hedge was started beside a slow attempt.
    Hedge {
        /// The hedge of this attempt, from 1.
        hedge: u32,
        /// How long the attempt, or the hedge before, had run.
        delay: Duration,
    },
    /// A hedge was not started, because the hedge budget is exhausted.
    HedgeBudgetExhausted,
    /// The rate limit is nearly used up, or is: as much of the burst as its `near_limit`. At most once every `per` on each
    /// replica; by the fleet's bucket, or this process's if the limit is not shared.
    NearLimit {
        /// Whole permits that are left.
        remaining: u64,
        /// The most permits that the bucket holds.
        burst: u64,
    },
    /// An adaptive bulkhead lowered its limit, because of the latency.
    LimitLowered(LimitChange),
    /// A breaker changed its phase.
    Transition(Transition),
    /// A fallback answered in the dependency's place.
    FallbackServed {
        /// The kind of failure it answered.
        kind: Kind,
    },
    /// Chaos injected a fault: the lever `chaos` of the policy is pulled.
    FaultInjected(InjectedFault),
    /// An operator set an override of a breaker, or released it (none).
    Override(Option<Override>),
    /// The policy of a route was changed; calls that start from now on use it.
    Retuned {
        /// The new version, from 1.
        version: u64,
    },
    /// An operator pulled a lever of this process, or released it.
    Lever {
        /// The policy, or `*` for every policy.
        policy: &'a str,
        /// The lever in force; none once it is released.
        lever: Option<&'a LeverSpec>,
    },
    /// A newer configuration is in force.
    ConfigApplied {
        /// How many policies and levers changed.
        changed: usize,
    },
    /// A newer configuration was rejected as a whole; the one before stays in force.
    ConfigRejected {
        /// All validation errors.
        reason: &'a str,
    },
    /// The table of routes is full of routes in use: new routes of a policy share one state.
    RoutesExhausted,
    /// The table of values of tags is full: new values share one bucket of each limit by a tag. One per route and version of the
    /// policy.
    TagsExhausted,
    /// The shared store is unreachable: from here on decisions are degraded. One per outage.
    StoreDegraded {
        /// The first error: `timeout`, `connection`, `dns`, `refused`, `no_route`, `not_redis`, `no_master`, `tls`, `auth`,
        /// `acl`, `no_scripting`, or the error code of the server (`READONLY`, `OOM`, …).
        reason: &'a str,
    },
    /// The shared store is reachable and decides again. One per outage.
    StoreRecovered {
        /// How long it was unreachable.
        outage: Duration,
        /// How many decisions were made without it.
        degraded_decisions: u64,
    },
    /// The process is connected to the shared store: once, and again when that is another server or another version.
    StoreConnected {
        /// Host and port, or the path of a socket; several of a Cluster. No credentials.
        server: &'a str,
        /// Name and version, such as `redis 7.0.15`; none if the server did not tell.
        version: Option<&'a str>,
    },
    /// Connecting to the shared store fails, for another reason than that of the outage. One per reason until a connection is
    /// open.
    StoreConnectFailed {
        /// The error, as in `StoreDegraded`.
        reason: &'a str,
    },
    /// Pushes are lost, while the shared store decides: changes by other replicas are only seen when this one asks. One per
    /// loss.
    PushLost {
        /// The error, as in `StoreDegraded`: of subscribing, or `acl` if a script may not publish.
        reason: &'a str,
    },
    /// Pushes arrive again. One per loss.
    PushRestored,
    /// The shared store replies, but too late for more than one decision in a hundred: those were degraded. Emitted once
    /// until the share is below that for a while.
    StoreSlow {
        /// The share of degraded decisions, from 0 to 1.
        share: f64,
    },
    /// The module does not know how many replicas the service may have (`expected_replicas`): one that has never reached
    /// the shared store decides as if it were alone. One per module, when it is built.
    ExpectedReplicasUnknown,
    /// One round trip to the shared store, for one or many callers.
    StoreRoundTrip {
        /// From sending the request to the last reply, or to the error.
        took: Duration,
        /// The error, as in `StoreDegraded`; `call` if only some of the operations failed.
        failed: Option<&'a str>,
    },
    /// The shared store lost its state: a restart without data, a flush, an eviction. Breakers that a replica still knows
    /// to be open are restored; buckets start full.
    StateLost,
    /// The shared state of this key was corrupt and was replaced: by an empty bucket, or a closed breaker.
    StateRepaired,
    /// Another replica uses this key with other settings: a rollout under way, or a configuration error.
    ConfigMismatch,
    /// The calls of this replica trip a breaker that stays closed for the fleet, so this replica rejects them on its own.
    /// One until its own circuit closes.
    OddReplica {
        /// How long it rejects at first.
        break_for: Duration,
    },
    /// Calls of this replica were in flight without a slot of the fleet: it was suspended or cut off until its share had
    /// expired, or the shared store lost its state. Together with those of the others they may have exceeded
    /// `fleet_max_concurrency`. One per lapse.
    FleetShareLapsed {
        /// How many, at most.
        calls: u32,
    },
    /// The number of live replicas changed.
    Replicas {
        /// The number, this replica included.
        live: u32,
    },
    /// This process has stopped admitting new calls.
    Draining {
        /// Calls in flight, nested ones included.
        in_flight: u64,
    },
    /// The drain is over: the calls in flight have ended, or were cancelled at the end of the drain window.
    Drained(Drained),
    /// A lifecycle step failed, panicked, or timed out.
    StepFailed {
        /// The name of the step.
        step: &'a str,
        /// The error.
        reason: &'a str,
    },
    /// A lock was lost while it was held: it expired before it was renewed.
    LockLost {
        /// The name of the lock.
        lock: &'a str,
        /// The fencing token, now stale.
        fence: u64,
    },
}

/// Receives events.
///
/// # Examples
/// A closure is an observer:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// use phalanx_core::event::{Event, EventKind, Observers};
/// use phalanx_core::key::StateKey;
///
/// let exhausted = Arc::new(AtomicU32::new(0));
/// let counter = exhausted.clone();
/// let observers = Observers::new(vec![Arc::new(move |event: &Event<'_>| {
///     if matches!(event.kind, EventKind::RetryBudgetExhausted) {
///         counter.fetch_add(1, Ordering::Relaxed);
///     }
/// })]);
///
/// observers.emit(&StateKey::new("vendor", "eu"), EventKind::RetryBudgetExhausted);
/// assert_eq!(exhausted.load(Ordering::Relaxed), 1);
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Receives an event, inline with the call.
    fn on_event(&self, event: &Event<'_>);

    /// Returns the observer to use for one policy and route instead of this one; none for this one. Called once per route,
    /// when its pipeline is compiled, so that per-route state is looked up then and not with every call. Events that a
    /// shared store emits, and events without a key, still go to this observer. The table of routes is locked meanwhile:
    /// do not use the module in here.
    fn for_route(&self, key: &StateKey) -> Option<Arc<dyn Observer>> {
        let _ = key;
        None
    }
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on_event(&self, event: &Event<'_>) {
        self(event);
    }
}

/// A list of observers. Cheap to clone.
#[derive(Clone, Default)]
pub struct Observers(Option<Arc<[Listener]>>);

struct Listener {
    observer: Arc<dyn Observer>,
    /// Panics so far, of the observer and of its per-route observers together.
    panics: Arc<AtomicU32>,
}

impl Observers {
    /// Returns these observers; each event goes to them in this order.
    pub fn new(observers: Vec<Arc<dyn Observer>>) -> Self {
        let listen = |observer| Listener { observer, panics: Arc::default() };
        let listeners: Arc<[Listener]> = observers.into_iter().map(listen).collect();
        Self((!listeners.is_empty()).then_some(listeners))
    }

    /// Returns the observers of one policy and route.
    pub(crate) fn for_route(&self, key: &StateKey) -> Self {
        let Some(listeners) = &self.0 else { return Self(None) };
        let own: Vec<_> = listeners.iter().map(|listener| listener.for_route(key)).collect();
        if own.iter().all(Option::is_none) {
            return self.clone();
        }
        let on_key = |(all, own): (&Listener, Option<Arc<dyn Observer>>)| Listener {
            observer: own.unwrap_or_else(|| all.observer.clone()),
            panics: all.panics.clone(),
        };
        Self(Some(listeners.iter().zip(own).map(on_key).collect()))
    }

    /// Whether there is any observer.
    pub const fn any(&self) -> bool {
        self.0.is_some()
    }

    /// Emits an event of one policy and route.
    pub fn emit(&self, key: &StateKey, kind: EventKind<'_>) {
        self.emit_event(Some(key), kind);
    }

    /// Emits an event of the store or the process as a whole.
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
        self.catch_panic(|observer| observer.on_event(event));
    }

    fn for_route(&self, key: &StateKey) -> Option<Arc<dyn Observer>> {
        self.catch_panic(|observer| observer.for_route(key)).flatten()
    }

    /// Calls the observer; none if it panics, or has panicked too often before.
    #[inline]
    fn catch_panic<T>(&self, call: impl FnOnce(&dyn Observer) -> T) -> Option<T> {
        if self.panics.load(Ordering::Relaxed) >= MAX_OBSERVER_PANICS {
            return None;
        }
        let called = catch_unwind(AssertUnwindSafe(|| call(&*self.observer)));
        if called.is_err() {
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
        called.ok()
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
    fn an_observer_that_panics_is_dropped_and_the_others_still_receive_events() {
        let (received, panicked) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (receive, count) = (received.clone(), panicked.clone());
        let broken = move |_: &Event<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
            std::panic::resume_unwind(Box::new("broken")) // a panic that does not print
        };
        let good = move |_: &Event<'_>| {
            receive.fetch_add(1, Ordering::Relaxed);
        };
        let observers = Observers::new(vec![Arc::new(broken), Arc::new(good)]);
        let key = StateKey::new("p", ());
        for _ in 0..10 {
            observers.emit(&key, EventKind::RetryBudgetExhausted);
        }
        assert_eq!(panicked.load(Ordering::Relaxed), MAX_OBSERVER_PANICS);
        assert_eq!(received.load(Ordering::Relaxed), 10);
    }

    /// Panics on every event, and so do its per-route observers.
    struct Broken(Arc<AtomicU32>);

    impl Observer for Broken {
        fn on_event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            std::panic::resume_unwind(Box::new("broken"))
        }

        fn for_route(&self, _: &StateKey) -> Option<Arc<dyn Observer>> {
            Some(Arc::new(Self(self.0.clone())))
        }
    }

    #[test]
    fn panics_of_per_route_observers_count_for_the_observer_they_replace() {
        let panicked = Arc::new(AtomicU32::new(0));
        let observers = Observers::new(vec![Arc::new(Broken(panicked.clone()))]);
        for route in ["a", "b", "c", "d", "e"] {
            let key = StateKey::new("p", route);
            observers.for_route(&key).emit(&key, EventKind::RetryBudgetExhausted);
        }
        assert_eq!(panicked.load(Ordering::Relaxed), MAX_OBSERVER_PANICS);
    }

    #[test]
    fn a_per_route_observer_receives_the_events_of_its_route_only_and_in_the_same_order() {
        struct Named(&'static str, Arc<parking_lot::Mutex<Vec<String>>>);
        impl Observer for Named {
            fn on_event(&self, event: &Event<'_>) {
                self.1.lock().push(format!("{} {:?}", self.0, event.key.map(ToString::to_string)));
            }
            fn for_route(&self, key: &StateKey) -> Option<Arc<dyn Observer>> {
                (key.route() == Some("x")).then(|| Arc::new(Self("on x", self.1.clone())) as Arc<dyn Observer>)
            }
        }
        let received = Arc::new(parking_lot::Mutex::new(Vec::<String>::new()));
        let log = received.clone();
        let plain = move |_: &Event<'_>| log.lock().push("plain".to_owned());
        let observers = Observers::new(vec![Arc::new(Named("all", received.clone())), Arc::new(plain)]);
        for route in ["x", "y"] {
            let key = StateKey::new("p", route);
            observers.for_route(&key).emit(&key, EventKind::HedgeBudgetExhausted);
        }
        assert_eq!(*received.lock(), ["on x Some(\"p/x\")", "plain", "all Some(\"p/y\")", "plain"]);
    }
}

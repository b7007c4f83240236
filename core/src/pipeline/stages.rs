//! A policy compiled for one route: a struct of optional stages with everything a call needs already looked up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::breaker::{BreakerSpec, Count, LatencyTrip};
use crate::budget::Budget;
use crate::clock::{Clock, Time, micros};
use crate::event::Observers;
use crate::guard::{Guard, Guards};
use crate::key::{StateKey, intern};
use crate::policy::{DeadlineSpec, OnDegraded, Policy, Stage};
use crate::retry::RetrySpec;
use crate::rng::Rng;
use crate::store::Store;
use crate::throttle::{Throttle, ThrottleSpec};

/// One policy on one route, ready to run.
pub(crate) struct Stages<S: Store> {
    /// Set when a newer version of the policy took over. Kept handles look here before every call.
    superseded: AtomicBool,
    pub(crate) key: Arc<StateKey>,
    pub(crate) name: &'static str,
    pub(crate) version: u64,
    pub(crate) policy: Arc<Policy>,
    pub(crate) store: S,
    pub(crate) clock: Clock,
    pub(crate) observers: Observers,
    pub(crate) on_degraded: OnDegraded,
    pub(crate) deadline: DeadlineSpec,
    pub(crate) rate_limit: Option<RateLimit<S>>,
    pub(crate) circuit: Circuit<S>,
    pub(crate) retry: Option<RetrySpec>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) guards: Option<PlacedGuards>,
    /// Whether retries draw from a budget, so that calls must be counted.
    pub(crate) budgeted: bool,
    /// Whether any stage wants to know the time.
    pub(crate) timed: bool,
    /// Whether any stage, or an observer, wants to know how long things take.
    pub(crate) measured: bool,
    pub(crate) kept: Arc<Kept>,
}

/// The bucket and how long a call may wait at it.
pub(crate) struct RateLimit<S: Store> {
    pub(crate) bucket: Arc<S::Bucket>,
    pub(crate) max_wait: Duration,
}

/// What watches outcomes. Breaker and throttle exclude each other.
pub(crate) enum Circuit<S: Store> {
    None,
    Breaker { breaker: Arc<S::Breaker>, count: Count, latency: Option<Latency<S>> },
    Throttle(ThrottleSpec),
}

/// The digest behind a breaker that watches a quantile.
pub(crate) struct Latency<S: Store> {
    pub(crate) digest: Arc<S::Digest>,
    pub(crate) trip: LatencyTrip,
    /// Microseconds between two looks at the quantile.
    pub(crate) look_every: u64,
}

/// Where a custom guard can stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    BeforeRateLimit,
    BeforeCircuit,
    BeforeRetry,
    Attempts,
}

/// Custom guards in the order of their numbers, cut where the built-in stages stand between them.
pub(crate) struct PlacedGuards {
    guards: Guards,
    /// How many stand before the rate limit, before the circuit and before the retries.
    cuts: [usize; 3],
}

impl PlacedGuards {
    fn new(guards: &Guards) -> Option<Self> {
        let before = |stage: Stage| guards.iter().filter(|guard| guard.order() < stage.order()).count();
        (!guards.is_empty()).then(|| Self {
            guards: guards.clone(),
            cuts: [Stage::RateLimit, Stage::Circuit, Stage::Retry].map(before),
        })
    }

    /// The guards of a place, outermost first.
    pub(crate) fn at(&self, place: Place) -> impl Iterator<Item = &dyn Guard> {
        let [rate_limit, circuit, retry] = self.cuts;
        let range = match place {
            Place::BeforeRateLimit => 0..rate_limit,
            Place::BeforeCircuit => rate_limit..circuit,
            Place::BeforeRetry => circuit..retry,
            Place::Attempts => retry..self.guards.len(),
        };
        range.map(|index| self.guards.get(index))
    }

    /// The guard that was the `index`-th to admit a call.
    pub(crate) fn of_calls(&self, index: usize) -> &dyn Guard {
        self.guards.get(index)
    }

    /// The guard that was the `index`-th to admit an attempt.
    pub(crate) fn of_attempts(&self, index: usize) -> &dyn Guard {
        self.guards.get(self.cuts[2] + index)
    }
}

/// What stays when the policy changes.
pub(crate) struct Kept {
    pub(crate) rng: Rng,
    pub(crate) budget: Budget,
    pub(crate) throttle: Mutex<Option<Throttle>>,
    /// When the latency's quantile is looked at next, in microseconds.
    next_look: AtomicU64,
}

impl Kept {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { rng, budget: Budget::default(), throttle: Mutex::new(None), next_look: AtomicU64::new(0) }
    }

    /// Whether it is this caller's turn to look at the quantile.
    pub(crate) fn claims_look(&self, now: Time, every: u64) -> bool {
        let due = self.next_look.load(Ordering::Relaxed);
        let next = now.as_micros().saturating_add(every);
        now.as_micros() >= due
            && self.next_look.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl<S: Store> Stages<S> {
    /// Compiles a valid policy. State that exists already is taken over and retuned.
    pub(crate) fn compile(
        key: Arc<StateKey>,
        policy: Arc<Policy>,
        version: u64,
        store: S,
        observers: Observers,
        kept: Arc<Kept>,
    ) -> Self {
        let rate_limit = policy
            .rate_limit
            .as_ref()
            .map(|spec| RateLimit { bucket: store.bucket(&key, spec), max_wait: spec.max_wait.unwrap_or_default() });
        let circuit = match (policy.complete_breaker(), policy.throttle) {
            (Some(spec), _) => breaker(&store, &key, &spec),
            (None, Some(spec)) => Circuit::Throttle(spec),
            (None, None) => Circuit::None,
        };
        let budgeted = policy.retry.is_some_and(|retry| retry.budget.is_some());
        let watched = !matches!(circuit, Circuit::None) || observers.any();
        Self {
            superseded: AtomicBool::new(false),
            name: intern(&policy.name).unwrap_or("(unnamed)"),
            clock: store.clock().clone(),
            on_degraded: policy.on_degraded,
            deadline: policy.deadline.unwrap_or_default(),
            timed: rate_limit.is_some() || watched || budgeted || !policy.guards.is_empty(),
            measured: observers.any() || policy.breaker.as_ref().is_some_and(BreakerSpec::measures_latency),
            budgeted,
            retry: policy.retry,
            timeout: policy.timeout,
            guards: PlacedGuards::new(&policy.guards),
            key,
            version,
            policy,
            store,
            observers,
            rate_limit,
            circuit,
            kept,
        }
    }

    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Acquire)
    }

    pub(crate) fn supersede(&self) {
        self.superseded.store(true, Ordering::Release);
    }

    /// Whether the circuit counts these. A throttle counts calls.
    #[inline]
    pub(crate) fn counts(&self, what: Count) -> bool {
        match &self.circuit {
            Circuit::None => false,
            Circuit::Breaker { count, .. } => *count == what,
            Circuit::Throttle(_) => what == Count::Calls,
        }
    }

    /// The circuit to ask after so many attempts.
    #[inline]
    pub(crate) fn circuit_for(&self, attempts: u32) -> &Circuit<S> {
        let asked = attempts == 0 || self.counts(Count::Attempts);
        if asked { &self.circuit } else { &Circuit::None }
    }
}

fn breaker<S: Store>(store: &S, key: &StateKey, spec: &BreakerSpec) -> Circuit<S> {
    let latency = spec.latency_trip().map(|trip| Latency {
        digest: store.digest(key, spec.sampling_window),
        trip,
        look_every: (micros(spec.sampling_window) / 50).max(1),
    });
    Circuit::Breaker { breaker: store.breaker(key, spec), count: spec.count, latency }
}

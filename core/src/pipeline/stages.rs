//! A policy compiled for one route: a struct of optional stages with everything a call needs already looked up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::said::Said;
use super::trace::Traced;
use super::watch::Watch;
use crate::breaker::{BreakerSpec, CountBy, Override};
use crate::budget::Budget;
use crate::bulkhead::{Bulkhead, BulkheadSpec};
use crate::clock::{Clock, Time};
use crate::drain::Door;
use crate::event::Observers;
use crate::guard::{Guard, Guards};
use crate::hedge::HedgeSpec;
use crate::key::{StateKey, intern};
use crate::levers::LeverSpec;
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
    /// What the policy says, and what an operator says above it.
    pub(crate) policy: Arc<Policy>,
    pub(crate) lever: Option<Arc<LeverSpec>>,
    /// Whether an operator lets nobody in.
    pub(crate) shut: bool,
    pub(crate) store: S,
    pub(crate) clock: Clock,
    pub(crate) observers: Observers,
    pub(crate) door: Door,
    pub(crate) on_degraded: OnDegraded,
    pub(crate) deadline: DeadlineSpec,
    pub(crate) rate_limit: Option<RateLimit<S>>,
    pub(crate) bulkhead: Option<Slots>,
    pub(crate) circuit: Circuit<S>,
    pub(crate) retry: Option<RetrySpec>,
    pub(crate) hedge: Option<HedgeSpec>,
    /// Whoever wants to know a quantile of the latency.
    pub(crate) watch: Option<Watch<S>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) guards: Option<PlacedGuards>,
    /// Whether retries draw from a budget, so that calls must be counted.
    pub(crate) budgeted: bool,
    /// Whether any stage wants to know the time.
    pub(crate) timed: bool,
    /// Whether any stage, or an observer, wants to know how long things take.
    pub(crate) measured: bool,
    /// What its spans say, if it is traced.
    pub(crate) traced: Traced,
    pub(crate) kept: Arc<Kept>,
}

/// The bucket and how long a call may wait at it.
pub(crate) struct RateLimit<S: Store> {
    pub(crate) bucket: Arc<S::Bucket>,
    pub(crate) max_wait: Duration,
}

/// The slots, and what there is to them.
pub(crate) struct Slots {
    pub(crate) bulkhead: Arc<Bulkhead>,
    /// Whether somebody may wait for one.
    pub(crate) queues: bool,
    /// Whether completions move the limit.
    pub(crate) learns: bool,
}

/// What watches outcomes. Breaker and throttle exclude each other.
pub(crate) enum Circuit<S: Store> {
    None,
    Breaker { breaker: Arc<S::Breaker>, count: CountBy },
    Throttle(ThrottleSpec),
}

/// Where a custom guard can stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    BeforeRateLimit,
    BeforeBulkhead,
    BeforeCircuit,
    BeforeRetry,
    Attempts,
}

/// Custom guards in the order of their numbers, cut where the built-in stages stand between them.
pub(crate) struct PlacedGuards {
    guards: Guards,
    /// How many stand before the rate limit, the bulkhead, the circuit and the retries.
    cuts: [usize; 4],
}

impl PlacedGuards {
    fn new(guards: &Guards) -> Option<Self> {
        let before = |stage: Stage| guards.iter().filter(|guard| guard.order() < stage.order()).count();
        (!guards.is_empty()).then(|| Self {
            guards: guards.clone(),
            cuts: [Stage::RateLimit, Stage::Bulkhead, Stage::Circuit, Stage::Retry].map(before),
        })
    }

    /// The guards of a place, outermost first.
    pub(crate) fn at(&self, place: Place) -> impl Iterator<Item = &dyn Guard> {
        let [rate_limit, bulkhead, circuit, retry] = self.cuts;
        let range = match place {
            Place::BeforeRateLimit => 0..rate_limit,
            Place::BeforeBulkhead => rate_limit..bulkhead,
            Place::BeforeCircuit => bulkhead..circuit,
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
        self.guards.get(self.cuts[3] + index)
    }
}

/// What stays when the policy changes.
pub(crate) struct Kept {
    pub(crate) rng: Rng,
    door: Door,
    traced: bool,
    pub(crate) retry_budget: Budget,
    pub(crate) hedge_budget: Budget,
    pub(crate) throttle: Mutex<Option<Throttle>>,
    bulkhead: Mutex<Option<Arc<Bulkhead>>>,
    /// When the latency's quantile is looked at next, in microseconds.
    next_look: AtomicU64,
    /// The delay that the last look gave hedging, in microseconds; 0 before it could tell.
    pub(crate) hedge_delay: AtomicU64,
}

impl Kept {
    pub(crate) fn new(rng: Rng, door: Door, traced: bool) -> Self {
        Self {
            rng,
            door,
            traced,
            retry_budget: Budget::default(),
            hedge_budget: Budget::default(),
            throttle: Mutex::new(None),
            bulkhead: Mutex::new(None),
            next_look: AtomicU64::new(0),
            hedge_delay: AtomicU64::new(0),
        }
    }

    /// The bulkhead, which outlives changes of the policy together with the calls inside it.
    fn bulkhead(&self, spec: &BulkheadSpec, clock: &Clock) -> Slots {
        let bulkhead = self.bulkhead.lock().get_or_insert_with(|| Arc::new(Bulkhead::new(spec))).clone();
        bulkhead.retune(spec, clock);
        Slots { bulkhead, queues: spec.max_queue > 0, learns: spec.measures_latency() }
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
    /// Compiles a valid policy with the lever above it, if one is pulled. State that exists already is taken over and
    /// retuned.
    pub(crate) fn compile(key: Arc<StateKey>, said: Said, store: S, observers: Observers, kept: Arc<Kept>) -> Self {
        let policy = said.effective();
        let rate_limit = policy
            .rate_limit
            .as_ref()
            .map(|spec| RateLimit { bucket: store.bucket(&key, spec), max_wait: spec.max_wait.unwrap_or_default() });
        let circuit = match (said.breaker(), policy.throttle) {
            (Some(spec), _) => Circuit::Breaker { breaker: store.breaker(&key, &spec), count: spec.count },
            (None, Some(spec)) => Circuit::Throttle(spec),
            (None, None) => Circuit::None,
        };
        let bulkhead = policy.bulkhead.as_ref().map(|spec| kept.bulkhead(spec, store.clock()));
        let watch = Watch::of(&policy, &store, &key);
        let traced = Traced::new(&key, kept.traced);
        let told = observers.any() || traced.any();
        let budgeted = policy.retry.is_some_and(|retry| retry.budget.is_some());
        let watched = !matches!(circuit, Circuit::None) || watch.is_some() || told;
        let learns = bulkhead.as_ref().is_some_and(|slots| slots.learns);
        let waits = bulkhead.as_ref().is_some_and(|slots| slots.queues);
        let stamped = rate_limit.is_some() || budgeted || policy.hedge.is_some() || waits || learns;
        let measures = policy.breaker.as_ref().is_some_and(BreakerSpec::measures_latency);
        Self {
            superseded: AtomicBool::new(false),
            name: intern(&policy.name).unwrap_or("(unnamed)"),
            clock: store.clock().clone(),
            on_degraded: policy.on_degraded,
            deadline: policy.deadline.unwrap_or_default(),
            timed: stamped || watched || !policy.guards.is_empty(),
            measured: told || measures || watch.is_some() || learns,
            budgeted,
            retry: policy.retry,
            hedge: policy.hedge,
            watch,
            bulkhead,
            timeout: policy.timeout,
            guards: PlacedGuards::new(&policy.guards),
            shut: said.force() == Some(Override::Open),
            key,
            version: said.version,
            policy: said.policy.clone(),
            lever: said.lever.clone(),
            store,
            observers,
            door: kept.door.clone(),
            rate_limit,
            circuit,
            traced,
            kept,
        }
    }

    /// What it was compiled from.
    pub(crate) fn said(&self) -> Said {
        Said { policy: self.policy.clone(), version: self.version, lever: self.lever.clone() }
    }

    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Acquire)
    }

    pub(crate) fn supersede(&self) {
        self.superseded.store(true, Ordering::Release);
    }

    /// Whether the circuit counts these. A throttle counts calls.
    #[inline]
    pub(crate) fn counts(&self, what: CountBy) -> bool {
        match &self.circuit {
            Circuit::None => false,
            Circuit::Breaker { count, .. } => *count == what,
            Circuit::Throttle(_) => what == CountBy::Calls,
        }
    }

    /// The circuit to ask after so many attempts.
    #[inline]
    pub(crate) fn circuit_for(&self, attempts: u32) -> &Circuit<S> {
        let asked = attempts == 0 || self.counts(CountBy::Attempts);
        if asked { &self.circuit } else { &Circuit::None }
    }
}

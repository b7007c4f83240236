//! A policy compiled for one route: one struct of optional stages, with everything a call needs already looked up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

#[cfg(feature = "chaos")]
use super::chaos::ChaosStage;
use super::effective_policy::EffectivePolicy;
use super::latency_watch::LatencyWatch;
use super::limits::{LimitsStage, TaggedSets};
use super::trace::SpanNames;
use crate::breaker::{BreakerSpec, CountBy, Override};
use crate::budget::{self, Budget};
use crate::bulkhead::{Bulkhead, BulkheadSpec};
use crate::clock::{Clock, Time, micros};
use crate::drain::GateCell;
use crate::engine::PortBinding;
use crate::event::Observers;
use crate::guard::{Guard, Guards};
use crate::hedge::HedgeSpec;
use crate::key::{StateKey, intern};
use crate::levers::LeverSpec;
use crate::policy::{DeadlineSpec, OnDegraded, Policy, Stage};
use crate::rate_limit::{ChargedByHand, Rate};
use crate::retry::RetrySpec;
use crate::rng::Rng;
use crate::store::{StateScope, Store, TallyUse};
use crate::throttle::{Throttle, ThrottleSpec};
use crate::top_keys::TopKeys;

/// One policy on one route, ready to run.
pub(crate) struct Stages<S: Store> {
    /// Set when newer stages replace these. A [`Pipeline`](super::Pipeline) checks it before every call.
    superseded: AtomicBool,
    pub(crate) key: Arc<StateKey>,
    pub(crate) name: &'static str,
    pub(crate) version: u64,
    pub(crate) policy: Arc<Policy>,
    pub(crate) lever: Option<Arc<LeverSpec>>,
    /// Whether a lever forces the route open, so that every call is rejected.
    pub(crate) forced_open: bool,
    pub(crate) store: S,
    pub(crate) clock: Clock,
    pub(crate) observers: Observers,
    pub(crate) gate: GateCell,
    pub(crate) on_degraded: OnDegraded,
    pub(crate) deadline: DeadlineSpec,
    /// The short form, unless there are other limits.
    pub(crate) rate_limit: Option<RateLimitStage<S>>,
    pub(crate) limits: Option<LimitsStage<S>>,
    pub(crate) bulkhead: Option<BulkheadStage>,
    /// Present if the bulkhead has a cap for the fleet.
    pub(crate) fleet_slots: Option<Arc<S::Slots>>,
    pub(crate) circuit: Circuit<S>,
    pub(crate) retry: Option<RetrySpec>,
    pub(crate) hedge: Option<HedgeSpec>,
    /// Present if a stage acts on a quantile of the latency.
    pub(crate) latency_watch: Option<LatencyWatch<S>>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) guards: Option<PositionedGuards>,
    /// Present while a lever pulls the policy's chaos.
    #[cfg(feature = "chaos")]
    pub(crate) chaos: Option<ChaosStage>,
    /// Whether retries draw from a budget, so that calls must be counted.
    pub(crate) has_retry_budget: bool,
    /// Present if the budget of retries, or of hedges, is the fleet's.
    pub(crate) retry_tally: Option<Arc<S::Tally>>,
    pub(crate) hedge_tally: Option<Arc<S::Tally>>,
    /// Whether any stage reads the clock.
    pub(crate) needs_clock: bool,
    /// Whether any stage or observer needs the exact latency.
    pub(crate) needs_latency: bool,
    pub(crate) span_names: SpanNames,
    pub(crate) state: Arc<RouteState>,
}

/// The bucket, and what a call may ask of it.
pub(crate) struct RateLimitStage<S: Store> {
    pub(crate) bucket: Arc<S::Bucket>,
    /// The most permits that one call may cost.
    pub(crate) max_cost: u64,
    pub(crate) rate: Rate,
    /// At this level, in units, the limit is nearly used up; how often that is worth an event.
    pub(crate) near: i64,
    pub(crate) per: Duration,
    /// How long a call may wait for permits.
    pub(crate) max_wait: Duration,
}

/// The bulkhead, with what the walk asks of its spec.
pub(crate) struct BulkheadStage {
    pub(crate) bulkhead: Arc<Bulkhead>,
    /// Whether calls may wait for a slot.
    pub(crate) has_queue: bool,
    /// Whether completions move the limit.
    pub(crate) is_adaptive: bool,
}

/// The stage that watches outcomes. A policy has a breaker or a throttle, never both.
pub(crate) enum Circuit<S: Store> {
    None,
    Breaker {
        breaker: Arc<S::Breaker>,
        count: CountBy,
    },
    /// With a tally if requests and accepts are those of the fleet.
    Throttle {
        spec: ThrottleSpec,
        tally: Option<Arc<S::Tally>>,
    },
}

/// Where a custom guard runs, by its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardPosition {
    BeforeDeadline,
    BeforeRateLimit,
    BeforeBulkhead,
    BeforeCircuit,
    BeforeRetry,
    /// Before every attempt.
    Attempts,
}

/// Custom guards sorted by order, split at the built-in stages.
pub(crate) struct PositionedGuards {
    guards: Guards,
    /// How many guards run before the deadline, the rate limit, the bulkhead, the circuit and the retries.
    splits: [usize; 5],
}

impl PositionedGuards {
    fn new(guards: &Guards) -> Option<Self> {
        let before = |stage: Stage| guards.iter().filter(|guard| guard.order() < stage.order()).count();
        let stages = [Stage::Deadline, Stage::RateLimit, Stage::Bulkhead, Stage::Circuit, Stage::Retry];
        (!guards.is_empty()).then(|| Self { guards: guards.clone(), splits: stages.map(before) })
    }

    /// Returns the guards at a position, outermost first.
    pub(crate) fn at(&self, position: GuardPosition) -> impl Iterator<Item = &dyn Guard> {
        let [deadline, rate_limit, bulkhead, circuit, retry] = self.splits;
        let range = match position {
            GuardPosition::BeforeDeadline => 0..deadline,
            GuardPosition::BeforeRateLimit => deadline..rate_limit,
            GuardPosition::BeforeBulkhead => rate_limit..bulkhead,
            GuardPosition::BeforeCircuit => bulkhead..circuit,
            GuardPosition::BeforeRetry => circuit..retry,
            GuardPosition::Attempts => retry..self.guards.len(),
        };
        range.map(|index| self.guards.get(index))
    }

    /// Returns the guard that was the `index`-th to admit the call.
    pub(crate) fn of_call(&self, index: usize) -> &dyn Guard {
        self.guards.get(index)
    }

    /// Returns the guard that was the `index`-th to admit an attempt.
    pub(crate) fn of_attempt(&self, index: usize) -> &dyn Guard {
        let [.., retry] = self.splits;
        self.guards.get(retry + index)
    }
}

/// The state of a route that outlives changes of its policy.
pub(crate) struct RouteState {
    pub(crate) rng: Rng,
    gate: GateCell,
    traced: bool,
    pub(crate) port: PortBinding,
    pub(crate) retry_budget: Budget,
    pub(crate) hedge_budget: Budget,
    pub(crate) throttle: Mutex<Option<Throttle>>,
    bulkhead: Mutex<Option<Arc<Bulkhead>>>,
    /// What was charged to the rate limit by hand.
    pub(crate) charged: Mutex<ChargedByHand>,
    /// When the next event `near_limit` may be emitted, in microseconds.
    next_near_limit: AtomicU64,
    /// Keys whose calls the engine's rate limits reject.
    pub(crate) rejected: Arc<TopKeys>,
    /// When the quantiles are read next, in microseconds.
    next_quantile_read: AtomicU64,
    /// The hedge delay at the last read of the quantiles, in microseconds; 0 while there are too few samples.
    pub(crate) hedge_delay: AtomicU64,
}

impl RouteState {
    pub(crate) fn new(rng: Rng, gate: GateCell, traced: bool, port: PortBinding, rejected: Arc<TopKeys>) -> Self {
        Self {
            rng,
            gate,
            traced,
            port,
            retry_budget: Budget::default(),
            hedge_budget: Budget::default(),
            throttle: Mutex::new(None),
            bulkhead: Mutex::new(None),
            charged: Mutex::default(),
            next_near_limit: AtomicU64::new(0),
            rejected,
            next_quantile_read: AtomicU64::new(0),
            hedge_delay: AtomicU64::new(0),
        }
    }

    /// Returns the bulkhead with the calls inside it, retuned to `spec`; creates it on first use.
    fn bulkhead(&self, spec: &BulkheadSpec, clock: &Clock) -> BulkheadStage {
        let bulkhead = self.bulkhead.lock().get_or_insert_with(|| Arc::new(Bulkhead::new(spec))).clone();
        bulkhead.retune(spec, clock);
        BulkheadStage { bulkhead, has_queue: spec.max_queue > 0, is_adaptive: spec.measures_latency() }
    }

    /// Claims the next read of the quantiles, at most one per `interval` microseconds; true for one caller.
    pub(crate) fn claim_quantile_read(&self, now: Time, interval: u64) -> bool {
        claim(&self.next_quantile_read, now, interval)
    }

    /// Claims the next event `near_limit`, at most one per `interval`; true for one caller.
    pub(crate) fn claim_near_limit(&self, now: Time, interval: Duration) -> bool {
        claim(&self.next_near_limit, now, micros(interval))
    }
}

/// Claims what is due at most once per `interval` microseconds; true for one caller.
fn claim(next: &AtomicU64, now: Time, interval: u64) -> bool {
    let (due, now) = (next.load(Ordering::Relaxed), now.as_micros());
    let later = now.saturating_add(interval);
    now >= due && next.compare_exchange(due, later, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

impl<S: Store> Stages<S> {
    /// Compiles a valid policy. Existing state is taken over and retuned.
    pub(crate) fn compile(
        key: Arc<StateKey>,
        effective: &EffectivePolicy,
        store: S,
        observers: Observers,
        state: Arc<RouteState>,
        sets: &Arc<TaggedSets<S>>,
    ) -> Self {
        let policy = effective.with_lever();
        let limits = LimitsStage::compile(&key, &policy, &store, sets, &observers);
        let rate_limit = policy.rate_limit.as_ref().filter(|_| limits.is_none()).map(|spec| {
            let (bucket, rate) = (store.bucket(&key, spec), Rate::of(spec));
            let near = (rate.capacity as f64 * (1.0 - spec.near_limit)) as i64;
            let max_wait = spec.max_wait.unwrap_or_default();
            RateLimitStage { bucket, max_cost: rate.max_cost(), rate, near, per: spec.per, max_wait }
        });
        let tally = |scope, of, window| (scope == StateScope::Fleet).then(|| store.tally(&key, of, window));
        let retry_budget = policy.retry.and_then(|retry| retry.budget);
        let retry_tally = retry_budget.and_then(|budget| tally(budget.scope, TallyUse::Retries, budget::WINDOW));
        let hedge_tally = policy.hedge.and_then(|hedge| tally(hedge.budget.scope, TallyUse::Hedges, budget::WINDOW));
        let circuit = match (effective.breaker(), policy.throttle) {
            (Some(spec), _) => Circuit::Breaker { breaker: store.breaker(&key, &spec), count: spec.count },
            (None, Some(spec)) => Circuit::Throttle { spec, tally: tally(spec.scope, TallyUse::Throttle, spec.window) },
            (None, None) => Circuit::None,
        };
        let bulkhead = policy.bulkhead.as_ref().map(|spec| state.bulkhead(spec, store.clock()));
        let fleet_cap = policy.bulkhead.as_ref().and_then(|spec| spec.fleet_max_concurrency);
        let fleet_slots = fleet_cap.map(|cap| store.slots(&key, cap));
        let latency_watch = LatencyWatch::new(&policy, &store, &key);
        let span_names = SpanNames::new(&key, state.traced);
        let observed = observers.any() || span_names.any();
        let has_retry_budget = retry_budget.is_some();
        let has_queue = bulkhead.as_ref().is_some_and(|stage| stage.has_queue);
        let is_adaptive = bulkhead.as_ref().is_some_and(|stage| stage.is_adaptive);
        let is_leased = rate_limit.is_some() || limits.is_some() || fleet_slots.is_some();
        let takes_time = is_leased || has_retry_budget || policy.hedge.is_some() || has_queue || is_adaptive;
        let records = !matches!(circuit, Circuit::None) || latency_watch.is_some() || observed;
        let breaker_measures = policy.breaker.as_ref().is_some_and(BreakerSpec::measures_latency);
        #[cfg_attr(not(feature = "chaos"), allow(unused_mut))]
        let mut guards = policy.guards.clone();
        #[cfg(feature = "chaos")]
        let chaos = effective.chaos().map(|spec| ChaosStage::new(spec, state.rng.fork()));
        #[cfg(feature = "chaos")]
        if let Some(guard) = chaos.as_ref().and_then(|chaos| chaos.guard(key.clone(), observers.clone())) {
            guards.add(guard);
        }
        Self {
            superseded: AtomicBool::new(false),
            name: intern(&policy.name).unwrap_or("(unnamed)"),
            clock: store.clock().clone(),
            on_degraded: effective.on_degraded,
            deadline: policy.deadline.unwrap_or_default(),
            needs_clock: takes_time || records || !guards.is_empty(),
            needs_latency: observed || breaker_measures || latency_watch.is_some() || is_adaptive,
            has_retry_budget,
            retry_tally,
            hedge_tally,
            retry: policy.retry,
            hedge: policy.hedge,
            latency_watch,
            bulkhead,
            fleet_slots,
            timeout: policy.timeout,
            guards: PositionedGuards::new(&guards),
            #[cfg(feature = "chaos")]
            chaos,
            forced_open: effective.forced() == Some(Override::Open),
            key,
            version: effective.version,
            policy: effective.policy.clone(),
            lever: effective.lever.clone(),
            store,
            observers,
            gate: state.gate.clone(),
            rate_limit,
            limits,
            circuit,
            span_names,
            state,
        }
    }

    /// Returns what the stages were compiled from.
    pub(crate) fn effective_policy(&self) -> EffectivePolicy {
        EffectivePolicy {
            policy: self.policy.clone(),
            version: self.version,
            on_degraded: self.on_degraded,
            lever: self.lever.clone(),
        }
    }

    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Acquire)
    }

    pub(crate) fn supersede(&self) {
        self.superseded.store(true, Ordering::Release);
        if let Some(limits) = &self.limits {
            limits.supersede();
        }
    }

    /// Whether the breaker counts by `unit`. A throttle counts calls.
    #[inline]
    pub(crate) fn counts(&self, unit: CountBy) -> bool {
        match &self.circuit {
            Circuit::None => false,
            Circuit::Breaker { count, .. } => *count == unit,
            Circuit::Throttle { .. } => unit == CountBy::Calls,
        }
    }

    /// Returns the circuit to ask before the attempt that follows `attempts` others; [`Circuit::None`] if the call was
    /// admitted as a whole.
    #[inline]
    pub(crate) fn circuit_for(&self, attempts: u32) -> &Circuit<S> {
        let asked = attempts == 0 || self.counts(CountBy::Attempts);
        if asked { &self.circuit } else { &Circuit::None }
    }
}

//! Latency quantiles: every attempt feeds the digest, and the stages that act on a quantile read it at intervals.
//!
//! A breaker may trip on a quantile, a bulkhead may shrink on one, a hedge may use one as its delay. All three read the
//! same digest of the policy and route: the fleet's where it is shared, at most one sync interval old. A read costs more
//! than a microsecond, so only one call per interval does it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::stages::{Circuit, Stages};
use crate::breaker::LatencyTrip;
use crate::bulkhead::Completion;
use crate::clock::{Time, micros};
use crate::event::EventKind;
use crate::hedge::HedgeSpec;
use crate::key::StateKey;
use crate::kind::Outcome;
use crate::policy::Policy;
use crate::store::Store;

/// The window of the digest, unless a breaker that trips on the latency has one of its own.
const DEFAULT_WINDOW: Duration = Duration::from_secs(10);

/// How often the quantiles are read per window.
const READS_PER_WINDOW: u64 = 50;

/// The digest, and the quantiles that are read from it.
pub(crate) struct LatencyWatch<S: Store> {
    digest: Arc<S::Digest>,
    /// Microseconds between two reads.
    read_interval: u64,
    trip: Option<LatencyTrip>,
    limit_quantile: Option<f64>,
    hedge_quantile: Option<f64>,
}

impl<S: Store> LatencyWatch<S> {
    /// Returns none if no stage acts on a quantile.
    pub(super) fn new(policy: &Policy, store: &S, key: &StateKey) -> Option<Self> {
        let breaker = policy.breaker.as_ref();
        let trip = breaker.and_then(|spec| spec.latency_trip());
        let limit_quantile = policy.bulkhead.and_then(|spec| spec.adaptive).and_then(|spec| spec.latency_quantile);
        let hedge_quantile = policy.hedge.and_then(|spec| spec.adaptive_delay_quantile);
        if trip.is_none() && limit_quantile.is_none() && hedge_quantile.is_none() {
            return None;
        }
        let window = breaker.filter(|_| trip.is_some()).map_or(DEFAULT_WINDOW, |spec| spec.sampling_window);
        Some(Self {
            digest: store.digest(key, window),
            read_interval: (micros(window) / READS_PER_WINDOW).max(1),
            trip,
            limit_quantile,
            hedge_quantile,
        })
    }
}

impl<S: Store> Stages<S> {
    /// Feeds a finished attempt to the adaptive limit and to the digest, and reads the quantiles if that is due.
    pub(crate) fn observe_attempt(&self, now: Time, latency: Duration, outcome: Outcome) {
        self.observe_completion(now, latency, outcome);
        if let Some(watch) = &self.latency_watch {
            self.store.observe(&watch.digest, now, latency);
            self.read_quantiles(watch, now);
        }
    }

    /// Feeds an attempt to the adaptive limit alone. If the attempt was cut off, `latency` is a lower bound.
    #[inline]
    pub(crate) fn observe_completion(&self, now: Time, latency: Duration, outcome: Outcome) {
        if let Some(stage) = self.bulkhead.as_ref().filter(|stage| stage.is_adaptive) {
            let done = Completion { now, latency, outcome, in_use: stage.bulkhead.in_use() };
            if let Some(change) = stage.bulkhead.observe(&done, &self.clock) {
                self.observers.emit(&self.key, EventKind::LimitLowered(change));
            }
        }
    }

    /// Feeds the digest with an attempt that was dropped after running for `at_least`.
    pub(crate) fn observe_censored(&self, now: Time, at_least: Duration) {
        if let Some(watch) = &self.latency_watch {
            self.store.observe(&watch.digest, now, at_least);
        }
    }

    /// Returns how long an attempt runs before a hedge is started.
    #[inline]
    pub(crate) fn hedge_delay(&self, spec: &HedgeSpec, now: Time) -> Duration {
        match &self.latency_watch {
            Some(watch) if spec.adaptive_delay_quantile.is_some() => self.adaptive_delay(watch, spec, now),
            _ => spec.delay,
        }
    }

    fn adaptive_delay(&self, watch: &LatencyWatch<S>, spec: &HedgeSpec, now: Time) -> Duration {
        if self.state.hedge_delay.load(Ordering::Relaxed) == 0 {
            self.read_quantiles(watch, now); // a new replica starts with the fleet's digest
        }
        match self.state.hedge_delay.load(Ordering::Relaxed) {
            0 => spec.delay,
            micros => Duration::from_micros(micros),
        }
    }

    fn read_quantiles(&self, watch: &LatencyWatch<S>, now: Time) {
        if !self.state.claim_quantile_read(now, watch.read_interval) {
            return;
        }
        if let (Some(trip), Circuit::Breaker { breaker, .. }) = (watch.trip, &self.circuit) {
            let value = self.store.quantile(&watch.digest, now, trip.quantile);
            // The quantile of one replica may be over the threshold, but only the fleet's is within it for all.
            let over = |value: &Duration| *value > trip.threshold;
            let value = value.filter(|value| over(value) || self.store.has_fleet_latencies(&watch.digest));
            if let Some(change) = self.store.observe_quantile(breaker, now, value) {
                self.observers.emit(&self.key, EventKind::Transition(change));
            }
        }
        if let (Some(quantile), Some(stage)) = (watch.limit_quantile, &self.bulkhead) {
            let since = stage.bulkhead.measured_since();
            let value = self.store.quantile_since(&watch.digest, now, since, quantile);
            if let Some(change) = stage.bulkhead.judge(now, value, &self.clock) {
                self.observers.emit(&self.key, EventKind::LimitLowered(change));
            }
        }
        if let (Some(quantile), Some(spec)) = (watch.hedge_quantile, &self.hedge) {
            let value = self.store.quantile(&watch.digest, now, quantile);
            let delay = value.map_or(0, |value| micros(spec.delay_at(Some(value))).max(1));
            self.state.hedge_delay.store(delay, Ordering::Relaxed);
        }
    }
}

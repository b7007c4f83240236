//! Quantiles of the latency: fed by every attempt, looked at now and then by whoever acts on them.
//!
//! A breaker may trip on one, a bulkhead may shrink on one, a hedge may wait for one. All three read the same digest of
//! the policy and route: the fleet's where it is shared, at most one sync interval late. A look costs a microsecond and
//! more, so calls take turns at it.

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

/// The window of a digest, unless a breaker that trips on the latency has one of its own.
const WINDOW: Duration = Duration::from_secs(10);

/// Looks in a window.
const LOOKS: u64 = 50;

/// The digest, and what it is wanted for.
pub(crate) struct Watch<S: Store> {
    digest: Arc<S::Digest>,
    /// Microseconds between two looks.
    look_every: u64,
    trip: Option<LatencyTrip>,
    limit_quantile: Option<f64>,
    hedge_quantile: Option<f64>,
}

impl<S: Store> Watch<S> {
    /// None if nobody wants a quantile.
    pub(super) fn of(policy: &Policy, store: &S, key: &StateKey) -> Option<Self> {
        let breaker = policy.breaker.as_ref();
        let trip = breaker.and_then(|spec| spec.latency_trip());
        let limit_quantile = policy.bulkhead.and_then(|spec| spec.adaptive).and_then(|spec| spec.latency_quantile);
        let hedge_quantile = policy.hedge.and_then(|spec| spec.adaptive_delay_quantile);
        if trip.is_none() && limit_quantile.is_none() && hedge_quantile.is_none() {
            return None;
        }
        let window = breaker.filter(|_| trip.is_some()).map_or(WINDOW, |spec| spec.sampling_window);
        Some(Self {
            digest: store.digest(key, window),
            look_every: (micros(window) / LOOKS).max(1),
            trip,
            limit_quantile,
            hedge_quantile,
        })
    }
}

impl<S: Store> Stages<S> {
    /// Learns from an attempt that is over: the limit by its latency, the digest too, which is looked at now and then.
    pub(crate) fn learn(&self, now: Time, latency: Duration, outcome: Outcome) {
        self.learn_limit(now, latency, outcome);
        if let Some(watch) = &self.watch {
            self.store.observe(&watch.digest, now, latency);
            self.look(watch, now);
        }
    }

    /// Lets an attempt that is over, or that was not waited for, move the limit: it took so long, or longer.
    #[inline]
    pub(crate) fn learn_limit(&self, now: Time, latency: Duration, outcome: Outcome) {
        if let Some(slots) = self.bulkhead.as_ref().filter(|slots| slots.learns) {
            let done = Completion { now, latency, outcome, in_use: slots.bulkhead.in_use() };
            if let Some(change) = slots.bulkhead.observe(&done, &self.clock) {
                self.observers.emit(&self.key, EventKind::LimitLowered(change));
            }
        }
    }

    /// Feeds the digest with an attempt that was not waited for: it took at least this long.
    pub(crate) fn watch_censored(&self, now: Time, at_least: Duration) {
        if let Some(watch) = &self.watch {
            self.store.observe(&watch.digest, now, at_least);
        }
    }

    /// How long to wait before a copy is sent.
    #[inline]
    pub(crate) fn hedge_delay(&self, spec: &HedgeSpec, now: Time) -> Duration {
        match &self.watch {
            Some(watch) if spec.adaptive_delay_quantile.is_some() => self.observed_delay(watch, spec, now),
            _ => spec.delay,
        }
    }

    fn observed_delay(&self, watch: &Watch<S>, spec: &HedgeSpec, now: Time) -> Duration {
        if self.kept.hedge_delay.load(Ordering::Relaxed) == 0 {
            self.look(watch, now); // a new replica starts with what the fleet knows
        }
        match self.kept.hedge_delay.load(Ordering::Relaxed) {
            0 => spec.delay,
            micros => Duration::from_micros(micros),
        }
    }

    fn look(&self, watch: &Watch<S>, now: Time) {
        if !self.kept.claims_look(now, watch.look_every) {
            return;
        }
        if let (Some(trip), Circuit::Breaker { breaker, .. }) = (watch.trip, &self.circuit) {
            let value = self.store.quantile(&watch.digest, now, trip.quantile);
            if let Some(change) = self.store.observe_quantile(breaker, now, value) {
                self.observers.emit(&self.key, EventKind::Transition(change));
            }
        }
        if let (Some(quantile), Some(slots)) = (watch.limit_quantile, &self.bulkhead) {
            let since = slots.bulkhead.measured_since();
            let value = self.store.quantile_since(&watch.digest, now, since, quantile);
            if let Some(change) = slots.bulkhead.judge(now, value, &self.clock) {
                self.observers.emit(&self.key, EventKind::LimitLowered(change));
            }
        }
        if let (Some(quantile), Some(spec)) = (watch.hedge_quantile, &self.hedge) {
            let value = self.store.quantile(&watch.digest, now, quantile);
            let delay = value.map_or(0, |value| micros(spec.delay_at(Some(value))).max(1));
            self.kept.hedge_delay.store(delay, Ordering::Relaxed);
        }
    }
}

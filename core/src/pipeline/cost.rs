//! The true cost of work: settled after the call that paid an estimate, or charged and given back by hand.
//!
//! A cost that was too high is a refund of the difference, less what time has refilled since; one that was too low is a
//! charge, and a debt if the permits are not there. Nothing of this waits.

use std::cmp::Ordering;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use super::call_state::{CallState, Step};
use super::stages::Stages;
use super::{CallOptions, Pipeline};
use crate::clock::Time;
use crate::rejection::{Rejection, Source};
use crate::store::Store;
use crate::timeout::{Elapsed, Timer, poll_within};

/// Permits that were granted, and what a refund of them names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaidCost {
    pub(crate) cost: u32,
    pub(crate) due: Time,
    pub(crate) source: Source,
}

impl PaidCost {
    /// Refunds or charges the difference between a cost that was paid and the true one.
    pub(crate) fn settle<S: Store>(self, store: &S, bucket: &S::Bucket, actual: u32) {
        match actual.cmp(&self.cost) {
            Ordering::Less => store.refund(bucket, self.cost - actual, self.due, self.source),
            Ordering::Equal => {}
            Ordering::Greater => store.charge(bucket, actual - self.cost),
        }
    }
}

impl<S: Store> Pipeline<S> {
    /// Takes permits of the rate limit for work that is done without this pipeline, and settled afterwards. Waits for them as
    /// a call does. No other stage is asked, except the drain and a lever that forces the route open. Without a rate limit
    /// nothing is taken.
    ///
    /// # Errors
    /// Rejects as a call of this cost would: with `rate_limited`, `cost_above_burst`, and so on.
    pub async fn reserve_cost(&self, estimate: u32) -> Result<Reservation<S>, Rejection> {
        let stages = self.entry.latest();
        let paid = {
            let options = CallOptions { cost: estimate, ..CallOptions::DEFAULT };
            let mut call = CallState::new(&stages, &options);
            if reserve(&mut call).await {
                Ok(call.take_permits())
            } else {
                let rejection = call.reason();
                let decision = call.decision(Some(&rejection));
                call.report(Some(rejection.kind()), &decision);
                Err(rejection)
            }
        };
        let paid = paid?;
        let cost = paid.first().map_or(0, |(_, paid)| paid.cost);
        Ok(Reservation { stages, cost, paid })
    }

    /// Charges permits of the rate limit for work that was done elsewhere, whether they are there or not. What is missing is
    /// a debt: until time has paid it off, calls wait or are rejected. Never waits; a fleet's bucket is charged in the
    /// background, once. Without a rate limit nothing happens.
    pub fn charge(&self, permits: u32) {
        let stages = self.current();
        if let Some(limit) = &stages.rate_limit {
            stages.state.charged.lock().add(stages.clock.now(), limit.rate, permits);
            stages.store.charge(&limit.bucket, permits);
        }
        if let Some(limits) = &stages.limits {
            limits.charge(permits);
        }
    }

    /// Gives back permits that this process has [charged](Self::charge), for work that was not done after all: at most as many
    /// as were charged, less what time has refilled since. Returns how many. Never waits.
    pub fn refund(&self, permits: u32) -> u32 {
        let stages = self.current();
        let Some(limit) = &stages.rate_limit else { return 0 };
        let permits = stages.state.charged.lock().take(stages.clock.now(), limit.rate, permits);
        if permits > 0 {
            stages.store.discharge(&limit.bucket, permits);
        }
        permits
    }
}

/// Acquires the permits of a call, as the walk does. False if it is rejected.
async fn reserve<S: Store>(call: &mut CallState<'_, S>) -> bool {
    let stages = call.stages;
    if !call.enter_pipeline() {
        return false;
    }
    let mut timer = Timer::default();
    let mut step = match (&stages.rate_limit, &stages.limits) {
        (Some(limit), _) => call.acquire_permits(limit),
        (None, Some(limits)) => match call.acquire_limits(limits) {
            Ok(step) => step,
            Err(limits) => call.await_limits(&mut timer, limits).await,
        },
        (None, None) => Step::Continue,
    };
    if let (Step::Await, Some(limit)) = (step, &stages.rate_limit) {
        let (request, within) = (call.permit_request(limit), call.time_left());
        let mut acquiring = pin!(stages.store.acquire(&limit.bucket, call.attempt.started, request));
        let granted = poll_fn(|cx| poll_within(&mut timer, within, cx, |cx| acquiring.as_mut().poll(cx))).await;
        timer.disarm();
        call.restart_clock();
        step = match granted {
            Ok(grant) => call.apply_grant(&grant),
            Err(Elapsed) => call.reject_late(),
        };
    }
    if let Step::Wait(wait) = step {
        call.sleep(&mut timer, wait).await;
    }
    step != Step::Reject && !call.reject_if_cancelled()
}

/// Permits of a rate limit that were taken for work whose true cost is not known yet; created by
/// [`Pipeline::reserve_cost`]. Dropped without being settled, they stay taken: the estimate stands.
#[must_use = "unless it is settled, the estimate stands"]
pub struct Reservation<S: Store> {
    stages: Arc<Stages<S>>,
    cost: u32,
    /// To which buckets, and what a refund names.
    paid: Vec<(Arc<S::Bucket>, PaidCost)>,
}

impl<S: Store> Reservation<S> {
    /// Returns the permits that were taken.
    pub const fn cost(&self) -> u32 {
        self.cost
    }

    /// Refunds what was taken beyond the true cost, less what time has refilled since, or charges what was not. Never waits.
    pub fn settle_cost(self, actual: u32) {
        for (bucket, paid) in self.paid {
            paid.settle(&self.stages.store, &bucket, actual);
        }
    }
}

impl<S: Store> std::fmt::Debug for Reservation<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reservation").field("key", &self.stages.key).field("cost", &self.cost).finish()
    }
}

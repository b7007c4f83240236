//! Injected faults: the part of the walk that runs only while the lever `chaos` is pulled.
//!
//! * A **rejection** is a guard before all stages, added when the stages are compiled.
//! * **Latency** delays the start of the operation inside the attempt, separately for each hedge: the timeout runs
//!   meanwhile, and a hedge may overtake.
//! * An **error** ends the attempt in place of the operation, after its latency. Such an attempt is not hedged.
//!
//! All numbers come from a fork of the route's generator, so that a seeded module injects the same faults in every run
//! and its jitter does not depend on how many were injected since.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use super::call_state::CallState;
use super::race::race;
use crate::chaos::{ChaosSpec, InjectedFault};
use crate::classify::Classifier;
use crate::event::{EventKind, Observers};
use crate::guard::{CallInfo, Guard};
use crate::key::StateKey;
use crate::rejection::{Rejection, RejectionCode, Source};
use crate::rng::Rng;
use crate::store::Store;
use crate::timeout::{Elapsed, Timer, poll_within};

/// The chaos of one route while its lever is pulled.
pub(crate) struct ChaosStage {
    spec: ChaosSpec,
    rng: Rng,
}

impl ChaosStage {
    pub(super) const fn new(spec: ChaosSpec, rng: Rng) -> Self {
        Self { spec, rng }
    }

    /// Returns the guard that rejects calls; none if the spec rejects none.
    pub(super) fn guard(&self, key: Arc<StateKey>, observers: Observers) -> Option<ChaosGuard> {
        let ratio = self.spec.rejection_ratio;
        (ratio > 0.0).then(|| ChaosGuard { ratio, rng: self.rng.fork(), key, observers })
    }

    fn draw_latency(&self) -> Option<Duration> {
        let ChaosSpec { latency_ratio, latency, latency_max, .. } = self.spec;
        let late = latency_ratio > 0.0 && self.rng.unit() < latency_ratio;
        late.then(|| latency_max.map_or(latency, |most| self.rng.between(latency, most)))
    }

    fn draw_error(&self) -> bool {
        self.spec.error_ratio > 0.0 && self.rng.unit() < self.spec.error_ratio
    }
}

/// Rejects a share of the calls before all stages.
pub(crate) struct ChaosGuard {
    ratio: f64,
    rng: Rng,
    key: Arc<StateKey>,
    observers: Observers,
}

impl Guard for ChaosGuard {
    fn name(&self) -> &str {
        "chaos"
    }

    fn order(&self) -> u16 {
        0
    }

    fn admit(&self, _: &CallInfo<'_>) -> Result<(), Rejection> {
        if self.rng.unit() >= self.ratio {
            return Ok(());
        }
        self.observers.emit(&self.key, EventKind::FaultInjected(InjectedFault::Rejection));
        Err(Rejection::new(RejectionCode::InjectedFault).decided_by(Source::Forced))
    }
}

/// Runs one attempt as the walk does, with the faults drawn for it.
pub(super) async fn disturb<S, T, E, F, Fut, C>(
    call: &mut CallState<'_, S>,
    timer: &mut Timer,
    chaos: &ChaosStage,
    operation: &F,
    classifier: &C,
) -> Result<Result<T, E>, Elapsed>
where
    S: Store,
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    C: Classifier<T, E>,
{
    let stages = call.stages;
    let draw_latency = || {
        let delay = chaos.draw_latency();
        if let Some(delay) = delay {
            let fault = InjectedFault::Latency(delay);
            stages.observers.emit(&stages.key, EventKind::FaultInjected(fault));
        }
        delay
    };
    if chaos.draw_error() {
        let delay = draw_latency().unwrap_or_default();
        if delay.is_zero() || wait_in_attempt(call, timer, delay).await.is_ok() {
            call.attempt.fault_injected = true;
            call.emit(EventKind::FaultInjected(InjectedFault::Error));
        }
        return Err(Elapsed);
    }
    let late_operation = || {
        let delay = draw_latency();
        async move {
            if let Some(delay) = delay {
                tokio::time::sleep(delay).await;
            }
            operation().await
        }
    };
    let mut running = pin!(Some(call.run_operation(late_operation)));
    let mut answer = poll_fn(|cx| {
        let poll = |cx: &mut Context<'_>| match running.as_mut().as_pin_mut() {
            Some(running) => call.run_operation(|| running.poll(cx)),
            None => std::task::Poll::Pending,
        };
        let polled = poll_within(timer, call.attempt.wake_after, cx, poll);
        call.unless_cancelled(polled, cx)
    })
    .await;
    if answer.is_err() && call.attempt.wake_after != call.attempt.limit && !call.reject_if_cancelled() {
        timer.disarm();
        answer = race(call, timer, running, &late_operation, classifier).await;
    }
    answer
}

/// Waits inside the attempt: no longer than its limit, and not beyond a cancellation.
async fn wait_in_attempt<S: Store>(call: &CallState<'_, S>, timer: &mut Timer, delay: Duration) -> Result<(), Elapsed> {
    let mut waiting = Timer::default();
    poll_fn(|cx| {
        let polled = poll_within(timer, call.attempt.limit, cx, |cx| waiting.poll_after(delay, cx));
        call.unless_cancelled(polled, cx)
    })
    .await
}

//! The callers of a load: each calls, waits for the result, pauses, and calls again.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use phalanx::store::StoreMode;
use phalanx::{Error, Pipeline, ResilienceModule, Source};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::commands::Load;
use super::dependency::Dependency;
use super::ledger::{Entry, Ledger, Losses};
use super::moment::{Moment, thread_time};

/// The longest control loop. A degraded decision that took longer was itself disturbed.
const MAX_CONTROL: Duration = Duration::from_micros(10);

/// State shared by all callers of a replica.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) module: ResilienceModule,
    pub(super) dependency: Dependency,
    pub(super) ledger: Ledger,
    /// Set to end all callers.
    pub(super) stop: AtomicBool,
}

/// Runs one caller of a load.
pub(super) async fn run_caller(shared: Arc<Shared>, load: Arc<Load>, number: usize) {
    let route = load.route_of(number);
    let pipeline = shared.module.pipeline(load.policy(), route).expect("the policy exists");
    let began = Moment::now();
    if !load.at_once {
        sleep(load.pause.mul_f64(number as f64 / load.callers.max(1) as f64)).await;
    }
    let mut losses = Losses::new(&shared.ledger);
    let mut calls_in_a_row = 0;
    let mut typical = None;
    for number in 0..load.calls {
        if began.elapsed() >= load.lasting || shared.stop.load(Ordering::Relaxed) {
            return;
        }
        // One control loop per degraded call, alternately before and after it, because the first of the two pays for
        // waking up the processor.
        let before = typical.filter(|_| number % 2 == 0).map(spin);
        let entry = call(&shared, &pipeline, route).await;
        typical = entry.degraded.then(|| entry.cpu_time.min(MAX_CONTROL));
        let after = typical.filter(|_| number % 2 == 1).map(spin);
        losses.record(&entry);
        shared.ledger.record_call(&entry, before.or(after));
        if load.until_rejected && entry.rejected.is_some() {
            return;
        }
        calls_in_a_row = if entry.degraded { calls_in_a_row + 1 } else { load.calls_in_a_row };
        if calls_in_a_row >= load.calls_in_a_row {
            calls_in_a_row = 0;
            if load.pause.is_zero() { yield_now().await } else { sleep(load.pause).await }
        }
    }
}

/// Spins for a while and returns the CPU time it took. Interrupts and page faults are charged to this loop as they are to
/// a call, which makes it the control for the cost of a degraded decision.
fn spin(lasting: Duration) -> Duration {
    let (before, began) = (thread_time(), Moment::now());
    while began.elapsed() < lasting {
        std::hint::spin_loop();
    }
    thread_time().saturating_sub(before)
}

async fn call<'a>(shared: &Shared, pipeline: &Pipeline, route: &'a str) -> Entry<'a> {
    let degraded = shared.module.store_mode() == Some(StoreMode::Degraded);
    let (started, decided_at, answered) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let operation = || async {
        let (now, worked) = (Moment::now(), thread_time());
        started.store(now.as_nanos(), Ordering::Relaxed);
        decided_at.store(worked.as_nanos() as u64, Ordering::Relaxed);
        shared.ledger.record_start(now);
        let answer = shared.dependency.answer().await;
        answered.store(Moment::now().as_nanos(), Ordering::Relaxed);
        answer
    };
    let began = Moment::now();
    let (mut polls, mut cpu_time) = (0, Duration::ZERO);
    let (answer, decision) = {
        let mut calling = pin!(pipeline.call().run_recorded(operation));
        poll_fn(|cx| {
            let before = thread_time();
            let polled = calling.as_mut().poll(cx);
            if polls == 0 {
                // Up to the start of the operation, whose own time does not count.
                let decided_at = Some(decided_at.load(Ordering::Relaxed)).filter(|at| *at > 0);
                let decided_at = decided_at.map_or_else(thread_time, Duration::from_nanos);
                cpu_time = decided_at.saturating_sub(before);
            }
            polls += 1;
            polled
        })
        .await
    };
    let ended = Moment::now();
    let started = Some(started.into_inner()).filter(|at| *at > 0).map(Moment::from_nanos);
    Entry {
        route,
        rejected: answer.as_ref().err().and_then(Error::rejection).map(|rejection| rejection.code()),
        source: decision.source,
        probe: decision.probe,
        failed: answer.is_err() && started.is_some(),
        began,
        started,
        answered: Some(answered.into_inner()).filter(|at| *at > 0).map(Moment::from_nanos),
        ended,
        degraded: degraded && decision.source == Source::Degraded,
        parked: polls > 1,
        cpu_time,
    }
}

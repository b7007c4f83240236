//! Callers: each calls, waits for the answer, pauses, and calls again.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use phalanx::store::StoreMode;
use phalanx::{Error, Pipeline, ResilienceModule, Source};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::dependency::Dependency;
use super::ledger::{Entry, Ledger, Losses};
use super::moment::{Moment, thread_time};
use super::orders::Load;

/// A decision alone that took longer was disturbed itself.
const LONGEST_CONTROL: Duration = Duration::from_micros(10);

/// What all callers of a replica share.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) module: ResilienceModule,
    pub(super) dependency: Dependency,
    pub(super) ledger: Ledger,
    /// Callers are to end.
    pub(super) enough: AtomicBool,
}

/// One caller of a load.
pub(super) async fn call_for_a_while(ground: Arc<Ground>, load: Arc<Load>, number: usize) {
    let route = load.route_of(number);
    let pipeline = ground.module.pipeline(load.policy(), route).expect("a policy that there is");
    let began = Moment::now();
    if !load.at_once {
        sleep(load.pause.mul_f64(number as f64 / load.callers.max(1) as f64)).await;
    }
    let mut losses = Losses::new(&ground.ledger);
    let mut in_a_row = 0;
    let mut typical = None;
    for number in 0..load.calls {
        if began.elapsed() >= load.lasting || ground.enough.load(Ordering::Relaxed) {
            return;
        }
        // A control for each call alone, now before it and now after: whoever comes first on a processor pays for waking
        // it up.
        let before = typical.filter(|_| number % 2 == 0).map(spin);
        let entry = call(&ground, &pipeline, route).await;
        typical = entry.alone.then(|| entry.on_processor.min(LONGEST_CONTROL));
        let after = typical.filter(|_| number % 2 == 1).map(spin);
        losses.note(&entry);
        ground.ledger.enter(&entry, before.or(after));
        if load.until_rejected && entry.rejected.is_some() {
            return;
        }
        in_a_row = if entry.alone { in_a_row + 1 } else { load.in_a_row };
        if in_a_row >= load.in_a_row {
            in_a_row = 0;
            if load.pause.is_zero() { yield_now().await } else { sleep(load.pause).await }
        }
    }
}

/// Does nothing for so long, and tells how long the thread had a processor for it: what else the machine does in its
/// name (interrupts, page faults) it does here as well.
fn spin(lasting: Duration) -> Duration {
    let (before, began) = (thread_time(), Moment::now());
    while began.elapsed() < lasting {
        std::hint::spin_loop();
    }
    thread_time().saturating_sub(before)
}

async fn call<'a>(ground: &Ground, pipeline: &Pipeline, route: &'a str) -> Entry<'a> {
    let alone = ground.module.store_mode() == Some(StoreMode::Degraded);
    let (departed, decided_at) = (AtomicU64::new(0), AtomicU64::new(0));
    let operation = || async {
        let (now, worked) = (Moment::now(), thread_time());
        departed.store(now.as_nanos(), Ordering::Relaxed);
        decided_at.store(worked.as_nanos() as u64, Ordering::Relaxed);
        ground.ledger.departs(now);
        ground.dependency.answer().await
    };
    let began = Moment::now();
    let (mut polls, mut on_processor) = (0, Duration::ZERO);
    let (answer, decision) = {
        let mut calling = pin!(pipeline.call().run_recorded(operation));
        poll_fn(|cx| {
            let before = thread_time();
            let polled = calling.as_mut().poll(cx);
            if polls == 0 {
                // Up to the operation, which is none of the store's business.
                let decided_at = Some(decided_at.load(Ordering::Relaxed)).filter(|at| *at > 0);
                let decided_at = decided_at.map_or_else(thread_time, Duration::from_nanos);
                on_processor = decided_at.saturating_sub(before);
            }
            polls += 1;
            polled
        })
        .await
    };
    let ended = Moment::now();
    let departed = Some(departed.into_inner()).filter(|at| *at > 0).map(Moment::from_nanos);
    Entry {
        route,
        rejected: answer.as_ref().err().and_then(Error::rejection).map(|rejection| rejection.code()),
        source: decision.source,
        probe: decision.probe,
        failed: answer.is_err() && departed.is_some(),
        began,
        departed,
        ended,
        alone: alone && decision.source == Source::Degraded,
        parked: polls > 1,
        on_processor,
    }
}

//! Allocations of bulkheads and hedges: none, unless a queue grows or a hedge is sent.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use phalanx::policy::{AdaptiveSpec, GradientSpec};
use phalanx::*;

use super::*;

/// Ready at once, pending once with manual polling, and pending once on a runtime.
fn allocates_nothing(policy: Policy) {
    let (runtime, kept) = (runtime(), steady(policy.clone()));
    assert_eq!(allocations(|| assert_eq!(at_once(kept.run(ok)), Ok(1))), 0, "ready: {policy:?}");
    let pending = async || assert_eq!(kept.run(|| pending_once(Ok(1))).await, Ok(1));
    assert_eq!(allocations_of(&runtime, pending), 0, "pending: {policy:?}");
    let _inside = runtime.enter();
    let by_hand = || {
        let mut call = pin!(kept.run(|| pending_once(Ok(1))));
        assert!(poll_once(call.as_mut()).is_pending());
        assert_eq!(poll_once(call.as_mut()), Poll::Ready(Ok(1)));
    };
    assert_eq!(allocations(by_hand), 0, "pending by hand: {policy:?}");
}

#[test]
fn a_slot_of_a_bulkhead_allocates_nothing() {
    let adaptive = AdaptiveSpec::threshold(SECOND);
    for bulkhead in [
        BulkheadSpec::fixed(8),
        BulkheadSpec::fixed(8).fleet_max_concurrency(8),
        BulkheadSpec::fixed(8).queue(100).queue_target(5 * MS).adaptive_lifo().prioritized(),
        BulkheadSpec::adaptive(8, adaptive),
        BulkheadSpec::adaptive(8, adaptive.quantile(0.95)),
        BulkheadSpec::gradient(8, GradientSpec::default()),
    ] {
        allocates_nothing(stack5(bulkhead));
    }
}

#[test]
fn a_hedge_that_does_not_fire_allocates_nothing() {
    allocates_nothing(stack6(HedgeSpec::after(500 * MS)));
    allocates_nothing(stack6(HedgeSpec::after(500 * MS).at_quantile(0.95).between(400 * MS, 600 * MS)));
}

#[test]
fn a_call_that_finds_a_bulkhead_full_allocates_nothing() {
    let (runtime, kept) = (runtime(), pipeline(stack5(BulkheadSpec::fixed(1))));
    let _inside = runtime.enter();
    let mut holder = Box::pin(kept.run(hang));
    assert!(poll_once(holder.as_mut()).is_pending());
    let rejected = || at_once(kept.run(ok)).unwrap_err().rejection().unwrap().code();
    assert_eq!(allocations(|| assert_eq!(rejected(), RejectionCode::BulkheadFull)), 0);
}

/// Waiting allocates only when the queue becomes longer than ever before.
#[test]
fn waiting_in_a_queue_that_has_been_as_long_before_allocates_nothing() {
    let runtime = runtime();
    for bulkhead in [BulkheadSpec::fixed(1).queue(2), BulkheadSpec::fixed(1).queue(2).queue_timeout(SECOND)] {
        let kept = runtime.block_on(async { pipeline(stack5(bulkhead)) });
        let _inside = runtime.enter();
        let served = || {
            let (mut first, mut second) = (pin!(kept.run(|| pending_once(Ok(1)))), pin!(kept.run(ok)));
            assert!(poll_once(first.as_mut()).is_pending() && poll_once(second.as_mut()).is_pending());
            assert_eq!(kept.bulkhead().unwrap().waiting, 1);
            assert_eq!(poll_once(first.as_mut()), Poll::Ready(Ok(1)));
            assert_eq!(poll_once(second.as_mut()), Poll::Ready(Ok(1)));
        };
        assert_eq!(allocations(served), 0, "served");
        let mut holder = Box::pin(kept.run(hang));
        assert!(poll_once(holder.as_mut()).is_pending());
        let dropped = || {
            let mut waiter = pin!(kept.run(ok));
            assert!(poll_once(waiter.as_mut()).is_pending());
        };
        assert_eq!(allocations(dropped), 0, "dropped");
    }
}

/// A sent hedge may allocate: its shared state, the list of hedges, and each hedge.
#[test]
fn sending_a_hedge_allocates_three_times_and_once_more_for_each_further_hedge() {
    let runtime = runtime();
    for hedges in 1..=4 {
        let spec = HedgeSpec::after(10 * MS).max_attempts(hedges + 1);
        let kept = runtime.block_on(async { pipeline(stack6(spec)) });
        let slow = async || {
            let (answer, record) = kept.call().run_recorded(|| after(10 * MS * hedges + 5 * MS)).await;
            assert_eq!((answer, record.hedges), (Ok(1), hedges));
        };
        let each = allocations_of(&runtime, slow) as f64 / CALLS as f64;
        assert_eq!(each, f64::from(2 + hedges), "{hedges} hedges");
    }
}

/// Ready when polled after this time. It sets no timer, because that would allocate.
async fn after(time: Duration) -> Result<u32, Failure> {
    let start = tokio::time::Instant::now();
    poll_fn(|_| if start.elapsed() >= time { Poll::Ready(Ok(1)) } else { Poll::Pending }).await
}
